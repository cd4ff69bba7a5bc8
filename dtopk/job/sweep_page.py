"""A page about a sweep: one HTML file that needs nothing else."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dtopk.job.report_chart import N_COLORS, Line, draw_lines
from dtopk.job.report_html import draw_legend, lay_panel, lay_table, make_page
from dtopk.job.report_page import K_SHOWN, describe_run, draw_accuracy, draw_convergence
from dtopk.job.sweep_config import TOPK_METRICS, Setting, metric_sign
from dtopk.job.sweep_report import Chosen, SweepReport


def write_sweep_page(sweep: SweepReport) -> str:
    """Write a page about a sweep.

    Parameters
    ----------
    sweep : SweepReport

    Returns
    -------
    str
        An HTML document that loads nothing.
    """
    result = sweep.result
    runs = [each.run for each in sweep.chosen]
    body = [
        f'<p class="soft">{html.escape(sweep.path)}: {result["n_done"]:,} of '
        f"{result['n_settings']:,} settings, chosen among on {html.escape(result['chosen_on'])}, "
        f"each trained to a relative gap of {result['tol']:g}; the call that ended it took "
        f"{result['seconds']:,.1f} s.</p>",
        f"<h2>Chosen</h2>{_show_chosen(sweep)}",
        f"<h2>Metrics against C</h2>{_draw_metrics(sweep)}",
        *_compare_losses(sweep),
        f"<h2>All settings</h2>{_list_settings(sweep)}",
        *_list_left_out(result["left_out"]),
    ]
    if runs:
        legend = draw_legend([run.name for run in runs])
        body += [
            f"<h2>Convergence of the chosen</h2>{legend}{draw_convergence(runs)}",
            f"<h2>Accuracy of the chosen</h2>{legend}{draw_accuracy(runs)}",
            *(describe_run(run) for run in runs),
        ]
    return make_page(sweep.name, "Sweep", "".join(body))


def _name(metric: str) -> str:
    return metric.replace("top_", "top-").replace("_", " ")


def _format(metric: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "none"
    return f"{100 * value:.2f}%" if metric in TOPK_METRICS else f"{value:.4f}"


def _show_chosen(sweep: SweepReport) -> str:
    """Lay out the best setting by each metric, and by what rule it is that."""
    by_metric = {metric: each for each in sweep.chosen for metric in each.metrics}
    splits = list(dict.fromkeys(split for each in sweep.chosen for split in each.evaluated))
    rows = [
        [
            html.escape(_name(metric)),
            f'<a href="#{html.escape(each.run.anchor)}">{html.escape(each.setting.describe())}</a>',
            _format(metric, sweep.result["best"][metric]["value"]),
            *(_format(metric, each.evaluated.get(split, {}).get(metric)) for split in splits),
            f"{each.run.result['relative_gap']:.1e}",
        ]
        for metric in sweep.result["metrics"]
        if (each := by_metric.get(metric)) is not None
    ]
    header = ["best by", "setting", sweep.result["chosen_on"], *splits, "gap"]
    table = lay_table([html.escape(name) for name in header], rows, 2)
    return f'{table}<p class="soft">{html.escape(_describe_rule(sweep))}</p>'


def _describe_rule(sweep: SweepReport) -> str:
    falling = [metric for metric in sweep.result["metrics"] if metric_sign(metric) < 0]
    most = "most" if not falling else f"most, or least of {', '.join(map(_name, falling))},"
    rule = (
        f"By each metric the setting is chosen that reaches the {most} on "
        f"{sweep.result['chosen_on']}, of equal ones the first with the smallest C."
    )
    if any(each.refit for each in sweep.chosen):
        rule += " Its model was then trained anew on all rows that there are for it."
    if not sweep.result["complete"]:
        rule += " The sweep is not complete: others may be better."
    return rule


def _draw_metrics(sweep: SweepReport) -> str:
    """Draw each metric against C: all losses together where they can be told apart."""
    families: dict[str, dict[str, list[tuple[Setting, Mapping[str, Any]]]]] = {}
    for setting, row in sweep.settings:
        lines = families.setdefault(setting.loss, {})
        lines.setdefault(setting.describe_family(), []).append((setting, row))
    together = {name: rows for lines in families.values() for name, rows in lines.items()}
    if len(together) <= 2 * N_COLORS:
        families = {"": together}
    parts = []
    for loss, lines in families.items():
        panels = [
            lay_panel(_name(metric), _draw_metric(sweep, metric, list(lines.items())))
            for metric in sweep.result["metrics"]
        ]
        title = f"<h3>{html.escape(loss)}</h3>" if loss else ""
        parts.append(f'{title}{draw_legend(list(lines))}<div class="grid2">{"".join(panels)}</div>')
    note = f"Taken on {sweep.result['chosen_on']}. Ringed: the best."
    return f'{"".join(parts)}<p class="soft">{html.escape(note)}</p>'


def _draw_metric(
    sweep: SweepReport,
    metric: str,
    lines: Sequence[tuple[str, Sequence[tuple[Setting, Mapping[str, Any]]]]],
) -> str:
    ringed = next((each.setting for each in sweep.chosen if metric in each.metrics), None)
    drawn = []
    for place, (name, rows) in enumerate(lines):
        points = {
            setting: (setting.C, row[metric])
            for setting, row in rows
            if row.get(metric) is not None
        }
        drawn.append(
            Line(
                label=name,
                color=place,
                points=list(points.values()),
                ringed=None if ringed is None else points.get(ringed),
            )
        )
    percent = metric in TOPK_METRICS
    label = f"{_name(metric)} accuracy" if percent else _name(metric)
    return draw_lines(drawn, x_label="C", y_label=label, log_x=True, percent=percent)


def _compare_losses(sweep: SweepReport) -> list[str]:
    """Lay out what each loss reaches at its own best C, where the job wants losses compared."""
    if not sweep.losses:
        return []
    splits, metrics = sweep.job.data.evaluate, sweep.result["metrics"]
    parts = [
        "<h2>Losses, each at its best C</h2>"
        '<p class="soft">The C of each loss is chosen by each metric by itself; in brackets.</p>'
    ]
    for split in splits or ("chosen",):
        cells: dict[str, dict[str, str]] = {}
        for setting, row in sweep.losses:
            value = _format(row["metric"], row[split])
            cells.setdefault(setting.describe_family(), {})[row["metric"]] = (
                f"{value} ({setting.C:g})"
            )
        title = split if splits else sweep.result["chosen_on"]
        header = [f"on {title}", *map(_name, metrics)]
        table = [
            [html.escape(name), *(found.get(metric, "") for metric in metrics)]
            for name, found in cells.items()
        ]
        parts.append(lay_table([html.escape(name) for name in header], table, 1) + "<p></p>")
    return parts


def _list_settings(sweep: SweepReport) -> str:
    """Lay out all settings, the best ones standing out."""
    metrics = list(sweep.result["metrics"])
    known = {name for _, row in sweep.settings for name in row}
    metrics += [name for k in K_SHOWN if (name := f"top_{k}") in known and name not in metrics]
    best = {each.setting: each for each in sweep.chosen}
    rows = [
        [
            _link(setting, best.get(setting)),
            f"{setting.C:g}",
            *(_format(metric, row.get(metric)) for metric in metrics),
            _format_gap(row),
            f"{row['epochs']:,}",
            f"{row['seconds']:.1f}",
            html.escape(row["solver"]),
            html.escape(row["stop_reason"]),
        ]
        for setting, row in sweep.settings
    ]
    standing = frozenset(
        place for place, (setting, _) in enumerate(sweep.settings) if setting in best
    )
    header = ["loss", "C", *map(_name, metrics), "gap", "passes", "seconds", "solver", "stopped by"]
    note = (
        f"Metrics are those on {sweep.result['chosen_on']}. Passes and seconds are those of all "
        "folds; models that share passes count each for its own."
    )
    n_open = sum(not row["certified"] for _, row in sweep.settings)
    if n_open:
        note += f" {n_open:,} of them are not certified to {sweep.result['tol']:g}."
    return (
        lay_table([html.escape(name) for name in header], rows, 1, best=standing)
        + f'<p class="soft">{html.escape(note)}</p>'
    )


def _format_gap(row: Mapping[str, Any]) -> str:
    gap = f"{row['gap']:.1e}"
    return gap if row["certified"] else f'<span class="bad">{gap}</span>'


def _link(setting: Setting, chosen: Chosen | None) -> str:
    name = html.escape(setting.describe_family())
    return name if chosen is None else f'<a href="#{html.escape(chosen.run.anchor)}">{name}</a>'


def _list_left_out(left_out: Mapping[str, str]) -> list[str]:
    """Name the combinations that a loss does not take."""
    if not left_out:
        return []
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(name)
    rows = "".join(
        f'<tr><td class="path">{html.escape(", ".join(some))}</td>'
        f'<td class="path">{html.escape(why)}</td></tr>'
        for why, some in names.items()
    )
    return [f"<h2>Left out</h2><table><tr><th>settings</th><th>why</th></tr>{rows}</table>"]
