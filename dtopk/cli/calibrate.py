"""`dtopk calibrate`: probabilities and sets of labels, fitted on rows not trained on."""

from typing import Any

import click

from dtopk.calibration import CONFORMAL_SCORES
from dtopk.cli.calibration_tables import (
    describe_score,
    format_reliability,
    format_sets,
    summarise_reliability,
    summarise_sets,
)
from dtopk.cli.output import answer, answer_json, json_option, tell_written
from dtopk.cli.progress import RowProgress
from dtopk.job.calibration import CalibrationResult, calibrate_model
from dtopk.job.run_folder import RunFolder
from dtopk.model import Model, find_model_file, load_model
from dtopk.plots import draw_reliability, save_png
from dtopk_storage import FeatureStore, open_store


@click.command()
@click.argument("model_path", metavar="RUN_OR_MODEL")
@click.argument("store_path", metavar="[STORE]", required=False)
@click.option(
    "--split", default="val", show_default=True,
    help="Split to calibrate on, with none of the rows that were trained on.",
)  # fmt: skip
@click.option(
    "--score", type=click.Choice(list(CONFORMAL_SCORES)), default="lac", show_default=True,
    help="By what a label fits a row.",
)  # fmt: skip
@click.option("--k", type=int, help="Of raps and margin.  [default: the loss's k, or 1]")
@click.option(
    "--penalty", type=float, help="Of raps, for each place after the k-th.  [default: 0.1]"
)
@click.option(
    "--bins", "n_bins", type=click.IntRange(min=1), default=15, show_default=True,
    help="Bins of the calibration error and the figure.",
)  # fmt: skip
@json_option
def calibrate(
    model_path: str,
    store_path: str | None,
    split: str,
    score: str,
    k: int | None,
    penalty: float | None,
    n_bins: int,
    as_json: bool,
) -> None:
    """Fit probabilities and sets of labels on a split that was not trained on.

    RUN_OR_MODEL is a run folder or a model file, STORE the store that has the split, by default the
    one trained on. The model file is written anew with the calibration, which takes the place of an
    older one, and the figure reliability.png beside it. Weights and predictions stay as they are. A
    split that a sweep chose the model by is warned of. If the run or the sweep goes on later, the
    calibration is kept where the weights end up equal, and dropped otherwise.

    Probabilities are the softmax of the scores divided by a temperature, the one of the smallest
    negative log-likelihood (NLL); before, of a loss without probabilities, that of the scores
    themselves. The confidence is the probability of the class predicted, and the expected
    calibration error (ECE) how far it is from the accuracy, in bins of equal width and of equally
    many rows. Sets of labels, which `dtopk predict --coverage` writes, hold a row's label as often
    as asked for, if its rows are like those of the split:

    \b
    lac     labels of a probability above a threshold: the smallest sets
    aps     the best labels until their sum passes a threshold: never none
    raps    as aps, with a penalty for each label after the k-th
    margin  by score alone, from the k-th best on: no probabilities needed
    """  # noqa: D301 (click wants the character itself)
    model = load_model(model_path)
    store = _open_store(model, model_path, store_path)
    with RowProgress(f"calibrating on {split}") as progress:
        result = calibrate_model(
            model, store, split, score=score, k=k, penalty=penalty, progress=progress
        )
    file = find_model_file(model_path)
    result.model.save(file)
    tell_written(file)
    figure = RunFolder(path=file.parent).reliability
    bins = {
        "before": result.before.bins(n_bins),
        "calibrated": result.after.reliability.bins(n_bins),
    }
    title = f"{model.loss}: reliability on {split}, {result.after.reliability.n_rows:,} rows"
    save_png(draw_reliability(bins, title=title), figure)
    tell_written(figure)
    fields = _summarise(result, n_bins)
    if as_json:
        answer_json({"model": str(file), "store": store.path, "split": split, **fields})
    else:
        answer(_describe(result, split, fields))


def _open_store(model: Model, model_path: str, store_path: str | None) -> FeatureStore:
    if store_path is not None:
        return open_store(store_path)
    path = model.job.get("data", {}).get("store", "")
    if not path:
        raise click.UsageError(
            f"STORE must be given, since {model_path!r} does not say on which it was trained."
        )
    return open_store(path)


def _summarise(result: CalibrationResult, n_bins: int) -> dict[str, Any]:
    calibration = result.model.get_calibration()
    return {
        "n_samples": calibration.n_rows,
        "temperature": calibration.temperature,
        "score": calibration.score,
        "k": calibration.k,
        "penalty": calibration.penalty,
        "before": summarise_reliability(result.before, n_bins),
        "calibrated": summarise_reliability(result.after.reliability, n_bins),
        "sets": summarise_sets(result.after.sets),
    }


def _describe(result: CalibrationResult, split: str, fields: dict[str, Any]) -> str:
    calibration = result.model.get_calibration()
    return "\n\n".join(
        [
            f"split {split!r}: {calibration.n_rows:,} rows, temperature "
            f"{calibration.temperature:.4g}, score {describe_score(calibration)}",
            format_reliability({name: fields[name] for name in ("before", "calibrated")}),
            format_sets(fields["sets"]),
        ]
    )
