"""The two passes of an ingest: the plan of a store, and its chunks."""

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.checks import check_weights
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.errors import DatasetError
from dtopk_storage.ingest.assembly import ChunkAssembly
from dtopk_storage.ingest.buckets import Buckets
from dtopk_storage.ingest.inputs import Inputs
from dtopk_storage.ingest.label_reading import read_labels
from dtopk_storage.ingest.labels import read_weights
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.ingest.plan import Plan, describe_files, name_file, save_plan
from dtopk_storage.ingest.row_counters import warn_of_row_counters
from dtopk_storage.ingest.splits import arrange
from dtopk_storage.ingest.working_folder import WorkingFolder
from dtopk_storage.label_rows import LabelRows
from dtopk_storage.manifest import TRAIN, Manifest, check_class_names
from dtopk_storage.paths import AnyPath
from dtopk_storage.publishing import (
    Columns,
    check_compression,
    default_chunk_bytes,
    default_chunk_rows,
    features_array,
    finish_store,
)
from dtopk_storage.sources.base import Source, SourceFeatures, transform_features
from dtopk_storage.values import as_feature_dtype, convert_features
from dtopk_storage.wording import format_bytes, format_count
from dtopk_storage.write_behind import WriteBehind


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestProgress:
    """How far an ingest is."""

    stage: str
    """labels, shuffle or features."""
    rows: int
    """Rows that the stage is through with."""
    n_samples: int | None
    """All rows; None while they are not counted yet."""


ProgressCallback = Callable[[IngestProgress], None]


class StoreMaking:
    """One ingest: its inputs, where it writes, and how far it is.

    Parameters
    ----------
    inputs : Inputs
    origin, target : Path or ObjectPath
    work : WorkingFolder
    options : IngestOptions
    progress : callable
        Called with an `IngestProgress` as rows are done.
    """

    def __init__(
        self,
        inputs: Inputs,
        origin: AnyPath,
        target: AnyPath,
        work: WorkingFolder,
        options: IngestOptions,
        progress: ProgressCallback,
    ) -> None:
        self._inputs = inputs
        self._origin = origin
        self._target = target
        self._work = work
        self._options = options
        self._progress = progress
        self._assembly: ChunkAssembly | None = None

    @property
    def has_begun(self) -> bool:
        """Whether features are being written."""
        return self._assembly is not None

    @property
    def rows_done(self) -> int:
        """Rows of features in chunks that are on the disk, or on their way to an object store."""
        return 0 if self._assembly is None else self._assembly.rows_done

    def plan(self, command: dict[str, Any]) -> Plan:
        """Read everything but the features, and check what can be checked before those.

        Parameters
        ----------
        command : dict
            What tells the command from others, which the plan is kept with.

        Raises
        ------
        DatasetError
        """
        labels, class_names, class_name_type = read_labels(
            self._inputs.labels,
            lambda rows: self._report("labels", rows, None),
            kind=self._options.kind,
            separator=self._options.label_separator,
            class_names=self._inputs.class_names,
        )
        n_samples = len(labels)
        check_class_names(class_names, class_name_type, self._inputs.labels.place)
        rows = self._open_features()
        self._check_length("features", rows.place, rows.n_samples, n_samples)
        weights = self._read_weights(n_samples)
        place = repr(str(self._origin))
        arrangement = arrange(
            self._options,
            n_samples,
            split_names=self._inputs.split_names,
            own=self._inputs.source.splits,
            place=place,
        )
        order = arrangement.order
        manifest = Manifest(
            n_samples=n_samples,
            n_features=rows.n_features,
            dtype=self._dtype(rows).name,
            kind="multilabel" if isinstance(labels, LabelRows) else "multiclass",
            class_names=class_names,
            class_name_type=class_name_type,
            splits=arrangement.splits,
            has_sample_weight=weights is not None,
            has_row_id=order is not None,
            provenance=_provenance(self._origin, self._options, rows, self._inputs.source),
        )
        columns = Columns(
            labels=labels if order is None else labels[order],
            sample_weight=weights if weights is None or order is None else weights[order],
            row_id=order,
        )
        plan = Plan(manifest=manifest, columns=columns)
        self._check_space(manifest)
        self._work.begin()
        save_plan(self._work.path, command, plan)
        return plan

    def write(self, plan: Plan, check_source: Callable[[], None]) -> None:
        """Write the chunks of features that are missing, then the rest of the store.

        Parameters
        ----------
        plan : Plan
        check_source : callable
            Called before the store is whole; raises if what was read has changed since.
        """
        manifest = plan.manifest
        folder = self._work.store
        if isinstance(folder, Path):
            folder.mkdir(exist_ok=True)
        features = self._features(manifest, folder)
        with WriteBehind(folder, features.chunk_bytes) as behind:
            assembly = self._assembly = ChunkAssembly(features, manifest.splits[TRAIN], behind)
            if not assembly.is_done:
                if self._options.shuffle:
                    self._write_shuffled(features, assembly, plan, behind)
                else:
                    self._write_streamed(features, assembly, plan)
        check_source()
        self._work.check_held()
        finish_store(
            folder,
            features=features,
            columns=plan.columns,
            statistics=assembly.statistics,
            manifest=manifest,
        )

    def _write_streamed(self, features: ChunkedArray, assembly: ChunkAssembly, plan: Plan) -> None:
        """Read the source once and write each chunk when its rows are there."""
        n_samples = features.shape[0]
        order = plan.columns.row_id
        missing = assembly.missing_rows()
        if order is None:
            places, start = np.arange(n_samples), int(np.argmax(missing))
        else:
            places = np.empty(n_samples, np.int64)
            places[order] = np.arange(n_samples)
            start = int(order[missing].min())
        for first, X in self._blocks(features, start):
            assembly.add(X, places[first : first + len(X)])
            self._report("features", self.rows_done, n_samples)

    def _write_shuffled(
        self, features: ChunkedArray, assembly: ChunkAssembly, plan: Plan, behind: WriteBehind
    ) -> None:
        """Deal the rows to buckets, then write the chunks of each bucket."""
        n_samples, n_features = features.shape
        order = plan.columns.row_id
        assert order is not None
        buckets = Buckets(
            self._work.buckets,
            order,
            n_features=n_features,
            dtype=features.dtype,
            chunk_rows=features.chunk_rows,
        )
        if buckets.n_dealt < n_samples:
            for _, X in self._blocks(features, buckets.n_dealt):
                buckets.deal(X)
                self._report("shuffle", buckets.n_dealt, n_samples)
        for bucket in range(buckets.n_buckets):
            start, stop = buckets.rows_of(bucket)
            if not assembly.is_chunk_done(start, stop):
                assembly.add(buckets.read(bucket), np.arange(start, stop))
                self._report("features", self.rows_done, n_samples)
            behind.wait()
            buckets.discard(bucket)

    def _blocks(self, features: ChunkedArray, start: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Read the source from a row on, as the store will have it, and check its length."""
        rows = self._open_features()
        n_samples = features.shape[0]
        done = start
        for block in rows.blocks(start):
            if done + len(block) > n_samples:
                break
            if done == 0:
                warn_of_row_counters(rows, block)
            yield (
                done,
                convert_features(
                    block,
                    features.dtype,
                    divide_by=self._options.divide_by,
                    place=rows.place,
                    start=done,
                ),
            )
            done += len(block)
        else:
            self._check_length("features", rows.place, done, n_samples)
            return
        raise DatasetError(
            f"features and labels must have as many rows, got more than {n_samples} in "
            f"{rows.place} and {n_samples} in {self._inputs.labels.place}."
        )

    def _open_features(self) -> SourceFeatures:
        rows, transform = self._inputs.source.open_features(), self._options.transform
        return rows if transform is None else transform_features(rows, transform)

    def _features(self, manifest: Manifest, folder: AnyPath) -> ChunkedArray:
        dtype = as_feature_dtype(manifest.dtype)
        chunk_bytes = self._options.chunk_bytes or default_chunk_bytes(folder)
        return features_array(
            folder,
            shape=(manifest.n_samples, manifest.n_features),
            dtype=dtype,
            chunk_rows=default_chunk_rows(manifest.n_features, dtype, chunk_bytes),
            compression=check_compression(self._options.compression),
        )

    def _dtype(self, rows: SourceFeatures) -> np.dtype[Any]:
        """Return the dtype asked for, or the source's where a store can have it."""
        if self._options.dtype is not None:
            return as_feature_dtype(self._options.dtype)
        return as_feature_dtype(rows.dtype if rows.dtype.kind == "f" else "float32")

    def _read_weights(self, n_samples: int) -> NDArray[np.float64] | None:
        vector = self._inputs.weights
        if vector is None:
            return None
        weights = read_weights(vector)
        self._check_length("sample weights", vector.place, len(weights), n_samples)
        check_weights(weights, 0, vector.place)
        return weights

    def _check_length(self, what: str, place: str, got: int | None, n_samples: int) -> None:
        if got is not None and got != n_samples:
            raise DatasetError(
                f"{what} and labels must have as many rows, got {got} in {place} "
                f"and {n_samples} in {self._inputs.labels.place}."
            )

    def _check_space(self, manifest: Manifest) -> None:
        """Refuse to begin what cannot fit; how small compression makes it is not known."""
        if self._options.compression != "none":
            return
        row_bytes = manifest.n_features * as_feature_dtype(manifest.dtype).itemsize
        needed = self._work.count_needed(manifest.n_samples * row_bytes, self._options.shuffle)
        if not needed:
            return
        free = self._work.count_free()
        if needed > free:
            rows = format_count(manifest.n_samples, "row")
            raise DatasetError(
                f"free space for {str(self._target)!r} must be at least {format_bytes(needed)} "
                f"({rows} of {format_bytes(row_bytes)}"
                f"{', twice to shuffle them' if needed > manifest.n_samples * row_bytes else ''}), "
                f"got {format_bytes(free)}."
            )

    def _report(self, stage: str, rows: int, n_samples: int | None) -> None:
        self._progress(IngestProgress(stage=stage, rows=rows, n_samples=n_samples))


def _provenance(
    origin: AnyPath, options: IngestOptions, rows: SourceFeatures, source: Source
) -> dict[str, object]:
    """Say where the rows are from and what was done to them; nothing that differs by the run."""
    newest_s = describe_files(origin)["newest_ns"] / 1e9
    modified = datetime.datetime.fromtimestamp(newest_s, datetime.UTC)
    fields: dict[str, object] = {
        "source": name_file(origin),
        "source_modified": modified.isoformat(timespec="seconds"),
        "source_dtype": rows.dtype.name,
        "divide_by": options.divide_by,
        "shuffle": options.shuffle,
        "seed": options.seed,
    }
    for name, path in (
        ("labels", options.labels),
        ("weights", options.weights),
        ("split_names", options.split_names),
        ("class_names", options.class_names),
    ):
        if path is not None:
            fields[name] = name_file(path)
    if options.transform is not None:
        fields["transform"] = options.transform.key
    if rows.columns:
        fields["first_feature"], fields["last_feature"] = rows.columns[0], rows.columns[-1]
    if source.provenance:
        fields["source_provenance"] = source.provenance
    return fields
