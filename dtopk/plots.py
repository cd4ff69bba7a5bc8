"""Figures of a training run, as PNG files: how it converged and how accurate its model is."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter

from dtopk.atomic import replace_when_complete

# Blue, vermilion, green, purple and orange of Okabe and Ito's palette: told apart by colour-blind
# readers and in grey.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_MARKERS = ("o", "s", "^", "D", "v")
_DPI = 150
_TITLE_CHARACTERS = 66


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


def save_png(figure: Figure, path: str | os.PathLike[str]) -> None:
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
