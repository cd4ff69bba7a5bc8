"""What a reader of files is to the tests that give it damaged ones."""

import io
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Files = Mapping[str, bytes]
"""An input: the content of each file, by its path in the folder of the input."""
N, D, M = 12, 3, 3
"""Rows, features and classes of the valid inputs."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """What reads files, and what it is tried with."""

    name: str
    """Its name on the command line."""
    make_seeds: Callable[[], list[Files]]
    """Makes valid inputs."""
    read: Callable[[Path], object]
    """Reads the input in a folder; ValueError and OSError say that it is no valid one."""
    fixed: tuple[str, ...] = ()
    """Files that stay as they are."""
    repair: Callable[[str, bytes], bytes] = lambda name, content: content
    """Makes the checksums of a file right again, where it can."""


def collect(folder: Path) -> Files:
    """Read all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def draw(reader: Reader, files: Files, rng: random.Random) -> Files:
    """Change one file of an input, or leave it out.

    Parameters
    ----------
    reader : Reader
    files : mapping of str to bytes
    rng : random.Random
    """
    from tests.fuzz.mutations import mutate

    names = [name for name in files if name not in reader.fixed]
    # Metadata are few bytes, and most of what can go wrong.
    weights = [4 if name.endswith((".json", ".zarray", ".zgroup")) else 1 for name in names]
    name = rng.choices(names, weights)[0]
    if len(names) > 1 and rng.random() < 0.02:
        return {other: content for other, content in files.items() if other != name}
    changed = mutate(files[name], rng)
    if rng.random() < 0.85:
        changed = reader.repair(name, changed)
    return {**files, name: changed}


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Draw features, and labels, of the valid inputs."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, D)).astype(np.float32), np.arange(N) % M


def save_to_bytes(save: Callable[..., None], *values: Any, **named: Any) -> bytes:
    """Return what is saved to a file."""
    file = io.BytesIO()
    save(file, *values, **named)
    return file.getvalue()
