"""What `dtopk info` says of the folder of a sweep."""

from typing import Any

from dtopk.cli.output import format_facts, format_table
from dtopk.cli.sweep import format_metric
from dtopk.job.names import list_settings
from dtopk.job.sweep_config import metric_sign
from dtopk.job.sweep_folder import SweepFolder
from dtopk_storage.paths import as_path

_SHOWN = 10
"""Settings are listed up to so many, the best first."""


def describe_sweep(path: str, *, verify: bool) -> dict[str, Any]:
    """Collect what there is to say about a sweep.

    Parameters
    ----------
    path : str
    verify : bool

    Returns
    -------
    dict
        Values that JSON has; ``kind`` is 'sweep'. Before a sweep has come to an end it has no
        settings and no best.
    """
    if verify:
        raise ValueError(
            f"--verify must be given with a store or a run folder, got the sweep {path!r}, which "
            "keeps no duals."
        )
    folder = SweepFolder(path=as_path(path, name="sweep"))
    job = folder.load_job()
    fields: dict[str, Any] = {
        "kind": "sweep",
        "path": path,
        "store": job.data.store,
        "files": [file.name for file in folder.list_written()],
        "finished": folder.result.is_file(),
        "n_settings": len(list_settings(job)[0]),
    }
    if fields["finished"]:
        fields |= folder.read_result()
    return fields


def format_sweep(fields: dict[str, Any]) -> str:
    """Lay out a sweep's description for reading."""
    facts = {
        "sweep": fields["path"],
        "store": fields["store"],
        "files": ", ".join(fields["files"]),
    }
    if not fields["finished"]:
        done = f"none of its end; {fields['n_settings']:,} settings are asked for"
        return format_facts(facts | {"result": f"{done}: the command that began it goes on"})
    facts["settings"] = f"{fields['n_done']:,} of {fields['n_settings']:,} done"
    facts["chosen on"] = fields["chosen_on"]
    for metric, best in fields["best"].items():
        facts[f"best {metric}"] = f"{best['name']}, {format_metric(metric, best['value'])}"
    metrics = fields["metrics"]
    names = [best["name"] for best in fields["best"].values()]
    first = [each for each in fields["settings"] if each["name"] in names]
    others = [each for each in fields["settings"] if each["name"] not in names]
    others.sort(key=lambda each: -metric_sign(metrics[0]) * each[metrics[0]])
    rows = [
        [
            each["name"],
            f"{each['gap']:.1e}" + ("" if each["certified"] else " (not certified)"),
            f"{each['epochs']}",
            *(format_metric(metric, each[metric]) for metric in metrics),
        ]
        for each in [*first, *others][:_SHOWN]
    ]
    table = format_table(rows, header=("setting", "gap", "epochs", *metrics))
    more = len(fields["settings"]) - len(rows)
    note = f"\nand {more:,} more in sweep.csv" if more > 0 else ""
    return f"{format_facts(facts)}\n\n{table}{note}"
