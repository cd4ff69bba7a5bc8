"""`dtopk predict`: the best classes of every row, written to a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from dtopk.cli.output import answer, answer_json, json_option, tell_written
from dtopk.cli.prediction_files import check_target, open_predictions
from dtopk.cli.progress import RowProgress
from dtopk.job.scoring import TopClasses, batch_rows, check_features, iter_array_batches, widen
from dtopk.model import Model, load_model, select_topk
from dtopk_storage import open_store


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

    INPUT is a feature store, or a .npy file of features. OUTPUT ends in .csv, .parquet or .zarr;
    it has, of every row, its number and the k best classes by name with their scores. (In zarr
    the classes are codes into the attribute 'class_names'.)
    """
    model = load_model(model_path)
    k = min(5, model.n_classes) if k is None else k
    if not 1 <= k <= model.n_classes:
        raise ValueError(f"k must be between 1 and n_classes = {model.n_classes}, got {k}.")
    target = Path(output_path)
    check_target(target, Path(input_path), overwrite=overwrite)
    n_rows, batches = _open_input(Path(input_path), split, model)
    done = 0
    with (
        RowProgress("predicting") as progress,
        open_predictions(target, model=model, n_rows=n_rows, k=k) as write,
    ):
        for start, X in batches:
            write(_find_top(model, start, X, k))
            done += len(X)
            progress(done, n_rows)
    tell_written(target)
    if as_json:
        answer_json({"output": output_path, "n_samples": n_rows, "k": k})
    else:
        answer(f"{n_rows:,} rows, {k} classes each")


def _open_input(
    path: Path, split: str, model: Model
) -> tuple[int, Iterator[tuple[int, NDArray[Any]]]]:
    """Count the rows of the input and open them, as batches with the number of their first row."""
    if path.suffix == ".npy":
        return _open_array(path, split, model)
    store = open_store(path)
    check_features(model, store)
    name = split or None
    n_rows = store.n_samples if name is None else store.split_size(name)
    batches = store.iter_batches(name, batch_rows(model))
    return n_rows, ((batch.start, widen(batch.X, model.W.dtype)) for batch in batches)


def _open_array(
    path: Path, split: str, model: Model
) -> tuple[int, Iterator[tuple[int, NDArray[Any]]]]:
    if split:
        raise ValueError(f"--split must be left out for a .npy file, got {split!r}.")
    X = np.load(path, mmap_mode="r", allow_pickle=False)
    if X.ndim != 2 or X.shape[1] != model.n_features or len(X) == 0 or X.dtype.kind not in "iuf":
        raise ValueError(
            f"{str(path)!r} must hold numbers of shape (n_samples, {model.n_features}), as the "
            f"model was trained on, got {X.dtype} of shape {X.shape}."
        )
    return len(X), iter_array_batches(X, batch_rows(model))


def _find_top(model: Model, start: int, X: NDArray[Any], k: int) -> TopClasses:
    try:
        scores = model.decision_function(X)
    except ValueError as error:
        raise ValueError(f"{error} Rows are counted from row {start} of the input.") from error
    columns = select_topk(scores, k)
    return TopClasses(
        start=start,
        columns=columns,
        labels=model.classes[columns],
        scores=np.take_along_axis(scores, columns, axis=1),
    )
