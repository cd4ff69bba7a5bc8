"""`dtopk predict`: the best classes of every row, written to a file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from dtopk.cli.output import answer, answer_json, json_option, tell_written
from dtopk.cli.prediction_files import check_target, open_predictions
from dtopk.cli.progress import RowProgress
from dtopk.job.scoring import TopClasses, batch_rows, check_features, widen
from dtopk.model import Model, load_model, select_topk
from dtopk_storage import FeatureStore, check_batch, open_store
from dtopk_storage.paths import AnyPath, as_path


@click.command()
@click.argument("model_path", metavar="RUN_OR_MODEL")
@click.argument("input_path", metavar="INPUT")
@click.argument("output_path", metavar="OUTPUT")
@click.option("--split", default="", help="Split of the store to predict; all rows without it.")
@click.option("--k", type=int, default=None, help="Classes of a row.  [default: 5, at most all]")
@click.option("--overwrite", is_flag=True, help="Replace predictions that are there.")
@json_option
def predict(
    model_path: str,
    input_path: str,
    output_path: str,
    split: str,
    k: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the best classes of every row to a file.

    INPUT is a feature store, or a .npy file of features on a disk. All three may be addresses in
    an object store, such as s3://bucket/top5.csv. OUTPUT ends in .csv, .parquet or .zarr;
    it has, of every row, its number and the k best classes by name with their scores. (In zarr
    the classes are codes into the attribute 'class_names'.) Where a store's rows stand in another
    order than its source's, 'row_id' has the row of the source.
    """
    model = load_model(model_path)
    k = min(5, model.n_classes) if k is None else k
    if not 1 <= k <= model.n_classes:
        raise ValueError(f"k must be between 1 and n_classes = {model.n_classes}, got {k}.")
    target, given = as_path(output_path, name="OUTPUT"), as_path(input_path, name="INPUT")
    check_target(target, given, overwrite=overwrite)
    source = _open_input(given, split, model)
    done = 0
    with (
        RowProgress("predicting") as progress,
        open_predictions(
            target, model=model, n_rows=source.n_rows, k=k, has_row_id=source.has_row_id
        ) as write,
    ):
        for part in source.parts:
            write(_find_top(model, part, k))
            done += len(part.X)
            progress(done, source.n_rows)
    tell_written(target)
    if as_json:
        answer_json({"output": output_path, "n_samples": source.n_rows, "k": k})
    else:
        answer(f"{source.n_rows:,} rows, {k} classes each")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Consecutive rows of the input."""

    start: int
    X: NDArray[Any]
    row_id: NDArray[np.int64] | None


@dataclass(frozen=True, kw_only=True)
class _Input:
    """What is predicted."""

    n_rows: int
    has_row_id: bool
    parts: Iterator[_Part]


def _open_input(path: AnyPath, split: str, model: Model) -> _Input:
    if isinstance(path, Path) and path.suffix.lower() == ".npy":
        return _open_array(path, split, model)
    if isinstance(path, Path) and not path.is_dir():
        what = "which is another file" if path.exists() else "which does not exist"
        raise ValueError(
            f"INPUT must be a feature store or a .npy file, got {str(path)!r}, {what}."
        )
    store = open_store(path)
    check_features(model, store)
    name = split or None
    return _Input(
        n_rows=store.n_samples if name is None else store.split_size(name),
        has_row_id=store.has_row_id,
        parts=_iter_store(store, name, model),
    )


def _iter_store(store: FeatureStore, split: str | None, model: Model) -> Iterator[_Part]:
    for batch in store.iter_batches(split, batch_rows(model)):
        start, stop = batch.start, batch.start + len(batch.X)
        check_batch(batch.X, batch.y, batch.weight, start=start, store=store)
        row_id = store.read_row_id(start, stop) if store.has_row_id else None
        yield _Part(start=start, X=widen(batch.X, model.W.dtype), row_id=row_id)


def _open_array(path: Path, split: str, model: Model) -> _Input:
    if split:
        raise ValueError(f"--split must be left out for a .npy file, got {split!r}.")
    X = np.load(path, mmap_mode="r", allow_pickle=False)
    if X.ndim != 2 or X.shape[1] != model.n_features or len(X) == 0 or X.dtype.kind not in "iuf":
        raise ValueError(
            f"{str(path)!r} must hold numbers of shape (n_samples, {model.n_features}), as the "
            f"model was trained on, got {X.dtype} of shape {X.shape}."
        )
    rows = batch_rows(model)
    parts = (
        _Part(start=start, X=X[start : start + rows], row_id=None)
        for start in range(0, len(X), rows)
    )
    return _Input(n_rows=len(X), has_row_id=False, parts=parts)


def _find_top(model: Model, part: _Part, k: int) -> TopClasses:
    try:
        scores = model.decision_function(part.X)
    except ValueError as error:
        raise ValueError(f"{error} Rows are counted from row {part.start} of the input.") from error
    columns = select_topk(scores, k)
    return TopClasses(
        start=part.start,
        columns=columns,
        labels=model.classes[columns],
        scores=np.take_along_axis(scores, columns, axis=1),
        row_id=part.row_id,
    )
