"""What an ingest reads: the source, and what belongs to its rows."""

import dataclasses
from pathlib import Path

from dtopk_storage.errors import DatasetError
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.paths import AnyPath
from dtopk_storage.sources.base import Source, Vector
from dtopk_storage.sources.formats import open_source
from dtopk_storage.sources.keys import ROLE_NAMES, Role


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Inputs:
    """What an ingest reads."""

    source: Source
    """The features, and what its file has beside them."""
    labels: Vector
    """Labels of every row."""
    weights: Vector | None
    """Sample weight of every row; None: 1 each."""
    split_names: Vector | None
    """Name of every row's split; None: the options say how rows are split."""
    class_names: Vector | None
    """Name of every class, by the column of an indicator matrix or by code."""


def open_inputs(origin: AnyPath, options: IngestOptions) -> Inputs:
    """Open the source and what belongs to it, and set the columns aside that are no features.

    Parameters
    ----------
    origin : Path or ObjectPath
    options : IngestOptions

    Raises
    ------
    DatasetError
    """
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

    inputs = Inputs(
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
