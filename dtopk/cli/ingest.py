"""`dtopk ingest`: a feature store from arrays on disk."""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
import numpy as np

from dtopk.cli.info import describe_store
from dtopk.cli.label_counts import count_labels
from dtopk.cli.output import answer_json, json_option, tell, tell_written
from dtopk.cli.progress import RowProgress
from dtopk_storage import DatasetError, FeatureStore
from dtopk_storage.compression import COMPRESSIONS
from dtopk_storage.ingest import IngestOptions, IngestProgress
from dtopk_storage.ingest import ingest as make_store
from dtopk_storage.ingest.label_reading import KIND_CHOICES
from dtopk_storage.sources.base import IndexBase, SourceOptions
from dtopk_storage.sources.formats import FORMATS
from dtopk_storage.values import DTYPES
from dtopk_storage.wording import format_count, format_names

_MIB = 1 << 20
_STAGES = {"labels": "reading labels", "shuffle": "shuffling", "features": "writing features"}


def _parse_fraction(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    with contextlib.suppress(ValueError):
        if name:
            return name, float(number)
    raise click.BadParameter(f"split must be NAME=FRACTION such as val=0.1, got {text!r}.")


def _parse_rows(text: str) -> tuple[str, int, int]:
    name, _, rows = text.partition("=")
    start, _, stop = rows.partition(":")
    with contextlib.suppress(ValueError):
        if name:
            return name, int(start), int(stop)
    raise click.BadParameter(f"rows must be NAME=START:STOP such as val=0:500, got {text!r}.")


def _each(parse: Callable[[str], Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a callback of click's that parses every value of an option."""
    return lambda context, parameter, values: tuple(parse(value) for value in values)


def _check_divisor(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not (math.isfinite(value) and value != 0):
        raise click.BadParameter(f"it must be finite and not 0, got {value}.")
    return value


def _to_bytes(context: click.Context, parameter: click.Parameter, mib: float | None) -> int | None:
    if mib is None:
        return None
    if not 1 <= mib * _MIB < math.inf:
        raise click.BadParameter(f"it must be finite and at least one byte, got {mib} MiB.")
    return int(mib * _MIB)


_path = click.Path(path_type=Path)


@click.command()
@click.argument("source")
@click.argument("store")
@click.option(
    "--format",
    "source_format",
    type=click.Choice(list(FORMATS)),
    help="Format of SOURCE, where its name does not tell.",
)
@click.option("--features-key", help="Name of the features in SOURCE. [default: X or features]")
@click.option("--labels", type=_path, help="Another file with the labels.")
@click.option(
    "--labels-key", help="Name of the labels, or a column's index. [default: y, label, ...]"
)
@click.option(
    "--kind",
    type=click.Choice(KIND_CHOICES),
    default="auto",
    show_default=True,
    help="One label a row (multiclass) or any number (multilabel); auto looks.",
)
@click.option(
    "--label-separator",
    metavar="TEXT",
    help="Between the labels of a row that are in one text, such as ';'.",
)
@click.option(
    "--class-names",
    type=_path,
    help="Another file with the names of an indicator matrix's columns, in a text one a line.",
)
@click.option(
    "--class-names-key",
    help="Name of those names. [default with --class-names: class_names, classes, ...]",
)
@click.option("--weights", type=_path, help="Another file with sample weights.")
@click.option(
    "--weights-key",
    help="Name of the sample weights. [default with --weights: sample_weight, weight, ...]",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    metavar="NAME=FRACTION",
    callback=_each(_parse_fraction),
    help="Draw a split at random; what is left is train. May be given more than once.",
)
@click.option(
    "--split-rows",
    multiple=True,
    metavar="NAME=START:STOP",
    callback=_each(_parse_rows),
    help="Make a split of rows of SOURCE, from 0, without STOP. May be given more than once.",
)
@click.option("--split-names", type=_path, help="Another file with the name of each row's split.")
@click.option(
    "--split-names-key",
    help="Name of those names. [default with --split-names: split or splits]",
)
@click.option("--shuffle", is_flag=True, help="Put the rows of each split in random order.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the random splits and the shuffling.",
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Of the features at rest. [default: the source's if it is one of these, else float32]",
)
@click.option(
    "--divide-by",
    default=1.0,
    show_default=True,
    callback=_check_divisor,
    help="Divide every feature by a number.",
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="none",
    show_default=True,
    help="none reads fastest; zstd is smallest.",
)
@click.option(
    "--chunk-mib",
    "chunk_bytes",
    type=float,
    callback=_to_bytes,
    help="Most MiB in a chunk of features. [default: 16; 4 in an object store]",
)
@click.option("--skip-column", "skip_columns", multiple=True, help="Column that is no feature.")
@click.option("--no-header", is_flag=True, help="The first line of a CSV file is a row.")
@click.option(
    "--delimiter", help="Between the columns of a CSV file. [default: comma; tab in .tsv]"
)
@click.option(
    "--n-features",
    type=click.IntRange(min=1),
    help="Of an svmlight file. [default: its largest index]",
)
@click.option(
    "--index-base",
    type=click.Choice(["auto", "0", "1"]),
    default="auto",
    show_default=True,
    help="First index of an svmlight file.",
)
@click.option("--overwrite", is_flag=True, help="Replace STORE, once the new one is whole.")
@json_option
def ingest(
    source: str,
    store: str,
    as_json: bool,
    features_key: str | None,
    skip_columns: tuple[str, ...],
    no_header: bool,
    delimiter: str | None,
    n_features: int | None,
    index_base: IndexBase,
    **options: Any,
) -> None:
    """Make a feature store from arrays on disk.

    SOURCE is a .npy, .npz, svmlight, HDF5, Parquet, CSV or zarr file, or a feature store. It is
    streamed, so it may be larger than memory. Labels may be numbers or names. A store is whole or
    absent: when the work is broken off, the same command goes on after the last whole chunk.
    Classes, weights and splits of a feature store are kept, unless others are asked for. STORE,
    and SOURCE if it is a feature store, may be in an object store: s3://bucket/features.zarr.

    Labels are looked for as y, label, labels, target or class. In a table, CSV or Parquet, all
    other columns are features. Where rows change places, by random splits or --shuffle, the array
    row_id of STORE has the row of SOURCE, from 0, that each one was.

    \b
    One file with features and labels (.npz, .h5, zarr):
      dtopk ingest features.npz features.zarr --split val=0.1 --split test=0.2
      dtopk ingest letter.npz letter.zarr --divide-by 15 \\
          --split-rows train=0:16000 --split-rows test=16000:20000
      dtopk ingest data.h5 d.zarr --features-key train/X --labels-key train/y
    \b
    A .npy file, which holds one array, so that labels are in another:
      dtopk ingest X.npy f.zarr --labels y.npy --dtype float16 --shuffle
    \b
    Tables:
      dtopk ingest table.csv t.zarr --labels-key species --skip-column id
      dtopk ingest plain.csv p.zarr --no-header --labels-key -1
      dtopk ingest table.parquet t.zarr --labels-key species --skip-column id
    \b
    svmlight:
      dtopk ingest news20.bz2 news.zarr --format svmlight --n-features 62061

    A row may have any number of labels, also none: in svmlight with commas between them; as a list
    column of Parquet; as text with a separator; or as an indicator matrix, an array of shape
    (n_samples, n_classes) of 0 and 1, whose columns are called 0, 1, 2, ... unless they are named.

    \b
    Several labels a row:
      dtopk ingest photos.csv photos.zarr --labels-key tags --label-separator ";"
      dtopk ingest yeast.svm yeast.zarr --kind multilabel
      dtopk ingest X.npy x.zarr --labels Y.npy --class-names names.txt
    """  # noqa: D301 - click wants the character, not its escape
    chosen = IngestOptions(
        reading=SourceOptions(
            features_key=features_key,
            skip_columns=skip_columns,
            header=not no_header,
            delimiter=delimiter,
            n_features=n_features,
            index_base=index_base,
        ),
        **options,
    )
    try:
        with _StageProgress() as progress:
            made = make_store(source, store, chosen, progress)
    except KeyboardInterrupt:
        tell(f"{store} is not made yet. Run the same command again to go on from here.")
        raise
    except DatasetError as error:
        # The cause stays, since the exit status depends on it.
        raise DatasetError(error.describe(_option_names())) from error.__cause__
    tell_written(made.path)
    _tell_classes_without_rows(made)
    if as_json:
        answer_json(describe_store(made.path))
        return
    sizes = ", ".join(f"{split} {made.split_size(split):,}" for split in made.splits)
    tell(
        f"{format_count(made.n_samples, 'row')} of {format_count(made.n_features, 'feature')} "
        f"({made.dtype.name}), {format_count(made.n_classes, 'class')}"
        f"{', multilabel' if made.kind == 'multilabel' else ''}; {sizes}"
    )
    _tell_columns(made)


def _tell_columns(store: FeatureStore) -> None:
    """Say which columns of a table became features."""
    first, last = (store.provenance.get(f"{end}_feature") for end in ("first", "last"))
    if first is not None:
        named = f"{first!r}" if store.n_features == 1 else f"{first!r} to {last!r}"
        tell(f"{format_count(store.n_features, 'column')} taken as features: {named}")


def _tell_classes_without_rows(store: FeatureStore) -> None:
    """Say which classes a model trained on the store cannot learn."""
    counts = count_labels(store, store.split_ranges("train"))
    absent = [store.class_names[code] for code in np.flatnonzero(counts.rows_by_class == 0)]
    if absent:
        consequence = " `dtopk train` refuses to evaluate on a split that has one."
        tell(
            f"note: split 'train' has no row of {format_count(len(absent), 'class')}: "
            f"{format_names(absent)}.{'' if store.kind == 'multilabel' else consequence}"
        )


def _option_names() -> dict[str, str]:
    """Return the options as they are typed, by their names in `IngestOptions`."""
    parameters = click.get_current_context().command.params
    return {parameter.name: parameter.opts[0] for parameter in parameters if parameter.name}


class _StageProgress:
    """Shows one stage of an ingest after the other."""

    def __init__(self) -> None:
        self._stage = ""
        self._shown = contextlib.ExitStack()
        self._rows: RowProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._shown.close()

    def __call__(self, progress: IngestProgress) -> None:
        """Show how far the ingest is."""
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._shown.close()
            label = _STAGES[progress.stage]
            # The number of rows is known once the labels are read, and no earlier.
            self._rows = None if progress.n_samples is None else RowProgress(label)
            if self._rows is None:
                tell(label)
            else:
                self._shown.enter_context(self._rows)
        if self._rows is not None and progress.n_samples is not None:
            self._rows(progress.rows, progress.n_samples)
