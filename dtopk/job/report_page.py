"""A page about some runs: one HTML file that needs nothing else."""

import html
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from dtopk.job.report import RunReport
from dtopk.job.report_chart import Line, draw_lines
from dtopk.losses import what_is_certified

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5b6470; --back: #ffffff;
  --panel: #f5f6f8; --rule: #dcdfe4; --c0: #0072b2; --c1: #c24a00; --c2: #00805f; --c3: #b0568a;
  --c4: #a86f00; --c5: #56606b; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #a3abb5; --back: #16181b;
  --panel: #1f2226; --rule: #363b42; --c0: #5ab4e8; --c1: #ff8a4c; --c2: #3fc79e; --c3: #e29bc4;
  --c4: #e8b33d; --c5: #a9b2bd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 16px 64px; max-width: 1080px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.15rem; margin: 36px 0 10px; }
h3 { font-size: 1rem; margin: 20px 0 8px; overflow-wrap: anywhere; }
p { margin: 6px 0; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; } th { font-weight: 600; color: var(--soft); }
td.path { white-space: normal; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr));
  gap: 16px; } .panel { background: var(--panel); border-radius: 8px; padding: 12px; min-width: 0; }
svg { width: 100%; height: auto; display: block; } .grid { stroke: var(--rule); }
.tick { fill: var(--soft); font-size: 11px; } .label { fill: var(--text); font-size: 12px; }
.line { fill: none; stroke-width: 2; } .dot { stroke: var(--panel); stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0; font-size: 0.9rem; }
.legend span::before { content: ""; display: inline-block; width: 12px; height: 12px;
  border-radius: 3px; margin-right: 6px; vertical-align: -1px; background: var(--c); }
.panel h3 { margin-top: 2px; }
.bar { display: grid; grid-template-columns: 5.5rem 1fr 8.5rem; gap: 8px;
  align-items: center; font-size: 0.85rem; } .bar b { font-weight: 400; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; } .bar i { display: block; height: 10px;
  border-radius: 3px; background: var(--c0); min-width: 1px; }
.bar em { font-style: normal; text-align: right; font-variant-numeric: tabular-nums; }
.bad { color: var(--c1); font-weight: 600; }
"""
_COLORS = "".join(
    f".line.c{i} {{ stroke: var(--c{i}); }} .dot.c{i} {{ fill: var(--c{i}); }} "
    f".legend .c{i} {{ --c: var(--c{i}); }}\n"
    for i in range(6)
)
_CLASSES_SHOWN = 12
"""Of more classes than twice so many the worst and the best are shown."""
_K_SHOWN = (1, 3, 5, 10)


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
    names = ", ".join(run.name for run in runs)
    legend = "".join(
        f'<span class="c{place % 6}">{html.escape(run.name)}</span>'
        for place, run in enumerate(runs)
    )
    body = [
        f"<h1>{'Run' if len(runs) == 1 else 'Runs'}</h1>",
        f'<p class="soft">Written by dtopk {html.escape(version("dtopk"))}.</p>',
        f"<h2>Comparison</h2>{_compare(runs)}",
        f'<h2>Convergence</h2><div class="legend">{legend}</div>{_draw_convergence(runs)}',
        f'<h2>Accuracy</h2><div class="legend">{legend}</div>{_draw_accuracy(runs)}',
        *(_describe_run(run) for run in runs),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>dtopk: {html.escape(names)}</title><style>{_STYLE}{_COLORS}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> str:
    """Lay out rows; the cells from column `numbers` on are numbers. Cells are HTML."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=number' if place >= numbers else ''}>{cell}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    head = f"<tr>{cells(header, 'th')}</tr>" if header else ""
    return f'<div class="wide"><table>{head}{body}</table></div>'


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
    ks = [k for k in _K_SHOWN if any(_accuracy(run, split, k) for run in runs for split in splits)]
    accuracies = [
        [html.escape(run.name), html.escape(split), *(_accuracy(run, split, k) for k in ks)]
        for split in splits
        for run in runs
        if split in run.result["top_k_accuracy"]
    ]
    table = _table(["run", "split", *(f"top-{k}" for k in ks)], accuracies, 2)
    return _table(header, rows, 2) + (f"<p></p>{table}" if accuracies else "")


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


def _panel(title: str, chart: str) -> str:
    return f'<div class="panel"><h3>{html.escape(title)}</h3>{chart}</div>' if chart else ""


def _draw_convergence(runs: Sequence[RunReport]) -> str:
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
    panels = _panel("Gap by epoch", by_epoch) + _panel("Gap by time", by_second)
    return f'<div class="grid2">{panels}</div>{note}'


def _draw_accuracy(runs: Sequence[RunReport]) -> str:
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
        panels.append(_panel(f"Top-k accuracy on {split!r}", chart))
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
        panels.append(_panel(title, chart))
    return f'<div class="grid2">{"".join(panels)}</div>'


def _list_early_stopping(result: dict[str, Any]) -> list[list[str]]:
    """Say where the metric of early stopping was best, if there was one."""
    stopping = result.get("early_stopping")
    if not stopping or stopping["best_value"] is None:
        return []
    best = f"{stopping['best_value']:.4f} after epoch {stopping['best_epoch']}"
    return [["best " + html.escape(stopping["metric"]), best]]


def _describe_run(run: RunReport) -> str:
    result = run.result
    certificate = [
        ["primal", f"{result['primal']:.10g}"],
        ["dual", f"{result['dual']:.10g}"],
        ["duality gap", f"{result.get('duality_gap', result['primal'] - result['dual']):.4g}"],
        ["relative gap", f"{result['relative_gap']:.4e}"],
        ["tolerance", f"{result['tol']:g}"],
        ["certified", _verdict(result)],
    ]
    epochs = max(result["epochs"], 1)
    timing = [
        ["solver", html.escape(result["solver"])],
        ["epochs", f"{result['epochs']:,}"],
        ["seconds", f"{result['seconds']:.2f}"],
        ["seconds an epoch", f"{result['seconds'] / epochs:.3g}"],
        ["rows a second", f"{result['n_samples'] * epochs / max(result['seconds'], 1e-9):,.0f}"],
        ["stopped by", html.escape(result["stop_reason"])],
        *_list_early_stopping(result),
        ["taken up again after", ", ".join(map(str, result.get("resumed_at", []))) or "never"],
    ]
    sizes = [[f"{result[name]:,}", name.removeprefix("n_")] for name in
             ("n_samples", "n_features", "n_classes")]  # fmt: skip
    environment = "".join(
        f'<tr><th>{html.escape(name)}</th><td class="path">{html.escape(value)}</td></tr>'
        for name, value in run.environment.items()
    )
    parts = [
        f"<h2>{html.escape(run.name)}</h2>",
        f'<p class="soft">{html.escape(run.path)}: {html.escape(_describe_loss(run))}, '
        f"C = {run.job.model.C:g}; " + ", ".join(" ".join(pair) for pair in sizes) + ".</p>",
        '<div class="grid2">',
        f'<div class="panel"><h3>Certificate</h3>{_table((), certificate, 1)}</div>',
        f'<div class="panel"><h3>Timing</h3>{_table((), timing, 1)}</div>',
        _show_classes(run),
        _show_confused(run),
        *_show_calibration(run),
        *_show_label_metrics(run),
        f'<div class="panel"><h3>Environment</h3><table>{environment}</table></div>',
        "</div>",
        *(f'<p class="soft">{html.escape(note)}</p>' for note in run.notes),
    ]
    return "".join(parts)


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
    tables = _table((), facts, 1)
    if sets:
        tables += f"<p></p>{_table(('coverage', 'reached', 'mean size', 'largest'), sets, 0)}"
    return [
        _panel(f"Probabilities and sets on {run.split!r}", tables),
        _panel(
            f"Reliability on {run.split!r}, as many rows at each point",
            draw_lines(lines, x_label=label, y_label="accuracy", percent=True),
        ),
    ]


def _show_label_metrics(run: RunReport) -> list[str]:
    """Lay out what a multilabel model reaches, a panel a split."""
    return [
        _panel(
            f"Sets of labels on {split!r}",
            _table(
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
    table = _table(("class", "taken for", "rows"), rows, 2)
    return (
        f'<div class="panel"><h3>Most confused on {html.escape(repr(run.split))}</h3>{table}</div>'
    )
