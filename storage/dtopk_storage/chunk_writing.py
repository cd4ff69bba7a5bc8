"""Writing a store chunk by chunk: in any order, from any process that sees its folder."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.label_rows import LabelRows
from dtopk_storage.manifest import (
    LABELS,
    MEAN,
    SAMPLE_WEIGHT,
    STD,
    TRAIN,
    Manifest,
)
from dtopk_storage.publishing import features_array, write_labels, write_manifest
from dtopk_storage.store import FeatureStore
from dtopk_storage.store_opening import open_store
from dtopk_storage.values import as_feature_dtype


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StoreChunks:
    """The arrays of a store that is being written, all in chunks of the same rows.

    It holds no open file and can be pickled. Each chunk of each array has one writer, who calls
    `ChunkedArray.write_chunk`; to write it again does no harm. The store is there once `finish` has
    been called.
    """

    folder: Path
    """Of the store to be."""
    features: ChunkedArray
    """Features of shape (n_samples, n_features)."""
    labels: ChunkedArray
    """Label codes of shape (n_samples,), int32; not written where `finish` gets the labels."""
    sample_weight: ChunkedArray | None
    """Weights of shape (n_samples,), float64; None: there are none."""

    def finish(
        self,
        *,
        n_classes: int,
        provenance: Mapping[str, object],
        label_rows: LabelRows | None = None,
    ) -> FeatureStore:
        """Write what makes a store of the chunks: all of its rows are of the split 'train'.

        The classes are called by their codes, and no mean and deviation of features are taken: both
        are NaN.

        Parameters
        ----------
        n_classes : int
        provenance : mapping
            JSON values that say where the rows are from.
        label_rows : LabelRows or None
            Labels of all rows, which make it a multilabel store. Chunks of those would not be of
            the same rows as the others. None: one label a row, in the chunks of `labels`.

        Returns
        -------
        FeatureStore
        """
        n_samples, n_features = self.features.shape
        self.features.write_metadata(("sample", "feature"))
        if label_rows is None:
            self.labels.write_metadata(("sample",))
        else:
            write_labels(self.folder, label_rows, self.features.chunk_rows)
        if self.sample_weight is not None:
            self.sample_weight.write_metadata(("sample",))
        for name in (MEAN, STD):
            unknown = _vector(self.folder / name, n_features, n_features, "float64")
            unknown.write_chunk(0, np.full(n_features, np.nan))
            unknown.write_metadata(("feature",))
        manifest = Manifest(
            n_samples=n_samples,
            n_features=n_features,
            dtype=self.features.dtype.name,
            kind="multiclass" if label_rows is None else "multilabel",
            class_names=tuple(map(str, range(n_classes))),
            class_name_type="int",
            splits={TRAIN: ((0, n_samples),)},
            has_sample_weight=self.sample_weight is not None,
            has_row_id=False,
            provenance=dict(provenance),
        )
        write_manifest(self.folder, manifest)
        return open_store(self.folder)


def plan_chunks(
    folder: Path,
    *,
    n_samples: int,
    n_features: int,
    dtype: object,
    chunk_rows: int,
    sample_weight: bool,
) -> StoreChunks:
    """Lay out a store of known size; writes nothing.

    Parameters
    ----------
    folder : Path
        Of the store to be.
    n_samples, n_features : int
        At least 1.
    dtype : str or dtype
        Of the features at rest: float16, float32 or float64.
    chunk_rows : int
        Rows in a chunk of every array.
    sample_weight : bool
        Whether every row comes with a weight.

    Returns
    -------
    StoreChunks
    """
    features = features_array(
        folder,
        shape=(n_samples, n_features),
        dtype=as_feature_dtype(dtype),
        chunk_rows=chunk_rows,
        compression="none",
    )
    rows = features.chunk_rows
    weight = _vector(folder / SAMPLE_WEIGHT, n_samples, rows, "float64") if sample_weight else None
    return StoreChunks(
        folder=folder,
        features=features,
        labels=_vector(folder / LABELS, n_samples, rows, "int32"),
        sample_weight=weight,
    )


def _vector(path: Path, n_values: int, chunk_rows: int, dtype: str) -> ChunkedArray:
    return ChunkedArray(
        path=path,
        shape=(n_values,),
        chunk_rows=chunk_rows,
        dtype=np.dtype(dtype).newbyteorder("<"),
        compression="none",
    )
