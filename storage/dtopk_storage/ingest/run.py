"""The run of an ingest, from the source to the store in its place."""

import contextlib
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
from dtopk_storage.files import is_disk_full
from dtopk_storage.ingest.assembly import ChunkAssembly
from dtopk_storage.ingest.buckets import Buckets
from dtopk_storage.ingest.label_reading import read_labels
from dtopk_storage.ingest.labels import read_weights
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.ingest.plan import (
    Plan,
    check_unchanged,
    describe_files,
    fingerprint,
    load_plan,
    name_file,
    save_plan,
)
from dtopk_storage.ingest.row_counters import warn_of_row_counters
from dtopk_storage.ingest.splits import arrange
from dtopk_storage.ingest.working_folder import PLAN, WorkingFolder, open_working_folder
from dtopk_storage.label_rows import LabelRows
from dtopk_storage.manifest import TRAIN, Manifest, check_class_names
from dtopk_storage.paths import AnyPath, PathLike
from dtopk_storage.publishing import (
    Columns,
    check_compression,
    check_target,
    default_chunk_bytes,
    default_chunk_rows,
    features_array,
    finish_store,
)
from dtopk_storage.sources.base import Source, SourceFeatures, Vector, transform_features
from dtopk_storage.sources.formats import open_source
from dtopk_storage.sources.keys import ROLE_NAMES, Role
from dtopk_storage.store import FeatureStore
from dtopk_storage.store_opening import is_store, open_store, store_path
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


def ingest(
    source: PathLike,
    path: PathLike,
    options: IngestOptions | None = None,
    progress: ProgressCallback | None = None,
) -> FeatureStore:
    """Make a store from a source.

    Two passes: one over the labels, which finds the classes, the splits and the order of the
    rows, and one over the features, which writes the chunks. The work is done in a folder
    beside the store, ``path`` with ``.partial`` after it. When it is broken off, the same
    command goes on after the last whole chunk, and the store is the same to the last byte. In an
    object store the chunks are written in their place, and the manifest last, which makes a store
    of them; the plan is at ``path`` with ``.partial`` after it.

    Memory holds 12 bytes a row, 20 when rows change places, 8 more with weights, a few chunks,
    and two buckets of 128 MiB when shuffling. Of a multilabel store it holds 24 bytes a row and 8
    a label, 40 and 20 when rows change places. Shuffling needs the size of the features on disk
    once more while it works.

    Parameters
    ----------
    source : str, path-like or ObjectPath
        A file or folder on a disk, or a store, which may be in an object store.
    path : str, path-like or ObjectPath
        Of the store to be, which may be in an object store.
    options : IngestOptions or None
    progress : callable or None
        Called with an `IngestProgress` as rows are done.

    Returns
    -------
    FeatureStore

    Raises
    ------
    DatasetError
        Of the source, or for want of room on the disk.
    """
    options = options or IngestOptions()
    origin, target = store_path(source), store_path(path)
    # Taken before anything is read, so that what changes from here on is noticed.
    command = fingerprint(origin, options)
    work = open_working_folder(target)
    work.delete_removed()
    if _is_published(work, target, command):
        with work.hold():
            # If it is not any more, the one that was at work has removed the folder, and this one
            # has made it anew.
            if _is_published(work, target, command) or not work.has_features:
                work.remove()
        return open_store(target)
    check_target(target, overwrite=options.overwrite)
    opened = _open_inputs(origin, options)
    with work.hold():
        # Another ingest may have put its store there while this one came to its turn.
        work.check_target(target, overwrite=options.overwrite)
        run = _Run(opened, origin, target, work, options, progress or (lambda _: None))
        plan = load_plan(work.path, command)
        with _keeping_what_helps(work, run):
            run.write(plan or run.plan(command), lambda: check_unchanged(origin, options, command))
        if work.store != target:
            work.check_target(target, overwrite=options.overwrite)
        work.publish()
    return open_store(target)


def _is_published(work: WorkingFolder, target: AnyPath, command: dict[str, Any]) -> bool:
    """Tell whether the same command was killed between putting its store in place and its end."""
    if not ((work.path / PLAN).is_file() and is_store(target)):
        return False
    if work.store != target and work.store.exists():
        return False
    # What another command has begun, or what is no store of this version, is spoken of later.
    with contextlib.suppress(DatasetError):
        plan = load_plan(work.path, command)
        return plan is not None and open_store(target).manifest == plan.manifest
    return False


@contextlib.contextmanager
def _keeping_what_helps(work: WorkingFolder, run: "_Run") -> Iterator[None]:
    """Keep features that are done when the disk failed; remove all when the source is wrong."""
    try:
        yield
    except DatasetError as error:
        # What is wrong in a source changes with it, and then nothing here is of use. What could
        # not be read may be readable again.
        if not (isinstance(error.__cause__, OSError) and run.has_begun):
            work.remove()
        raise
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DatasetError(
            f"no space is left for {str(work.path)!r}, after "
            f"{format_count(run.rows_done, 'row')} of features. Free some and run the same command "
            f"again: it goes on from there."
        ) from error


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Inputs:
    """What an ingest reads."""

    source: Source
    labels: Vector
    weights: Vector | None
    split_names: Vector | None
    class_names: Vector | None


def _open_inputs(origin: AnyPath, options: IngestOptions) -> _Inputs:
    """Open the source and what belongs to it, and set the columns aside that are no features."""
    source = open_source(origin, options.reading, options.source_format)

    def open_vector(path: Path | None, key: str | None, role: Role) -> Vector:
        if path is not None:
            return open_source(path, options.reading, role=role).open_vector(key, role)
        if source.has_one_array:
            raise DatasetError(
                f"{ROLE_NAMES[role]} must come from another file, since {str(origin)!r} holds "
                f"one array, got none.",
                advice=f"Name that file with {{{role}}}.",
            )
        return source.open_vector(key, role)

    inputs = _Inputs(
        source=source,
        labels=open_vector(options.labels, options.labels_key, "labels"),
        weights=(
            open_vector(options.weights, options.weights_key, "weights")
            if options.has_weights
            else source.open_weights()
        ),
        split_names=(
            open_vector(options.split_names, options.split_names_key, "split_names")
            if options.has_split_names
            else None
        ),
        class_names=(
            open_vector(options.class_names, options.class_names_key, "class_names")
            if options.has_class_names
            else None
        ),
    )
    own = [
        vector.column
        for path, vector in (
            (options.labels, inputs.labels),
            (options.weights, inputs.weights),
            (options.split_names, inputs.split_names),
        )
        if path is None and vector is not None and vector.column is not None
    ]
    skipped = (*options.reading.skip_columns, *own)
    source.options = dataclasses.replace(options.reading, skip_columns=skipped)
    return inputs


class _Run:
    """One ingest: its inputs, where it writes, and how far it is."""

    def __init__(
        self,
        inputs: _Inputs,
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
        """Read everything but the features, and check what can be checked before those."""
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
