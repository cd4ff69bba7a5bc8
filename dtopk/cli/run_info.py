"""What `dtopk info` says of run folders and model files."""

import dataclasses
import shlex
from typing import Any

from dtopk.cli.output import format_facts, tell
from dtopk.cli.progress import RowProgress
from dtopk.cli.train_progress import format_time
from dtopk.job import load_job
from dtopk.job.calibration import list_trained
from dtopk.job.run_folder import RunFolder
from dtopk.job.verification import read_result, verify_run
from dtopk.losses import what_is_certified
from dtopk.model import Model, load_model
from dtopk_storage.paths import as_path


def describe_run(path: str, *, verify: bool) -> dict[str, Any]:
    """Collect what there is to say about a run, and recompute its certificate if asked.

    Parameters
    ----------
    path : str
    verify : bool

    Returns
    -------
    dict
        Values that JSON has; ``kind`` is 'run'. Of a run that did not come to its end it has no
        certificate; ``state`` says how far a run is that can go on.
    """
    folder = RunFolder(path=as_path(path, name="run"))
    job = load_job(folder.job)
    fields: dict[str, Any] = {
        "kind": "run",
        "path": path,
        "finished": folder.result.is_file(),
        "store": job.data.store,
        "C": job.model.C,
        "files": [file.name for file in folder.list_written()],
        "verified": verify,
    }
    if fields["finished"]:
        fields |= read_result(folder)
    done = folder.find_checkpoint()
    fields["resumable"] = done is not None or folder.starts_again()
    fields["state"] = None if done is None else dataclasses.asdict(done)
    if verify:
        with RowProgress(f"verifying {path}") as progress:
            certificate = verify_run(path, progress)
        fields["recomputed"] = {
            "primal": certificate.primal,
            "dual": certificate.dual_value,
            "relative_gap": certificate.relative_gap,
            "certified": certificate.certified,
        }
        tell(f"{path} is as its result says: primal and dual, computed anew in float64, agree.")
    return fields


def describe_model(path: str, *, verify: bool) -> dict[str, Any]:
    """Collect what there is to say about a model file.

    Parameters
    ----------
    path : str
    verify : bool

    Returns
    -------
    dict
        Values that JSON has; ``kind`` is 'model'.
    """
    if verify:
        raise ValueError(
            f"--verify must be given with a store or a run folder, got the file {path!r}, whose "
            "certificate takes the duals and rows too."
        )
    model = load_model(path)
    certificate = dict(model.certificate)
    if "dual_value" in certificate:
        certificate["dual"] = certificate.pop("dual_value")
    return {
        "kind": "model",
        "path": path,
        "loss": model.loss,
        "loss_parameters": dict(model.loss_parameters),
        "n_features": model.n_features,
        "n_classes": model.n_classes,
        "class_names": [str(name) for name in model.classes.tolist()],
        "dtype": model.W.dtype.name,
        "has_intercept": bool(model.intercept.any()),
        "centered": model.feature_mean is not None,
        "scaled": model.feature_scale is not None,
        "has_probabilities": model.has_probabilities,
        "calibration": _describe_calibration(model),
        "target": model.target,
        "threshold": model.threshold if model.target == "multilabel" else None,
        "trained_on": list(list_trained(model)),
        "chosen_on": model.chosen_on or None,
        "certificate": certificate,
    }


def _describe_calibration(model: Model) -> dict[str, Any] | None:
    calibration = model.calibration
    if calibration is None:
        return None
    return {
        "temperature": calibration.temperature,
        "score": calibration.score,
        "k": calibration.k,
        "penalty": calibration.penalty,
        "n_samples": calibration.n_rows,
        **calibration.source,
    }


def _format_state(state: dict[str, Any], path: str) -> str:
    return (
        f"of {format_time(state['saved'])}, after epoch {state['epochs']}; to go on: "
        f"dtopk train --resume {shlex.quote(path)}"
    )


def format_run(fields: dict[str, Any]) -> str:
    """Lay out a run's description for reading."""
    facts = {
        "run": fields["path"],
        "store": fields["store"],
        "files": ", ".join(fields["files"]),
    }
    if fields["state"] is not None:
        facts["state"] = _format_state(fields["state"], fields["path"])
    if not fields["finished"]:
        return format_facts(facts | {"result": "none: it did not come to its end"})
    facts |= {
        "loss": _format_loss(fields["loss"], {"C": fields["C"], **fields["loss_parameters"]}),
        "trained on": f"{fields['n_samples']:,} rows, {fields['n_features']:,} features, "
        f"{fields['n_classes']:,} classes",
        "training": f"{fields['epochs']:,} epochs, {fields['seconds']:.1f} s, stopped by "
        f"{fields['stop_reason']}",
        **_certificate_facts(fields, fields["loss"]),
    }
    if fields.get("early_stopping"):
        facts["early stopping"] = describe_early_stopping(fields["early_stopping"])
    for split, by_k in fields["top_k_accuracy"].items():
        shown = [f"top-{k} {100 * by_k[k]:.2f}%" for k in ("1", "5", "10") if k in by_k]
        facts[f"accuracy on {split}"] = ", ".join(shown)
    for split, metrics in fields.get("label_metrics", {}).items():
        facts[f"labels on {split}"] = (
            f"mean average precision {_number(metrics['mean_average_precision'])}, rank loss "
            f"{_number(metrics['rank_loss'])}, F1 by row {_number(metrics['f1_samples'])} at a "
            f"threshold of {metrics['threshold']:.6g}"
        )
    if fields.get("n_skipped"):
        facts["left out"] = f"{fields['n_skipped']:,} rows with none of the labels, or all"
    if fields["verified"]:
        facts["recomputed gap"] = f"{fields['recomputed']['relative_gap']:.3e}"
    return format_facts(facts)


def describe_early_stopping(fields: dict[str, Any]) -> str:
    """Describe where the validation metric was best.

    Parameters
    ----------
    fields : dict
        As `TrainResult.early_stopping`, not empty.
    """
    if fields["best_value"] is None:
        return f"{fields['metric']} never was a number"
    return (
        f"{fields['metric']} was best after epoch {fields['best_epoch']}, "
        f"{fields['best_value']:.4f} (patience {fields['patience']})"
    )


def format_model(fields: dict[str, Any]) -> str:
    """Lay out a model's description for reading."""
    certificate = fields["certificate"]
    facts = {
        "model": fields["path"],
        "loss": _format_loss(fields["loss"], fields["loss_parameters"]),
        "features": f"{fields['n_features']:,}"
        + ", centered" * fields["centered"]
        + ", scaled" * fields["scaled"],
        "classes": f"{fields['n_classes']:,}",
        "weights": fields["dtype"] + ", with intercept" * fields["has_intercept"],
        "probabilities": "yes" if fields["has_probabilities"] else "no",
    }
    if fields["target"] == "multilabel":
        facts["labels"] = f"several a row, those that score more than {fields['threshold']:.6g}"
    if fields["trained_on"]:
        chosen = f"; chosen on {fields['chosen_on']}" if fields["chosen_on"] else ""
        facts["trained on"] = ", ".join(fields["trained_on"]) + chosen
    if fields["calibration"] is not None:
        facts["calibration"] = _format_calibration(fields["calibration"])
    if certificate:
        facts |= _certificate_facts(certificate, fields["loss"])
    return format_facts(facts)


def _format_calibration(fields: dict[str, Any]) -> str:
    score = _format_loss(
        fields["score"], {name: fields[name] for name in ("k", "penalty") if fields[name]}
    )
    split = f" of split {fields['split']!r}" if "split" in fields else ""
    return (
        f"temperature {fields['temperature']:.4g}, sets by {score}; {fields['n_samples']:,} rows"
        f"{split}"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _format_loss(name: str, parameters: dict[str, Any]) -> str:
    listed = ", ".join(f"{key} = {value}" for key, value in parameters.items())
    return f"{name}, {listed}" if listed else name


def _certificate_facts(fields: dict[str, Any], loss: str) -> dict[str, str]:
    verdict = ("" if fields["certified"] else "not ") + what_is_certified(loss)
    return {
        "relative gap": f"{fields['relative_gap']:.3e}, asked {fields['tol']:g}: {verdict}",
        "primal": f"{fields['primal']:.10g}",
        "dual": f"{fields['dual']:.10g}",
    }
