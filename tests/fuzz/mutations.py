"""Seeded mutations of files: bytes, numbers, values of JSON, headers of npy, members of zips."""

import io
import json
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**12, 10**30,
    0.0, -0.0, 0.5, 1e308, 5e-324, float("nan"), float("inf"), True, False, None,
    "", "a", "0", "-1", "\x00", "\ud800", "x" * 5000, "../../outside", "/outside", "~nobody/x",
    "float16", "float64", "object", "|O", "M8[s]", "s3://bucket/x", "none",
    [], [0], [-1], [10**12, 4096], [None], ["a", "a"], {}, {"a": 1}, [[]], [[0, 1]],
)  # fmt: skip
"""What a value of JSON is replaced by."""
_DEEP = "\ue000deep\ue000"
"""Replaced, in the text, by lists in lists."""
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = (
    b"0", b"-1", b"1", b"nan", b"inf", b"-inf", b"1e999", b"1e-999", b"65536", b"2147483648",
    b"99999999999", b"18446744073709551616", b"9" * 400, b"9" * 5000, b"0x10", b"1_0", b"", b" ",
)  # fmt: skip
_TOML_VALUES = (
    b"0", b"-1", b"1", b"1.5", b"nan", b"-inf", b"1e999", b"true", b'""', b'"auto"', b'"x"', b"[]",
    b"[1]", b"[1.5, 2]", b'["a"]', b'["a", "a"]', b"[[1]]", b"{}", b"{a = 1}", b"1979-05-27",
    b"07:32:00", b"9223372036854775808", b"0x" + b"f" * 5000, b"1" * 5000, b'"~nobody/x"', b'"~"',
    b'"\\u0000"', b'"../../x"', b'"s3://u:p@b/x"', b'"s3://"', b'"tcp://:0"', b'"1e3GB"',
    b'"' + b"9" * 400 + b'GB"', b'"99:99:99"', b'"{time}{x}"', b'"{"', b"[" * 5000, b'"softmax"',
    b'"structured_hinge"', b'"local"', b'"slurm"', b'"kubernetes"', b'["softmax", "x"]', b"",
)  # fmt: skip
"""Values of a job, of which no key takes all."""
_BITS = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\n", b",", b":", b'"', b"[", b"{", b"\xef\xbb\xbf")
_NPY_MAGIC = b"\x93NUMPY"
_SHAPES = (
    "()", "(0,)", "(-1,)", "(1000000000000, 4096)", "(6,)", "(3, 4)", "(2, 3, 4)", "(6, 0)",
    "(0, 4)", "(4611686018427387904, 4)", "(6.0, 4)", "('a',)", "(True, 4)", "(10**9,)", "None",
    "(9223372036854775808,)", "[6, 4]", "(6, 4, 1)", "((6,), 4)", "(1" + "0" * 400 + ", 4)",
)  # fmt: skip
_DESCRS = (
    "'|O'", "'<f8'", "'<f2'", "'>f4'", "'<c16'", "'<U3'", "'|S0'", "'<U0'", "'|V0'", "'|V4'",
    "'<M8[s]'", "'f99'", "[('a', '<f4')]", "[('a', '|O')]", "[]", "None", "'<f4, (2,)f4'", "7",
    "'" + "(" * 300 + "'", "'|S1000000000'", "('<f4', (10000000,))", "'<f16'", "'<U500000000'",
)  # fmt: skip


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Change a file a little: by its structure where it has one that is known, or its bytes.

    Parameters
    ----------
    content : bytes
    rng : random.Random
    """
    structured = _find_structured(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change = structured if structured and rng.random() < 0.65 else _mutate_bytes
        content = change(content, rng)
    return content


def _find_structured(content: bytes) -> Callable[[bytes, random.Random], bytes] | None:
    if content.startswith(b"PK\x03\x04"):
        return _mutate_zip
    if content.startswith(_NPY_MAGIC):
        return _mutate_npy
    if content[:1] in (b"{", b"["):
        return _mutate_json
    head = content[:2048]
    if head and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return _mutate_text
    return None


def _mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return rng.randbytes(rng.randrange(1, 64))
    at = rng.randrange(len(content))
    size = rng.choice((1, 2, 4, 8, rng.randrange(1, 64)))
    kind = rng.randrange(9)
    if kind == 0:
        changed = content[at] ^ (1 << rng.randrange(8))
        return content[:at] + bytes([changed]) + content[at + 1 :]
    if kind == 1:
        return content[:at] + rng.randbytes(size) + content[at + size :]
    if kind == 2:
        return content[:at]
    if kind == 3:
        return content[:at] + content[at + size :]
    if kind == 4:
        return content[:at] + rng.choice(_BITS) * rng.choice((1, 1, size)) + content[at:]
    if kind == 5:
        other = rng.randrange(len(content))
        return content[:at] + content[other : other + size] + content[at:]
    if kind == 6:
        width, value = rng.choice((1, 2, 4, 8)), rng.choice((0, 1, 2**7, 2**15, 2**31, 2**62, -1))
        packed = (value % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big")))
        return content[:at] + packed + content[at + width :]
    if kind == 7:
        return content + content[at:]
    return content[:at] + content[at : at + size] * rng.choice((2, 50)) + content[at + size :]


def _mutate_text(content: bytes, rng: random.Random) -> bytes:
    """Replace a number, or a line, of a text."""
    numbers = list(_NUMBER.finditer(content))
    kind = rng.randrange(5)
    if numbers and kind < 3:
        found = rng.choice(numbers)
        return content[: found.start()] + rng.choice(_NUMBERS) + content[found.end() :]
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    name, equals, _ = lines[at].partition(b"=")
    if equals and rng.random() < 0.8:
        # TOML, which has sections too.
        lines[at] = name + b"= " + rng.choice(_TOML_VALUES)
        if rng.random() < 0.2:
            lines.insert(rng.randrange(len(lines)), lines.pop(at))
    elif kind == 3:
        lines[at] = rng.choice((b"", b"\x00", b"#", b'"', b"x" * 200_000, b"[" * 5000, lines[-1]))
    else:
        lines.insert(at, lines[rng.randrange(len(lines))])
    return b"\n".join(lines)


def _mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Replace, drop or add a value somewhere in JSON."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return _mutate_bytes(content, rng)
    places = list(_list_places(tree))
    if not places:
        return _mutate_bytes(content, rng)
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = _DEEP
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(("x", "", "format", "self", "__class__"))] = rng.choice(ODD_VALUES)
    elif kind == 3:
        holder[key] = [holder[key]]
    elif kind == 4:
        other, name = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    else:
        holder[key] = rng.choice(ODD_VALUES)
    depth = rng.choice((500, 100_000))
    text = json.dumps(tree).replace(json.dumps(_DEEP), "[" * depth + "]" * depth)
    return text.encode()


def _list_places(tree: Any) -> list[tuple[Any, Any]]:
    """List every value in JSON, by what holds it and its key there."""
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            places += [(holder, key) for key in keys]
            waiting += [holder[key] for key in keys]
    return places


def _mutate_npy(content: bytes, rng: random.Random) -> bytes:
    """Write another header before the values."""
    if not content.startswith(_NPY_MAGIC) or len(content) < 10:
        return _mutate_bytes(content, rng)
    (length,) = struct.unpack_from("<H", content, 8)
    header, body = content[10 : 10 + length].decode("latin1"), content[10 + length :]
    kind = rng.randrange(6)
    if kind < 2:
        header = re.sub(r"'shape': [^}]*\)", f"'shape': {rng.choice(_SHAPES)}", header)
    elif kind < 4:
        descr = rng.choice(_DESCRS)
        header = re.sub(r"'descr': '[^']*'", lambda _: f"'descr': {descr}", header)
    elif kind == 4:
        header = header.replace("'fortran_order': False", "'fortran_order': True")
    else:
        header = rng.choice(("(" * 5000, "{}", "[" * 90, "1", "", "{'descr': '<f4'}", header * 2))
    encoded = header.encode("latin1", "replace")[:65000]
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(encoded))
    return _NPY_MAGIC + version + size + encoded + body


def _mutate_zip(content: bytes, rng: random.Random) -> bytes:
    """Change one member of a zip file, its name, or how it is compressed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:
        return _mutate_bytes(content, rng)
    if not members:
        return _mutate_bytes(content, rng)
    at = rng.randrange(len(members))
    name, body = members[at]
    method = rng.choice((zipfile.ZIP_STORED,) * 4 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    kind = rng.randrange(10)
    if kind == 0:
        del members[at]
    elif kind == 1:
        names = ("../../outside.npy", "/outside.npy", "W.npy", "X.npy", "x\x00y.npy", "", "a/b.npy")
        members[at] = rng.choice(names), body
    elif kind == 2:
        members.append((rng.choice(("X.npy", "extra.npy", "calibration.npz")), body))
    elif kind == 3:
        members[at] = name, bytes(20_000_000)
        method = zipfile.ZIP_DEFLATED
    else:
        members[at] = name, mutate(body, rng)
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", method) as archive:
        warnings.simplefilter("ignore")  # Of two members of one name.
        for member, values in members:
            archive.writestr(zipfile.ZipInfo(member or "x"), values, method)
    return made.getvalue()
