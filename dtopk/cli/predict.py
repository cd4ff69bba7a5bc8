"""`dtopk predict`: the best classes of every row, written to a file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from numpy.typing import NDArray

from dtopk.cli.output import answer, answer_json, json_option, tell_written
from dtopk.cli.prediction_files import check_target, open_predictions
from dtopk.cli.prediction_layouts import Layout, SetLayout, TopLayout
from dtopk.cli.progress import RowProgress
from dtopk.job.scoring import SetClasses, TopClasses, batch_rows, check_features, widen
from dtopk.model import Model, load_model, select_topk
from dtopk_storage import FeatureStore, check_batch, open_store
from dtopk_storage.npy_files import map_array
from dtopk_storage.paths import AnyPath, as_path

Found = TypeVar("Found", TopClasses, SetClasses)


@click.command()
@click.argument("model_path", metavar="RUN_OR_MODEL")
@click.argument("input_path", metavar="INPUT")
@click.argument("output_path", metavar="OUTPUT")
@click.option("--split", default="", help="Split of the store to predict; all rows without it.")
@click.option("--k", type=int, default=None, help="Classes of a row.  [default: 5, at most all]")
@click.option(
    "--coverage", type=float, default=None,
    help="Write sets of labels instead, which hold a row's own with this probability, such as 0.9.",
)  # fmt: skip
@click.option("--probabilities", is_flag=True, help="Write probabilities in the place of scores.")
@click.option("--overwrite", is_flag=True, help="Replace predictions that are there.")
@json_option
def predict(
    model_path: str,
    input_path: str,
    output_path: str,
    split: str,
    k: int | None,
    coverage: float | None,
    probabilities: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the best classes of every row, or sets of them, to a file.

    INPUT is a feature store, or a .npy file of features on a disk. All three may be addresses in
    an object store, such as s3://bucket/top5.csv. OUTPUT ends in .csv, .parquet or .zarr;
    it has, of every row, its number and the k best classes by name with their scores. (In zarr
    the classes are codes into the attribute 'class_names'.) Where a store's rows stand in another
    order than its source's, 'row_id' has the row of the source.

    With --coverage it has 'set_size', 'labels' and 'scores' instead, lists with the best label
    first, of no label or many: JSON in a CSV file, and in zarr one row's after another's, from
    'label_indptr' of the row on. The model must have been calibrated, with `dtopk calibrate`.
    """
    model = load_model(model_path)
    if probabilities and not model.has_probabilities:
        raise ValueError(
            f"--probabilities must be given with a model that has some, got {model_path!r}, of the "
            f"loss {model.loss!r} and not calibrated. Calibrate it with `dtopk calibrate`."
        )
    value = "probability" if probabilities else "score"
    target, given = as_path(output_path, name="OUTPUT"), as_path(input_path, name="INPUT")
    if coverage is None:
        k = min(5, model.n_classes) if k is None else k
        if not 1 <= k <= model.n_classes:
            raise ValueError(f"k must be between 1 and n_classes = {model.n_classes}, got {k}.")
    elif k is not None:
        raise click.UsageError("--k must be left out with --coverage, which sets what a row has.")
    else:
        # Refused here where it is too high, before anything is read.
        model.get_calibration().threshold(coverage)
    check_target(target, given, overwrite=overwrite)
    source = _open_input(given, split, model)
    if coverage is None:
        assert k is not None
        top = TopLayout(
            model=model, n_rows=source.n_rows, k=k, value=value, has_row_id=source.has_row_id
        )
        _write(target, top, source, partial(_find_top, model, k, probabilities))
        _tell(target, output_path, source, f"{k} classes each", {"k": k}, as_json)
        return
    sets = SetLayout(
        model=model, n_rows=source.n_rows, coverage=coverage, value=value,
        has_row_id=source.has_row_id,
    )  # fmt: skip
    n_labels = _write(target, sets, source, partial(_find_sets, model, coverage, probabilities))
    size = n_labels / source.n_rows
    fields = {"coverage": coverage, "mean_size": size}
    _tell(target, output_path, source, f"sets of {size:.2f} labels on average", fields, as_json)


def _write(
    target: AnyPath,
    layout: Layout[Found],
    source: "_Input",
    find: "Callable[[_Part], Found]",
) -> int:
    """Predict all rows; return how many labels were written."""
    done, n_labels = 0, 0
    with RowProgress("predicting") as progress, open_predictions(target, layout) as write:
        for part in source.parts:
            found = find(part)
            write(found)
            done, n_labels = done + found.n_rows, n_labels + found.labels.size
            progress(done, source.n_rows)
    return n_labels


def _tell(
    target: AnyPath,
    output_path: str,
    source: "_Input",
    what: str,
    fields: dict[str, Any],
    as_json: bool,
) -> None:
    tell_written(target)
    if as_json:
        answer_json({"output": output_path, "n_samples": source.n_rows, **fields})
    else:
        answer(f"{source.n_rows:,} rows, {what}")


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
    X = map_array(path)
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


def _find_top(model: Model, k: int, probabilities: bool, part: _Part) -> TopClasses:
    scores = _score(model, part)
    columns = select_topk(scores, k)
    values = model.score_probabilities(scores) if probabilities else scores
    return TopClasses(
        start=part.start,
        columns=columns,
        labels=model.classes[columns],
        scores=np.take_along_axis(values, columns, axis=1),
        row_id=part.row_id,
    )


def _find_sets(model: Model, coverage: float, probabilities: bool, part: _Part) -> SetClasses:
    scores = _score(model, part)
    sizes = model.get_calibration().find_sets(scores, coverage).sum(axis=1)
    values = model.score_probabilities(scores) if probabilities else scores
    # A set is the beginning of the ranking.
    order = select_topk(scores, max(1, int(sizes.max())))
    rows, places = np.nonzero(np.arange(order.shape[1]) < sizes[:, np.newaxis])
    columns = order[rows, places]
    return SetClasses(
        start=part.start,
        sizes=sizes,
        columns=columns,
        labels=model.classes[columns],
        scores=values[rows, columns],
        row_id=part.row_id,
    )


def _score(model: Model, part: _Part) -> NDArray[Any]:
    try:
        return model.decision_function(part.X)
    except ValueError as error:
        raise ValueError(f"{error} Rows are counted from row {part.start} of the input.") from error
