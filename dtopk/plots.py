"""Figures of a run, as PNG files: how it converged, how accurate and how honest its model is."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from dtopk.atomic import FilePath, replace_when_complete

# Blue, vermilion, green, purple and orange of Okabe and Ito's palette: told apart by colour-blind
# readers and in grey.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_MARKERS = ("o", "s", "^", "D", "v")
_LINE_STYLES = ("-", "--", ":", "-.")
"""Of more lines than there are colours."""
_DPI = 150
_TITLE_CHARACTERS = 66
_PANELS_A_ROW = 3


class ConvergencePoint(Protocol):
    """What a figure reads of one epoch."""

    @property
    def epoch(self) -> int:
        """Passes over the rows until now."""

    @property
    def seconds(self) -> float:
        """Time since the start, in seconds."""

    @property
    def primal(self) -> float:
        """Primal objective."""

    @property
    def dual_value(self) -> float:
        """Dual objective."""

    @property
    def relative_gap(self) -> float:
        """(primal - dual_value) / max(|primal|, |dual_value|)."""

    @property
    def exact(self) -> bool:
        """Whether the values were recomputed over all rows, not estimated on some of them."""


def draw_convergence(history: Sequence[ConvergencePoint], *, tol: float, title: str) -> Figure:
    """Draw the relative duality gap against epochs and seconds, and both objectives.

    Parameters
    ----------
    history : sequence of the run's epochs
    tol : float
        Relative gap at which the run was to stop.
    title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    by_epoch, by_second, objectives = figure.subplots(1, 3)
    by_second.sharey(by_epoch)
    epochs = [point.epoch for point in history]
    _draw_gap(by_epoch, epochs, history, tol)
    by_epoch.set(xlabel="epoch", ylabel="relative duality gap")
    by_epoch.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_gap(by_second, [point.seconds for point in history], history, tol)
    by_second.set(xlabel="time (s)")
    by_second.tick_params(labelleft=False)
    by_second.set_xlim(left=0)
    figure.legend(
        *by_epoch.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False
    )
    _draw_objectives(objectives, epochs, history)
    figure.suptitle(title)
    return figure


def draw_topk_accuracy(accuracy: Mapping[str, Mapping[int, float]], *, title: str) -> Figure:
    """Draw top-k accuracy against k, a line a split.

    Parameters
    ----------
    accuracy : mapping from split to a mapping from k to a share of rows, 0 to 1
    title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, (split, by_k) in enumerate(accuracy.items()):
        axes.plot(
            list(by_k),
            [100 * share for share in by_k.values()],
            color=_COLORS[place % len(_COLORS)],
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=5,
            label=split,
        )
    if len(accuracy) == 1:
        # With one line there is room to read the values off the figure.
        for k, share in next(iter(accuracy.values())).items():
            axes.annotate(
                f"{100 * share:.1f}",
                (k, 100 * share),
                xytext=(5, -11),
                textcoords="offset points",
                fontsize=8,
            )
    axes.set(xlabel="k", ylabel="top-k accuracy")
    # The whole figure's width, and a second line where it is not enough.
    figure.suptitle(textwrap.fill(title, _TITLE_CHARACTERS), fontsize=10)
    axes.set_xticks(sorted({k for by_k in accuracy.values() for k in by_k}))
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter())
    axes.margins(x=0.12, y=0.12)
    axes.legend(frameon=False, loc="lower right")
    _make_plain(axes)
    return figure


@dataclass(frozen=True, kw_only=True)
class SweepLine:
    """The settings of one loss, which differ in C alone."""

    label: str
    """The loss and its parameters."""
    points: list[tuple[float, bool, Mapping[str, float]]]
    """C, whether the model is certified, and its metrics by name; from small to large C."""


def draw_sweep(
    lines: Sequence[SweepLine],
    metrics: Sequence[str],
    *,
    chosen: Mapping[str, tuple[str, float]],
    chosen_on: str,
) -> Figure:
    """Draw metrics against C, a panel a metric and a line a loss with its parameters.

    Parameters
    ----------
    lines : sequence of SweepLine
    metrics : sequence of str
        Names of the metrics to draw.
    chosen : mapping of str to (str, float)
        By metric: label and C of the best setting.
    chosen_on : str
        What the metrics were taken on, such as "split 'val'".

    Returns
    -------
    matplotlib.figure.Figure
    """
    n_columns = min(len(metrics), _PANELS_A_ROW)
    n_rows = -(-len(metrics) // n_columns)
    legend_rows = -(-len(lines) // n_columns)
    height = 3.6 * n_rows + 0.22 * legend_rows + 0.4
    figure = Figure(figsize=(max(5.2 * n_columns, 6.4), height), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for axes, metric in zip(panels, metrics, strict=False):
        _draw_metric(axes, lines, metric, chosen.get(metric))
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=n_columns, frameon=False, fontsize=9
    )
    certified = all(is_certified for line in lines for _, is_certified, _ in line.points)
    note = "" if certified else "; a white marker: not certified"
    figure.suptitle(f"Metrics on {chosen_on}{note}", fontsize=10)
    return figure


def _draw_metric(
    axes: Axes, lines: Sequence[SweepLine], metric: str, chosen: tuple[str, float] | None
) -> None:
    is_share = metric.startswith("top_")
    factor = 100 if is_share else 1
    for place, line in enumerate(lines):
        color = _COLORS[place % len(_COLORS)]
        axes.plot(
            [C for C, _, _ in line.points],
            [factor * values[metric] for _, _, values in line.points],
            color=color,
            linestyle=_LINE_STYLES[place // len(_COLORS) % len(_LINE_STYLES)],
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=4,
            label=line.label,
        )
        open_points = [point for point in line.points if not point[1]]
        axes.plot(
            [C for C, _, _ in open_points],
            [factor * values[metric] for _, _, values in open_points],
            color=color,
            linestyle="none",
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=4,
            markerfacecolor="white",
            zorder=3,
        )
        if chosen is not None and chosen[0] == line.label:
            best = next(values[metric] for C, _, values in line.points if C == chosen[1])
            axes.plot(
                chosen[1], factor * best, marker="o", markersize=12, color="black",
                markerfacecolor="none", linestyle="none",
            )  # fmt: skip
            text = f"{factor * best:.2f}%" if is_share else f"{best:.4f}"
            axes.set_title(f"best {text} at C = {chosen[1]:g}", fontsize=9)
    name = f"{metric.replace('_', '-')} accuracy" if is_share else metric.replace("_", " ")
    axes.set(xlabel="C", ylabel=name)
    axes.set_xscale("log")
    if is_share:
        axes.yaxis.set_major_formatter(PercentFormatter())
    axes.margins(x=0.06, y=0.08)
    _make_plain(axes)
    axes.xaxis.set_minor_formatter(NullFormatter())


class ReliabilityPoints(Protocol):
    """What a figure reads of probabilities by confidence."""

    @property
    def n_rows(self) -> NDArray[np.int64]:
        """Rows of each bin, shape (n_bins,)."""

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Mean probability of the class predicted, shape (n_bins,)."""

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Share of rows whose class is the one predicted, shape (n_bins,)."""


def draw_reliability(by_name: Mapping[str, ReliabilityPoints], *, title: str) -> Figure:
    """Draw accuracy against confidence, and below it where the rows are.

    Parameters
    ----------
    by_name : mapping from a name, such as 'calibrated', to bins
    title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = Figure(figsize=(6.0, 5.8), layout="constrained")
    axes, shares = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.plot(
        [0, 100], [0, 100], color="0.45", linestyle="--", linewidth=1, label="as often as stated"
    )
    for place, (name, bins) in enumerate(by_name.items()):
        style: dict[str, Any] = {
            "color": _COLORS[place % len(_COLORS)],
            "marker": _MARKERS[place % len(_MARKERS)],
            "markersize": 5,
        }
        axes.plot(100 * bins.confidence, 100 * bins.accuracy, label=name, **style)
        shares.plot(100 * bins.confidence, 100 * bins.n_rows / bins.n_rows.sum(), **style)
    axes.set(ylabel="accuracy", xlim=(-2, 102), ylim=(-2, 102))
    shares.set(xlabel="confidence: the probability of the class predicted", ylabel="rows")
    shares.set_ylim(bottom=0)
    for panel in (axes, shares):
        panel.yaxis.set_major_formatter(PercentFormatter())
        _make_plain(panel)
    shares.xaxis.set_major_formatter(PercentFormatter())
    axes.legend(frameon=False, loc="upper left")
    figure.suptitle(textwrap.fill(title, _TITLE_CHARACTERS), fontsize=10)
    return figure


@dataclass(frozen=True, kw_only=True)
class TimeBar:
    """How long one program took."""

    group: str
    """What it did; bars of a group stand together, in one colour."""
    label: str
    """The program."""
    seconds: float | None
    """None: longer than the limit."""


def draw_times(bars: Sequence[TimeBar], *, limit_s: float, xlabel: str, title: str) -> Figure:
    """Draw times as bars on a logarithmic axis, one below the other.

    Parameters
    ----------
    bars : sequence of TimeBar
        From top to bottom, those of a group after each other.
    limit_s : float
        Where bars of programs that took longer end, hatched.
    xlabel, title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = Figure(figsize=(8.0, 0.3 * len(bars) + 1.6), layout="constrained")
    axes = figure.subplots()
    groups = list(dict.fromkeys(bar.group for bar in bars))
    times = [bar.seconds for bar in bars if bar.seconds is not None]
    # Only where a bar is that long does the axis reach the limit.
    ends = times if len(times) == len(bars) else [*times, limit_s]
    left = min(ends) / 3
    for place, bar in enumerate(bars):
        number = groups.index(bar.group)
        is_first = place == 0 or bars[place - 1].group != bar.group
        is_late = bar.seconds is None
        end = limit_s if bar.seconds is None else bar.seconds
        color = _COLORS[number % len(_COLORS)]
        axes.barh(
            place,
            end - left,
            left=left,
            color="white" if is_late else color,
            edgecolor=color if is_late else "white",
            hatch="///" if is_late else ".." if number >= len(_COLORS) else None,
            label=bar.group if is_first else None,
        )
        text = f" > {limit_s:g} s" if is_late else f" {end:.3g} s"
        axes.text(end, place, text, va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(left, max(ends) * 3)
    axes.set(xlabel=xlabel)
    _make_plain(axes)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.suptitle(textwrap.fill(title, _TITLE_CHARACTERS), fontsize=10)
    return figure


def save_png(figure: Figure, path: FilePath) -> None:
    """Write a figure as a PNG file, whole or not at all."""
    figure.set_canvas(FigureCanvasAgg(figure))
    with replace_when_complete(path) as file:
        figure.savefig(file, format="png", dpi=_DPI)


def _draw_gap(
    axes: Axes, places: Sequence[float], history: Sequence[ConvergencePoint], tol: float
) -> None:
    # A gap of 0 or below 0, by rounding, has no place on a logarithmic axis.
    shown = [
        (place, point)
        for place, point in zip(places, history, strict=True)
        if point.relative_gap > 0
    ]
    axes.plot(
        [place for place, _ in shown],
        [point.relative_gap for _, point in shown],
        color=_COLORS[0],
        marker="o",
        markersize=_marker_size(shown),
        markerfacecolor="white",
        label="estimated on some rows, not a bound",
    )
    exact = [(place, point) for place, point in shown if point.exact]
    axes.plot(
        [place for place, _ in exact],
        [point.relative_gap for _, point in exact],
        color=_COLORS[0],
        linestyle="none",
        marker="o",
        markersize=7,
        label="recomputed over all rows",
    )
    axes.axhline(tol, color=_COLORS[1], linestyle="--", label=f"tolerance {tol:g}")
    axes.set_yscale("log")
    _make_plain(axes)


def _draw_objectives(
    axes: Axes, epochs: Sequence[int], history: Sequence[ConvergencePoint]
) -> None:
    lines = (
        ("primal", [point.primal for point in history], _COLORS[1], "s"),
        ("dual", [point.dual_value for point in history], _COLORS[2], "^"),
    )
    for label, values, color, marker in lines:
        axes.plot(
            epochs,
            values,
            color=color,
            marker=marker,
            markersize=_marker_size(epochs),
            label=label,
        )
    axes.set(xlabel="epoch", ylabel="objective")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    _make_plain(axes)


def _marker_size(points: Sequence[object]) -> float:
    """Leave the markers out where they would hide the line."""
    return 4.0 if len(points) <= 50 else 0.0


def _make_plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    if axes.get_yscale() == "log":
        axes.yaxis.set_minor_formatter(NullFormatter())
