"""A store made before, to make another one of: of other chunks, dtype, order or splits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from dtopk_storage.checks import check_labels
from dtopk_storage.manifest import LABELS, ROW_ID, SAMPLE_WEIGHT, Ranges
from dtopk_storage.paths import AnyPath
from dtopk_storage.sources.arrays import block_rows
from dtopk_storage.sources.base import (
    Block,
    ListBlock,
    Source,
    SourceFeatures,
    SourceOptions,
    Vector,
)
from dtopk_storage.sources.keys import FEATURES_ADVICE, Role, choose_key, choose_vector_key
from dtopk_storage.sources.zarr_array import ZarrSource
from dtopk_storage.store_opening import is_store, open_store


def open_zarr(path: Path, options: SourceOptions) -> Source:
    """Open a zarr folder as the store that it is, or as the arrays that it has.

    Parameters
    ----------
    path : Path
    options : SourceOptions
    """
    return StoreSource(path, options) if is_store(path) else ZarrSource(path, options)


class StoreSource(Source):
    """A store, read as its manifest says.

    Labels are names of classes, those without rows among the classes too. Sample weights and
    splits are those of the store, unless others are asked for.
    """

    def __init__(self, path: AnyPath, options: SourceOptions) -> None:
        # Other sources are files on a disk; of this one no more than its name is used.
        super().__init__(cast(Path, path), options)
        self._store = open_store(path)

    @property
    def splits(self) -> dict[str, Ranges]:
        """Row ranges of each split."""
        return self._store.splits

    @property
    def provenance(self) -> dict[str, object]:
        """Where the rows are from and what was done to them."""
        return self._store.provenance

    def open_features(self) -> SourceFeatures:
        """Open the features."""
        store = self._store
        place = repr(str(self.path))
        if self.options.features_key is not None:
            choose_key(
                self.options.features_key,
                ["features"],
                (),
                what="features",
                place=place,
                advice=FEATURES_ADVICE,
            )

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            store.expect([(start, store.n_samples)])
            while start < store.n_samples:
                stop = min((start // store.chunk_rows + 1) * store.chunk_rows, store.n_samples)
                yield store.read_features(start, stop)
                start = stop

        return SourceFeatures(
            place=place,
            n_samples=store.n_samples,
            n_features=store.n_features,
            dtype=store.dtype,
            blocks=blocks,
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open the labels, by the names of their classes, or another array by its name."""
        place = repr(str(self.path))
        usual = (LABELS,) if role == "labels" else None
        key = choose_vector_key(key, self._vectors(), role, place, usual)
        if key != LABELS:
            return Vector(place=f"{key!r} of {place}", blocks=lambda: self._read(key))
        return Vector(
            place=f"{key!r} of {place}",
            blocks=self._read_names,
            classes=self._store.classes,
            kind=self._store.kind,
        )

    def open_weights(self) -> Vector | None:
        """Open the sample weights, if there are any."""
        return self.open_vector(SAMPLE_WEIGHT, "weights") if self._store.has_sample_weight else None

    def _vectors(self) -> list[str]:
        others = [name for name in (SAMPLE_WEIGHT, ROW_ID) if name in self._store.arrays]
        return [LABELS, *others]

    def _read_names(self) -> Iterator[Block]:
        store = self._store
        for start, stop in self._ranges():
            if store.kind == "multilabel":
                rows = store.read_label_rows(start, stop)
                check_labels(rows, start=start, store=store)
                yield ListBlock(counts=rows.counts, values=store.classes[rows.indices])
            else:
                labels = store.read_labels(start, stop)
                check_labels(labels, start=start, store=store)
                yield store.classes[labels]

    def _read(self, name: str) -> Iterator[NDArray[Any]]:
        for start, stop in self._ranges():
            yield self._store.arrays[name].read(start, stop)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Cut the rows into pieces that are read at a time."""
        rows = block_rows(1, 64)
        for start in range(0, self._store.n_samples, rows):
            yield start, min(start + rows, self._store.n_samples)
