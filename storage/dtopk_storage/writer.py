"""Writing a store from rows that come one block after the other."""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtopk_storage.checks import check_weights
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.errors import DatasetError
from dtopk_storage.given_labels import GivenLabels, LabelReader
from dtopk_storage.label_rows import LabelRows, Labels
from dtopk_storage.manifest import (
    FEATURES,
    KINDS,
    TRAIN,
    ClassNameType,
    Kind,
    Manifest,
    Ranges,
    check_class_names,
    check_splits,
)
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath, PathLike, delete_tree
from dtopk_storage.publishing import (
    Columns,
    check_compression,
    check_target,
    default_chunk_bytes,
    default_chunk_rows,
    delete_store,
    finish_store,
    publish,
)
from dtopk_storage.replacement import (
    NEW,
    REPLACED,
    delete_leftovers,
    hold_writers_folder,
    put_back,
    restore_replaced,
)
from dtopk_storage.statistics import FeatureStatistics
from dtopk_storage.store import FeatureStore
from dtopk_storage.store_opening import open_store, store_path
from dtopk_storage.values import as_feature_dtype, convert_features
from dtopk_storage.write_behind import WriteBehind

logger = logging.getLogger(__name__)


class StoreWriter:
    """A store being written; made by `create_store`.

    Rows are appended in order and the store appears at `finish`, whole. As a context manager
    it finishes at the end of the block, and leaves nothing behind when the block fails.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        features: ChunkedArray,
        kind: Kind,
        class_names: tuple[str, ...],
        class_name_type: ClassNameType,
        has_sample_weight: bool,
        provenance: Mapping[str, object],
        overwrite: bool,
        holding: contextlib.ExitStack,
    ) -> None:
        self._path = path
        self._place = repr(str(path))
        self._folder: AnyPath = features.path.parent
        self._features = features
        self._kind = kind
        self._class_names = class_names
        self._class_name_type = class_name_type
        self._has_sample_weight = has_sample_weight
        self._provenance = dict(provenance)
        self._overwrite = overwrite
        self._holding = holding
        self._statistics = FeatureStatistics(features.shape[1])
        self._splits: dict[str, list[tuple[int, int]]] = {}
        self._label_reader = LabelReader(len(class_names), self._place)
        self._codes: list[NDArray[np.int32]] = []
        self._label_rows: list[LabelRows] = []
        self._weights: list[NDArray[np.float64]] = []
        self._buffer = np.empty((features.chunk_rows, features.shape[1]), features.dtype)
        self._behind = WriteBehind(features.path, features.chunk_bytes)
        self._n_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception_type is None:
            self.finish()
        else:
            self.abort()

    def append(
        self,
        X: NDArray[Any],
        y: GivenLabels,
        *,
        split: str = TRAIN,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Append rows.

        Parameters
        ----------
        X : ndarray of shape (rows, n_features), any real dtype
            Converted to the dtype of the store.
        y : array-like of shape (rows,), int
            Label codes in 0:n_classes. Of a multilabel store: an indicator matrix, ndarray of
            shape (rows, n_classes) of zeros and ones; or a sequence with the codes of each row, in
            any order; or LabelRows.
        split : str
            The split that the rows belong to.
        sample_weight : array-like of shape (rows,), float, or None
            Given exactly when the store was created with them.

        Raises
        ------
        DatasetError
            Nothing of these rows is written then.
        """
        place = f"rows {self._n_rows}:{self._n_rows + len(X)} for {self._place}"
        labels, weights = self._check_columns(X, y, sample_weight, place)
        converted = convert_features(
            X, self._features.dtype, divide_by=1, place=self._place, start=self._n_rows
        )
        if split == TRAIN and len(X):
            self._statistics.add(converted)
        if isinstance(labels, LabelRows):
            self._label_rows.append(labels)
        else:
            self._codes.append(labels)
        self._weights.append(weights)
        self._write(converted)
        self._extend_split(split, len(X))

    def finish(self) -> FeatureStore:
        """Write the rest and put the store in its place.

        Returns
        -------
        FeatureStore
        """
        try:
            self._finish()
            if self._folder != self._path:
                check_target(self._path, overwrite=self._overwrite)
            publish(self._folder, self._path)
        except BaseException:
            self.abort()
            raise
        self._remove()
        return open_store(self._path)

    def abort(self) -> None:
        """Remove what was written, once a store that made room for it is back in its place."""
        self._behind.abandon()
        if self._folder == self._path:
            delete_tree(self._folder)
        else:
            self._remove()

    def _remove(self) -> None:
        """Remove the writer's own folder, unless it has the only store."""
        if not (isinstance(self._path, Path) and isinstance(self._folder, Path)):
            return
        replaced = self._folder.with_name(REPLACED)
        with self._holding:
            try:
                put_back(replaced, self._path)
            except OSError as error:
                if replaced.exists():
                    logger.warning(
                        "store %s could not be put back, and is in %r: %s. The next that writes "
                        "the store tries it again.", self._place, str(replaced), error
                    )  # fmt: skip
                    return
            delete_tree(self._folder.parent)

    def _finish(self) -> None:
        """Write all that is not on the disk yet."""
        splits: dict[str, Ranges] = {name: tuple(rows) for name, rows in self._splits.items()}
        check_splits(splits, self._n_rows, self._place)
        features = self._flush()
        columns = Columns(
            labels=(
                LabelRows.concatenate(self._label_rows)
                if self._kind == "multilabel"
                else np.concatenate(self._codes)
            ),
            sample_weight=np.concatenate(self._weights) if self._has_sample_weight else None,
            row_id=None,
        )
        manifest = Manifest(
            n_samples=self._n_rows,
            n_features=features.shape[1],
            dtype=features.dtype.name,
            kind=self._kind,
            class_names=self._class_names,
            class_name_type=self._class_name_type,
            splits=splits,
            has_sample_weight=self._has_sample_weight,
            has_row_id=False,
            provenance=self._provenance,
        )
        finish_store(
            self._folder,
            features=features,
            columns=columns,
            statistics=self._statistics,
            manifest=manifest,
        )

    def _check_columns(
        self, X: NDArray[Any], y: GivenLabels, sample_weight: ArrayLike | None, place: str
    ) -> tuple[Labels, NDArray[np.float64]]:
        if X.ndim != 2 or X.shape[1] != self._features.shape[1]:
            raise DatasetError(
                f"X must have shape (rows, {self._features.shape[1]}), got {X.shape} in {place}."
            )
        labels: Labels
        if self._kind == "multilabel":
            labels = self._label_reader.read_rows(y, len(X), self._n_rows)
        else:
            labels = self._label_reader.read_codes(y, len(X), self._n_rows)
        if (sample_weight is not None) != self._has_sample_weight:
            wanted = "given" if self._has_sample_weight else "left out"
            raise DatasetError(f"sample_weight must be {wanted}, as at the start, in {place}.")
        weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        if weight.shape != (len(X),):
            raise DatasetError(
                f"sample_weight must have as many rows as X, "
                f"got {len(X)} in X and {weight.size} in sample_weight in {place}."
            )
        check_weights(weight, self._n_rows, self._place)
        return labels, weight

    def _write(self, X: NDArray[Any]) -> None:
        """Copy rows into the open chunk, and write each chunk that they fill."""
        done = 0
        while done < len(X):
            filled = self._n_rows % len(self._buffer)
            rows = min(len(X) - done, len(self._buffer) - filled)
            self._buffer[filled : filled + rows] = X[done : done + rows]
            done += rows
            self._n_rows += rows
            if filled + rows == len(self._buffer):
                chunk = self._n_rows // len(self._buffer) - 1
                self._grown().write_chunk(chunk, self._buffer, behind=self._behind)
                if self._behind.is_behind:
                    self._buffer = np.empty_like(self._buffer)

    def _extend_split(self, split: str, rows: int) -> None:
        ranges = self._splits.setdefault(split, [])
        start = self._n_rows - rows
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        if rows:
            ranges.append((start, self._n_rows))

    def _grown(self) -> ChunkedArray:
        """Return the features with the rows that came so far."""
        return dataclasses.replace(self._features, shape=(self._n_rows, self._features.shape[1]))

    def _flush(self) -> ChunkedArray:
        """Write the last chunk; a single one is made no larger than its rows."""
        features = self._grown()
        rest = self._n_rows % len(self._buffer)
        if self._n_rows < len(self._buffer):
            features = dataclasses.replace(features, chunk_rows=self._n_rows)
        if rest:
            features.write_chunk(features.n_chunks - 1, self._buffer[:rest], behind=self._behind)
        self._behind.wait()
        return features


def create_store(
    path: PathLike,
    *,
    n_features: int,
    class_names: Sequence[str] | Sequence[int],
    kind: Kind = "multiclass",
    dtype: object = "float32",
    chunk_rows: int | None = None,
    compression: str = "none",
    sample_weight: bool = False,
    provenance: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> StoreWriter:
    """Begin a store to which rows are appended in order.

    The rows need not be in memory together, nor counted before. They are written to a folder
    beside `path`, which takes its place when the store is finished. In an object store they are
    written where they are to be, by one writer at a time, and are a store when the manifest is
    there too, which is written last.

    Parameters
    ----------
    path : str, path-like or ObjectPath
        Folder of the store to be, or its address in an object store.
    n_features : int
    class_names : sequence of str or of int
        Name of each class, by code.
    kind : {'multiclass', 'multilabel'}
        Whether a row has one label, or any number of them.
    dtype : str or dtype
        Of the features at rest: float16, float32 or float64.
    chunk_rows : int or None
        Rows in a chunk of features. None gives chunks of 16 MiB, in an object store of 4.
    compression : str
        Of the features: none, lz4 or zstd.
    sample_weight : bool
        Whether every row comes with a weight.
    provenance : mapping or None
        JSON values that say where the rows are from.
    overwrite : bool
        Replace a store that is at `path`, once the new one is whole; in an object store, as soon
        as the new one is begun.

    Returns
    -------
    StoreWriter
    """
    target = store_path(path)
    restore_replaced(target)
    check_target(target, overwrite=overwrite)
    stored = as_feature_dtype(dtype)
    if n_features < 1:
        raise ValueError(f"n_features must be at least 1, got {n_features}.")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}.")
    if kind not in KINDS:
        raise ValueError(f"kind must be 'multiclass' or 'multilabel', got {kind!r}.")
    names = tuple(str(name) for name in class_names)
    name_type: ClassNameType = "str" if class_names and isinstance(class_names[0], str) else "int"
    check_class_names(names, name_type, repr(str(path)))
    codec = check_compression(compression)
    holding = contextlib.ExitStack()
    folder = _make_folder(target, holding)
    return StoreWriter(
        target,
        features=ChunkedArray(
            path=folder / FEATURES,
            shape=(0, n_features),
            chunk_rows=chunk_rows
            or default_chunk_rows(n_features, stored, default_chunk_bytes(target)),
            dtype=stored,
            compression=codec,
        ),
        kind=kind,
        class_names=names,
        class_name_type=name_type,
        has_sample_weight=sample_weight,
        provenance=provenance or {},
        overwrite=overwrite,
        holding=holding,
    )


def _make_folder(target: AnyPath, holding: contextlib.ExitStack) -> AnyPath:
    """Make the folder that a store is written in, with nothing in it, and hold it."""
    if isinstance(target, ObjectPath):
        delete_store(target)
        return target
    delete_leftovers(target)
    folder = holding.enter_context(hold_writers_folder(target)) / NEW
    folder.mkdir()
    return folder
