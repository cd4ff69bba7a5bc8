"""The manifest of a store: the names of its arrays, and what they hold."""

import collections
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from dtopk_storage.errors import DatasetError
from dtopk_storage.values import DTYPES

ATTRIBUTE = "dtopk"
FORMAT = "dtopk-store"
FORMAT_VERSION = 1
TRAIN = "train"
MOST_FEATURES = 1 << 27
"""Features of a row at most: 1 GiB in float64. What claims more is damaged, and no row of it is
given memory."""

FEATURES = "features"
LABELS = "labels"
LABEL_INDPTR = "label_indptr"
LABEL_INDICES = "label_indices"
SAMPLE_WEIGHT = "sample_weight"
ROW_ID = "row_id"
MEAN = "feature_mean"
STD = "feature_std"

Kind = Literal["multiclass", "multilabel"]
KINDS: tuple[Kind, ...] = ("multiclass", "multilabel")
ClassNameType = Literal["str", "int"]
Ranges = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the arrays of a store hold."""

    n_samples: int
    """Number of rows."""
    n_features: int
    """Number of features."""
    dtype: str
    """Of the features: float16, float32 or float64."""
    kind: Kind
    """multiclass: one label a row; multilabel: a set of labels a row."""
    class_names: tuple[str, ...]
    """Name of each class, by code."""
    class_name_type: ClassNameType
    """What the names were in the source; an int is written in decimal."""
    splits: dict[str, Ranges]
    """Row ranges [start, stop) of each split."""
    has_sample_weight: bool
    """Whether the array sample_weight is there."""
    has_row_id: bool
    """Whether the array row_id is there."""
    provenance: dict[str, object]
    """Where the rows are from and what was done to them."""

    def to_attributes(self) -> dict[str, Any]:
        """Return it as JSON values, with the format's version and a checksum."""
        fields = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **dataclasses.asdict(self),
            "n_classes": len(self.class_names),
        }
        # Through JSON and back, so that tuples are lists before the checksum is taken.
        fields = cast(dict[str, Any], json.loads(json.dumps(fields)))
        return {**fields, "checksum": checksum(fields)}


def checksum(fields: Mapping[str, Any]) -> str:
    """Take the SHA-256 of a manifest's fields.

    Parameters
    ----------
    fields : mapping
        JSON values. Its ``checksum``, if any, is left out.

    Returns
    -------
    str
        ``sha256:`` and the digest of the JSON with sorted keys and no spaces, non-ASCII
        characters escaped.
    """
    rest = {key: value for key, value in fields.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def parse_manifest(fields: Mapping[str, Any], place: str) -> Manifest:
    """Check a manifest as read.

    Parameters
    ----------
    fields : mapping
        The group's attribute ``dtopk``.
    place : str
        What to call the store in messages.

    Raises
    ------
    DatasetError
    """
    _check_version(fields, place)
    if fields.get("checksum") != checksum(fields):
        raise DatasetError(
            f"checksum of the manifest of {place} must be {checksum(fields)}, "
            f"got {fields.get('checksum')}: it was changed after it was written. Ingest it again."
        )
    names = [field.name for field in dataclasses.fields(Manifest)]
    missing = sorted(set(names) - set(fields))
    if missing:
        raise DatasetError(f"manifest of {place} must have {missing[0]!r}, got none.")
    for name in names:
        if not _TYPES[name](fields[name]):
            raise DatasetError(
                f"{name!r} in the manifest of {place} must be as dtopk writes it, got "
                f"{str(fields[name])[:100]!r}. Ingest it again."
            )
    manifest = Manifest(**{name: fields[name] for name in names})
    manifest = dataclasses.replace(
        manifest,
        class_names=tuple(manifest.class_names),
        splits={
            name: tuple((start, stop) for start, stop in ranges)
            for name, ranges in manifest.splits.items()
        },
    )
    _check_fields(manifest, place)
    return manifest


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _are_splits(value: object) -> bool:
    """Tell whether it is an object of lists of pairs of integers."""
    return isinstance(value, dict) and all(
        isinstance(ranges, list)
        and all(isinstance(pair, list) and list(map(type, pair)) == [int, int] for pair in ranges)
        for ranges in value.values()
    )


_TYPES: dict[str, Callable[[object], bool]] = {
    "n_samples": _is_size,
    "n_features": _is_size,
    "dtype": _is_text,
    "kind": _is_text,
    "class_names": _are_names,
    "class_name_type": _is_text,
    "splits": _are_splits,
    "has_sample_weight": _is_bool,
    "has_row_id": _is_bool,
    "provenance": lambda value: isinstance(value, dict),
}
"""What the value of each field must be in JSON."""


def _check_version(fields: Mapping[str, Any], place: str) -> None:
    if fields.get("format") != FORMAT:
        raise DatasetError(f"format of {place} must be {FORMAT!r}, got {fields.get('format')!r}.")
    version = fields.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DatasetError(
            f"format_version of {place} must be at most {FORMAT_VERSION}, got {version}. "
            f"A newer dtopk wrote it: update dtopk to read it."
        )
    if version != FORMAT_VERSION:
        raise DatasetError(f"format_version of {place} must be {FORMAT_VERSION}, got {version!r}.")


def _check_fields(manifest: Manifest, place: str) -> None:
    if manifest.kind not in KINDS:
        raise DatasetError(
            f"kind of {place} must be 'multiclass' or 'multilabel', got {manifest.kind!r}: "
            f"this version of dtopk does not read it."
        )
    if manifest.dtype not in DTYPES:
        raise DatasetError(
            f"dtype of {place} must be float16, float32 or float64, got {manifest.dtype!r}."
        )
    if manifest.class_name_type not in ("str", "int"):
        raise DatasetError(
            f"class_name_type of {place} must be 'str' or 'int', got {manifest.class_name_type!r}."
        )
    if manifest.n_features > MOST_FEATURES:
        raise DatasetError(
            f"n_features of {place} must be at most {MOST_FEATURES:,}, got {manifest.n_features:,}."
        )
    check_class_names(manifest.class_names, manifest.class_name_type, place)
    check_splits(manifest.splits, manifest.n_samples, place)


def is_int64(name: str) -> bool:
    """Tell whether a string is an integer of 64 bits as Python writes it: not 007, not 1_000.

    Parameters
    ----------
    name : str
    """
    digits = name.removeprefix("-")
    # No integer of 64 bits has more than 19, and Python refuses to read thousands of them.
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        return False
    return str(int(name)) == name and -(2**63) <= int(name) < 2**63


def check_class_names(class_names: Sequence[str], kind: ClassNameType, place: str) -> None:
    """Refuse fewer than two classes, two of one name, or integers that are none.

    Parameters
    ----------
    class_names : sequence of str
    kind : {'str', 'int'}
        What they were in the source.
    place : str
        What to call it in messages.
    """
    if len(class_names) < 2:
        only = f"only {class_names[0]!r}" if class_names else "none"
        raise DatasetError(f"labels of {place} must have at least 2 classes, got {only}.")
    if len(set(class_names)) < len(class_names):
        twice = collections.Counter(class_names).most_common(1)[0][0]
        raise DatasetError(f"class names of {place} must differ, got {twice!r} twice.")
    for name in class_names if kind == "int" else ():
        if not is_int64(name):
            raise DatasetError(
                f"class names of {place} must all be signed integers of 64 bits, as the "
                f"first is one, got {name!r}."
            )


def check_splits(splits: Mapping[str, Ranges], n_samples: int, place: str) -> None:
    """Refuse splits that are empty, outside the rows, or share rows; require 'train'.

    Parameters
    ----------
    splits : mapping of str to row ranges
    n_samples : int
    place : str
        What to call it in messages.
    """
    if TRAIN not in splits:
        raise DatasetError(
            f"splits of {place} must include 'train', got {sorted(splits)}. Leave rows over for it."
        )
    taken: list[tuple[int, int, str]] = []
    for name, ranges in splits.items():
        if sum(stop - start for start, stop in ranges) < 1:
            raise DatasetError(f"split {name!r} of {place} must have at least 1 row, got none.")
        for start, stop in ranges:
            if not 0 <= start < stop <= n_samples:
                raise DatasetError(
                    f"rows of split {name!r} must lie in 0:{n_samples}, "
                    f"got {start}:{stop} for {place}."
                )
            taken.append((start, stop, name))
    taken.sort()
    for (_, stop, first), (start, _, second) in itertools.pairwise(taken):
        if start < stop:
            raise DatasetError(
                f"splits of {place} must not share rows, "
                f"got row {start} in {first!r} and in {second!r}."
            )
