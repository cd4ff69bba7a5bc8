"""A page about some runs: one HTML file that needs nothing else."""

import html
from collections.abc import Callable, Sequence
from typing import Any

from dtopk.job.report import RunReport
from dtopk.job.report_chart import Line, draw_lines
from dtopk.job.report_html import draw_legend, lay_panel, lay_table, make_page
from dtopk.losses import what_is_certified

_CLASSES_SHOWN = 12
"""Of more classes than twice so many the worst and the best are shown."""
K_SHOWN = (1, 3, 5, 10)
"""Top-k accuracy is shown in tables for these."""


def write_page(runs: Sequence[RunReport]) -> str:
    """Write a page about some runs.

    Parameters
    ----------
    runs : sequence of RunReport

    Returns
    -------
    str
        An HTML document that loads nothing.
    """
    names = [run.name for run in runs]
    legend = draw_legend(names)
    body = [
        f"<h2>Comparison</h2>{_compare(runs)}",
        f"<h2>Convergence</h2>{legend}{draw_convergence(runs)}",
        f"<h2>Accuracy</h2>{legend}{draw_accuracy(runs)}",
        *(describe_run(run) for run in runs),
    ]
    return make_page(", ".join(names), "Run" if len(runs) == 1 else "Runs", "".join(body))


def _compare(runs: Sequence[RunReport]) -> str:
    header = ["run", "loss", "C", "certified", "relative gap", "epochs", "seconds"]
    rows = [
        [
            html.escape(run.name),
            html.escape(_describe_loss(run)),
            f"{run.job.model.C:g}",
            _verdict(run.result),
            f"{run.result['relative_gap']:.2e}",
            f"{run.result['epochs']:,}",
            f"{run.result['seconds']:.1f}",
        ]
        for run in runs
    ]
    splits = _list_splits(runs)
    ks = [k for k in K_SHOWN if any(_accuracy(run, split, k) for run in runs for split in splits)]
    accuracies = [
        [html.escape(run.name), html.escape(split), *(_accuracy(run, split, k) for k in ks)]
        for split in splits
        for run in runs
        if split in run.result["top_k_accuracy"]
    ]
    table = lay_table(["run", "split", *(f"top-{k}" for k in ks)], accuracies, 2)
    return lay_table(header, rows, 2) + (f"<p></p>{table}" if accuracies else "")


def _list_splits(runs: Sequence[RunReport]) -> list[str]:
    return list(dict.fromkeys(s for run in runs for s in run.result.get("top_k_accuracy", {})))


def _accuracy(run: RunReport, split: str, k: int) -> str:
    value = run.result.get("top_k_accuracy", {}).get(split, {}).get(str(k))
    return "" if value is None else f"{100 * value:.2f}%"


def _verdict(result: dict[str, Any]) -> str:
    if not result["certified"]:
        return '<span class="bad">no</span>'
    kind = what_is_certified(result["loss"])
    return "yes" if kind == "certified" else html.escape(kind.removeprefix("certified "))


def _describe_loss(run: RunReport) -> str:
    parameters = {
        name: value
        for name, value in run.result["loss_parameters"].items()
        if isinstance(value, int | float | str) and name != "label_cost"
    }
    return ", ".join(
        [
            run.result["loss"],
            *(
                f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}"
                for k, v in parameters.items()
            ),
        ]
    )


def draw_convergence(runs: Sequence[RunReport]) -> str:
    """Draw the gaps of runs by epoch and by time.

    Parameters
    ----------
    runs : sequence of RunReport
    """
    tolerances = {run.result["tol"] for run in runs}

    def draw(x: Callable[[Any], float], x_label: str) -> str:
        lines = [
            Line(label=run.name, color=place, points=[(x(e), e.gap) for e in run.epochs])
            for place, run in enumerate(runs)
        ]
        last = max((p[0] for line in lines for p in line.points), default=0.0)
        lines += [
            Line(label="tolerance", color=5, points=[(0, tol), (last, tol)], dashed=True)
            for tol in sorted(tolerances)
        ]
        return draw_lines(lines, x_label=x_label, y_label="relative duality gap", log=True)

    by_epoch, by_second = draw(lambda e: e.epoch, "epoch"), draw(lambda e: e.seconds, "seconds")
    note = (
        '<p class="soft">Gaps on the way are estimated on some of the rows; that of the end is '
        "computed over all of them. Dashed: the tolerance.</p>"
    )
    panels = lay_panel("Gap by epoch", by_epoch) + lay_panel("Gap by time", by_second)
    return f'<div class="grid2">{panels}</div>{note}'


def draw_accuracy(runs: Sequence[RunReport]) -> str:
    """Draw the accuracies of runs by k, a panel a split, and by epoch.

    Parameters
    ----------
    runs : sequence of RunReport
    """
    panels = []
    for split in _list_splits(runs):
        lines = [
            Line(
                label=run.name,
                color=place,
                points=[
                    (int(k), share)
                    for k, share in run.result["top_k_accuracy"].get(split, {}).items()
                ],
            )
            for place, run in enumerate(runs)
        ]
        chart = draw_lines(lines, x_label="k", y_label="top-k accuracy", percent=True)
        panels.append(lay_panel(f"Top-k accuracy on {split!r}", chart))
    names = list(dict.fromkeys(n for run in runs for e in run.epochs for n in e.accuracy))
    for name in names:
        lines = [
            Line(
                label=run.name,
                color=place,
                points=[(e.epoch, e.accuracy[name]) for e in run.epochs if name in e.accuracy],
            )
            for place, run in enumerate(runs)
        ]
        title = name.replace("/top_", ": top-").replace("_accuracy", " by epoch")
        chart = draw_lines(lines, x_label="epoch", y_label="accuracy", percent=True)
        panels.append(lay_panel(title, chart))
    return f'<div class="grid2">{"".join(panels)}</div>'


def _list_early_stopping(result: dict[str, Any]) -> list[list[str]]:
    """Say where the metric of early stopping was best, if there was one."""
    stopping = result.get("early_stopping")
    if not stopping or stopping["best_value"] is None:
        return []
    best = f"{stopping['best_value']:.4f} after epoch {stopping['best_epoch']}"
    return [["best " + html.escape(stopping["metric"]), best]]


def describe_run(run: RunReport) -> str:
    """Tell of one run: certificate, time, classes, and what it was made with.

    Parameters
    ----------
    run : RunReport
    """
    result = run.result
    certificate = [
        ["primal", f"{result['primal']:.10g}"],
        ["dual", f"{result['dual']:.10g}"],
        ["duality gap", f"{result.get('duality_gap', result['primal'] - result['dual']):.4g}"],
        ["relative gap", f"{result['relative_gap']:.4e}"],
        ["tolerance", f"{result['tol']:g}"],
        ["certified", _verdict(result)],
    ]
    timing = [
        ["solver", html.escape(result["solver"])],
        ["epochs", f"{result['epochs']:,}"],
        ["seconds", f"{result['seconds']:.2f}"],
        *_list_speed(result),
        ["stopped by", html.escape(result["stop_reason"])],
        *_list_early_stopping(result),
        ["taken up again after", ", ".join(map(str, result.get("resumed_at", []))) or "never"],
    ]
    sizes = [
        f"{result[name]:,} {name.removeprefix('n_')}"
        for name in ("n_samples", "n_features", "n_classes")
        if name in result
    ]
    environment = "".join(
        f'<tr><th>{html.escape(name)}</th><td class="path">{html.escape(value)}</td></tr>'
        for name, value in run.environment.items()
    )
    parts = [
        f'<h2 id="{html.escape(run.anchor)}">{html.escape(run.name)}</h2>',
        f'<p class="soft">{html.escape(run.path)}: {html.escape(_describe_loss(run))}, '
        f"C = {run.job.model.C:g}; {', '.join(sizes)}.</p>",
        '<div class="grid2">',
        f'<div class="panel"><h3>Certificate</h3>{lay_table((), certificate, 1)}</div>',
        f'<div class="panel"><h3>Timing</h3>{lay_table((), timing, 1)}</div>',
        _show_classes(run),
        _show_confused(run),
        *_show_calibration(run),
        *_show_label_metrics(run),
        f'<div class="panel"><h3>Environment</h3><table>{environment}</table></div>',
        "</div>",
        *(f'<p class="soft">{html.escape(note)}</p>' for note in run.notes),
    ]
    return "".join(parts)


def _list_speed(result: dict[str, Any]) -> list[list[str]]:
    """Say how fast a run was; of one that shared its passes with others nothing is known."""
    if "n_samples" not in result:
        return []
    epochs, seconds = max(result["epochs"], 1), result["seconds"]
    return [
        ["seconds an epoch", f"{seconds / epochs:.3g}"],
        ["rows a second", f"{result['n_samples'] * epochs / max(seconds, 1e-9):,.0f}"],
    ]


def _show_calibration(run: RunReport) -> list[str]:
    """Lay out how honest a calibrated model's probabilities and sets are."""
    if run.calibration is None:
        return []
    reliability, calibration = run.calibration.reliability, run.calibration.calibration
    bins = reliability.bins()
    facts = [
        ["temperature", f"{calibration.temperature:.4g}"],
        ["accuracy", f"{100 * reliability.accuracy():.2f}%"],
        ["mean confidence", f"{100 * reliability.confidence():.2f}%"],
        ["expected calibration error", f"{100 * bins.calibration_error:.2f}%"],
        ["negative log-likelihood", f"{reliability.negative_log_likelihood:.4f}"],
    ]
    sets = [
        [
            f"{100 * counts.coverage:g}%",
            f"{100 * counts.reached:.2f}%",
            f"{counts.mean_size:.2f}",
            f"{counts.largest:,}",
        ]
        for counts in run.calibration.sets
    ]
    # Of as many rows at each point: none of them is a matter of chance alone.
    shown = reliability.bins(binning="equal_mass")
    points = list(zip(shown.confidence.tolist(), shown.accuracy.tolist(), strict=True))
    lines = [
        Line(label="calibrated", color=0, points=points),
        Line(label="as often as stated", color=5, points=[(0, 0), (1, 1)], dashed=True),
    ]
    label = "confidence: the probability of the class predicted"
    tables = lay_table((), facts, 1)
    if sets:
        tables += f"<p></p>{lay_table(('coverage', 'reached', 'mean size', 'largest'), sets, 0)}"
    return [
        lay_panel(f"Probabilities and sets on {run.split!r}", tables),
        lay_panel(
            f"Reliability on {run.split!r}, as many rows at each point",
            draw_lines(lines, x_label=label, y_label="accuracy", percent=True),
        ),
    ]


def _show_label_metrics(run: RunReport) -> list[str]:
    """Lay out what a multilabel model reaches, a panel a split."""
    return [
        lay_panel(
            f"Sets of labels on {split!r}",
            lay_table(
                (), [[name.replace("_", " "), f"{value:.4f}"] for name, value in metrics.items()], 1
            ),
        )
        for split, metrics in run.result.get("label_metrics", {}).items()
    ]


def _show_classes(run: RunReport) -> str:
    if not run.classes:
        return ""
    shown, title = list(run.classes), f"Accuracy by class on {run.split!r}"
    if len(shown) > 2 * _CLASSES_SHOWN:
        shown = [*shown[:_CLASSES_SHOWN], *shown[-_CLASSES_SHOWN:]]
        title += f": the {_CLASSES_SHOWN} worst and best of {len(run.classes):,}"
    bars = []
    for each in shown:
        name, share = html.escape(each.name), 100 * each.accuracy
        bars.append(
            f'<div class="bar"><b title="{name}">{name}</b><i style="width:{share:.1f}%"></i>'
            f"<em>{share:.2f}% of {each.n_rows:,}</em></div>"
        )
    return f'<div class="panel"><h3>{html.escape(title)}</h3>{"".join(bars)}</div>'


def _show_confused(run: RunReport) -> str:
    if not run.confused:
        return ""
    rows = [
        [html.escape(true), html.escape(predicted), f"{n_rows:,}"]
        for true, predicted, n_rows in run.confused
    ]
    table = lay_table(("class", "taken for", "rows"), rows, 2)
    return (
        f'<div class="panel"><h3>Most confused on {html.escape(repr(run.split))}</h3>{table}</div>'
    )
