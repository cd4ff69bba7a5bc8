"""Rows on their way from arrays into a store that lasts as long as a fit.

Whoever holds some rows writes them as chunks of that store: workers those of dask arrays, this
process those of its own arrays. So no row passes through the scheduler, and none through a process
that has no use for it.
"""

import asyncio
import contextlib
import functools
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from dtopk.launch.workers import ask_workers
from dtopk_storage import FeatureStore
from dtopk_storage.chunk_writing import StoreChunks, plan_chunks
from dtopk_storage.files import write_atomic
from dtopk_storage.publishing import DEFAULT_CHUNK_BYTES, default_chunk_rows
from dtopk_storage.values import first_nonfinite

if TYPE_CHECKING:
    from dtopk.launch import Client

Array = NDArray[Any]

_PREFIX = "dtopk-spool-"
_MARKER = "in-use"
"""File in a spool's folder for as long as the spool is wanted."""
_MOST_ROWS = 1 << 14
"""Rows in a chunk at most: duals are streamed chunk by chunk too, and have a number a class."""
_SIGHT_S = 10.0
"""What another host has just written may take some seconds to be seen."""
_LOOK_S = 0.25
_NUMBERS = "biuf"
_TEXTS = "UOT"
"""Kinds of the types that labels may be of."""


@contextlib.contextmanager
def open_spool(parent: str | os.PathLike[str] | None, client: "Client | None") -> Iterator[Path]:
    """Give a folder that every worker sees; it goes in the end, with all that is in it.

    Parameters
    ----------
    parent : path-like or None
        Where to make it; None: Dask's temporary directory, or else the system's.
    client : distributed.Client or None
        Of the workers; None: there are none.

    Yields
    ------
    Path

    Raises
    ------
    ValueError
        If there is no such parent, or a worker does not see the folder.
    """
    place = Path(_default_parent() if parent is None else parent).absolute()
    if not place.is_dir():
        raise ValueError(f"spool_dir must be an existing folder, got {str(place)!r}.")
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    marker = root / _MARKER
    try:
        marker.touch()
        if client is not None:
            _check_sight(client, root, given=parent is not None)
        yield root
    finally:
        # In this order: a task that still runs then removes what it writes after this.
        marker.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)


def _default_parent() -> str:
    # Imported here: Dask takes most of a second. Where a spool is wanted it has been imported.
    import dask.config

    return dask.config.get("temporary-directory", None) or tempfile.gettempdir()


def _check_sight(client: "Client", root: Path, *, given: bool) -> None:
    for worker, fault in ask_workers(client, functools.partial(_name_fault, root)).items():
        # A worker that does not answer has gone since.
        if not fault or isinstance(fault, OSError):
            continue
        need = "be a folder that every worker sees" if given else "be given for these workers"
        raise ValueError(
            f"spool_dir must {need}, got {str(root.parent)!r}{'' if given else ' by default'}, in "
            f"which the worker {worker} does not find what is here: {str(fault).rstrip('.')}. Name "
            "a folder that all hosts have under the same name and may write to."
        )


async def _name_fault(root: Path) -> str:
    """Say what is wrong with a spool as a worker sees it; empty: nothing."""
    try:
        for _ in range(round(_SIGHT_S / _LOOK_S)):
            if (root / _MARKER).exists():
                break
            await asyncio.sleep(_LOOK_S)
        (root / _MARKER).stat()
        probe = root / f"probe-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return str(error)
    return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Spool:
    """The rows of a fit, which come in chunk by chunk and in any order.

    It can be pickled, and used from any process that sees its folder.
    """

    root: Path
    """Made by `open_spool`."""
    chunks: StoreChunks
    """The store that they become."""

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return self.chunks.features.n_chunks

    @property
    def chunk_rows(self) -> int:
        """Rows in each chunk but the last."""
        return self.chunks.features.chunk_rows

    def rows_of(self, chunk: int) -> tuple[int, int]:
        """First row of a chunk and the row after its last.

        Parameters
        ----------
        chunk : int
        """
        return self.chunks.features.rows_of(chunk)

    def put_features(self, values: object, chunk: int) -> None:
        """Take in the features of a chunk.

        Parameters
        ----------
        values : ndarray of shape (rows, n_features), of a type that numbers can be made of
        chunk : int

        Raises
        ------
        ValueError, TypeError
            If they are none; names the row of the first that is NaN or infinite.
        """
        features = self.chunks.features
        start, stop = self.rows_of(chunk)
        given = _take("X", values, (stop - start, features.shape[1]), start)
        with np.errstate(over="ignore", invalid="ignore"):
            X = np.ascontiguousarray(given, dtype=features.dtype)
        found = first_nonfinite(X)
        if found is not None:
            raise ValueError(
                f"X must be finite in {features.dtype.name}, got {given[found]} in row "
                f"{start + found[0]}, column {found[1]}."
            )
        with self._writing():
            features.write_chunk(chunk, X)

    def put_labels(self, values: object, chunk: int) -> None:
        """Take in the labels of a chunk, of whatever classes it has.

        Parameters
        ----------
        values : ndarray of shape (rows,), of whole numbers or strings
        chunk : int

        Raises
        ------
        ValueError, TypeError
            If they are none; names the row of the first that is not.
        """
        start, stop = self.rows_of(chunk)
        labels = _check_labels(_take("y", values, (stop - start,), start), start)
        names, codes = np.unique(labels, return_inverse=True)
        file = io.BytesIO()
        np.savez(file, names=names, codes=codes.astype(np.int32))
        with self._writing():
            write_atomic(self._label_file(chunk), [file.getvalue()], durable=False)

    def put_weight(self, values: object, chunk: int) -> None:
        """Take in the sample weights of a chunk.

        Parameters
        ----------
        values : ndarray of shape (rows,), of numbers
        chunk : int

        Raises
        ------
        ValueError, TypeError
            If they are none; names the row of the first that is negative or not finite.
        """
        assert self.chunks.sample_weight is not None
        start, stop = self.rows_of(chunk)
        given = _take("sample_weight", values, (stop - start,), start)
        weight = given.astype(np.float64)
        wrong = ~(np.isfinite(weight) & (weight >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"sample_weight must be finite and at least 0, got {given[row]} in row "
                f"{start + row}."
            )
        with self._writing():
            self.chunks.sample_weight.write_chunk(chunk, weight)

    def finish(self) -> tuple[FeatureStore, Array]:
        """Give the classes numbers, and make a store of what has come in.

        Returns
        -------
        store : FeatureStore
            Its classes are called by their codes.
        classes : ndarray of shape (n_classes,)
            The labels, sorted, as `numpy.unique` has those of all rows.

        Raises
        ------
        ValueError
            If some labels are numbers and others strings, or all are the same.
        """
        classes = self._merge_classes()
        for chunk in range(self.n_chunks):
            names, codes = self._read_labels(chunk)
            self.chunks.labels.write_chunk(
                chunk, np.searchsorted(classes, names).astype(np.int32)[codes]
            )
        if len(classes) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data "
                f"contains only one class: {classes.tolist()[0]!r}."
            )
        provenance = {"source": "arrays of a fit", "temporary": True}
        return self.chunks.finish(n_classes=len(classes), provenance=provenance), classes

    def _merge_classes(self) -> Array:
        """Return all names of classes; holds those of one chunk beside them."""
        classes, _ = self._read_labels(0)
        for chunk in range(1, self.n_chunks):
            names, _ = self._read_labels(chunk)
            if (names.dtype.kind == "U") != (classes.dtype.kind == "U"):
                raise ValueError(
                    f"y must hold numbers or strings throughout, got {classes.tolist()[0]!r} in "
                    f"row 0 or after it, and {names.tolist()[0]!r} in row {self.rows_of(chunk)[0]} "
                    "or after it."
                )
            classes = np.union1d(classes, names)
        return classes

    def _label_file(self, chunk: int) -> Path:
        return self.root / "labels" / f"{chunk}.npz"

    def _read_labels(self, chunk: int) -> tuple[Array, NDArray[np.int32]]:
        with np.load(self._label_file(chunk)) as file:
            return file["names"], file["codes"]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Write into the folder only while it is wanted, and leave nothing in it later.

        To write makes folders that are not there. This may be a worker that came late and does not
        see the folder, or a task that goes on after its fit has failed.
        """
        self._check_wanted()
        try:
            yield
        finally:
            if not self._is_wanted():
                shutil.rmtree(self.root, ignore_errors=True)
        self._check_wanted()

    def _is_wanted(self) -> bool:
        try:
            # To open it asks the file server, where its name alone may be remembered for a while.
            with (self.root / _MARKER).open("rb"):
                return True
        except OSError:
            return False

    def _check_wanted(self) -> None:
        if not self._is_wanted():
            raise ValueError(
                f"spool_dir must be a folder that every worker sees, got {str(self.root.parent)!r},"
                f" in which {self.root.name!r} is not there, or no longer."
            )


def plan_spool(
    root: Path,
    *,
    n_samples: int,
    n_features: int,
    dtype: object,
    sample_weight: bool,
    n_parts: int,
) -> Spool:
    """Lay out a spool, and see whether there is room for it.

    Parameters
    ----------
    root : Path
        Made by `open_spool`.
    n_samples, n_features : int
    dtype : dtype
        Of the features: float16, float32 or float64.
    sample_weight : bool
        Whether every row comes with a weight.
    n_parts : int
        Chunks to make, at least, so that each of so many workers has some.

    Returns
    -------
    Spool

    Raises
    ------
    ValueError
        If there is not the room.
    """
    wanted = np.dtype(cast(Any, dtype))
    rows = default_chunk_rows(n_features, wanted, DEFAULT_CHUNK_BYTES)
    chunks = plan_chunks(
        root / "store",
        n_samples=n_samples,
        n_features=n_features,
        dtype=wanted,
        chunk_rows=max(min(rows, _MOST_ROWS, n_samples // n_parts), 1),
        sample_weight=sample_weight,
    )
    needed = n_samples * (n_features * wanted.itemsize + 8 + 8 * sample_weight)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise ValueError(
            f"spool_dir must have room for {needed:,} bytes ({n_samples:,} x {n_features:,} "
            f"{wanted.name}, labels and weights), got {free:,} that are free in "
            f"{str(root.parent)!r}. Name a folder on a larger disk."
        )
    return Spool(root=root, chunks=chunks)


def _take(name: str, values: object, shape: tuple[int, ...], start: int) -> Array:
    """Refuse what is no plain array of the size that was told."""
    if not isinstance(values, np.ndarray):
        raise TypeError(
            f"{name} must be made of NumPy arrays, got a {type(values).__name__} for the rows from "
            f"{start} on."
        )
    if values.shape != shape:
        raise ValueError(
            f"{name} must have blocks of the shapes that it says, got {values.shape} instead of "
            f"{shape} for the rows from {start} on. Correct its chunks."
        )
    return values


def check_label_type(dtype: np.dtype[Any]) -> None:
    """Refuse labels that are neither numbers nor strings, by their type.

    Parameters
    ----------
    dtype : dtype

    Raises
    ------
    ValueError
    """
    if dtype.kind not in _NUMBERS + _TEXTS:
        raise ValueError(f"y must hold whole numbers or strings, got the type {dtype}.")


def _check_labels(labels: Array, start: int) -> Array:
    """Return labels as numbers or as strings of a fixed width."""
    check_label_type(labels.dtype)
    if labels.dtype.kind == "O":
        wrong = np.array([not isinstance(label, str) for label in labels], dtype=bool)
    elif labels.dtype.kind == "f":
        wrong = ~np.isfinite(labels) | (np.trunc(labels) != labels)
    else:
        wrong = np.zeros(len(labels), dtype=bool)
    if wrong.any():
        row = int(np.argmax(wrong))
        what = "strings throughout" if labels.dtype.kind == "O" else "whole numbers"
        raise ValueError(f"y must hold {what}, got {labels[row]!r} in row {start + row}.")
    return labels.astype(np.str_) if labels.dtype.kind in _TEXTS else labels
