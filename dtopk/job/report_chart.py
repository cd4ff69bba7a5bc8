"""Charts as SVG that stands in a page, whose colours follow the page's."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

_WIDTH, _HEIGHT = 460, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 42
N_COLORS = 6
"""Colours; from there on the same with hollow dots."""
_DECADES = 6
"""More decades than these are labelled every second, third, ..."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    label: str
    """What it shows."""
    color: int
    """Number of its colour, from 0."""
    points: Sequence[tuple[float, float]]
    """x and y, in order."""
    dashed: bool = False
    """Whether it is a bound rather than what was measured."""
    ringed: tuple[float, float] | None = None
    """A point that stands out."""


def name_color(number: int) -> str:
    """Return the classes of the style that a colour is, and its dots.

    Parameters
    ----------
    number : int
        Of a line, from 0.
    """
    return f"c{number % N_COLORS}" + (" hollow" if number // N_COLORS % 2 else "")


def draw_lines(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    log_x: bool = False,
    percent: bool = False,
) -> str:
    """Draw lines.

    Parameters
    ----------
    lines : sequence of Line
        Those without points are left out.
    x_label, y_label : str
    log : bool
        Whether the vertical axis is logarithmic; points at 0 or below have no place then.
    log_x : bool
        Whether the horizontal one is, where all x are above 0.
    percent : bool
        Whether y is a share, to be written in percent.

    Returns
    -------
    str
        An element 'svg'; empty where there is nothing to draw.
    """
    shown = [
        (line, [(x, y) for x, y in line.points if math.isfinite(y) and (y > 0 or not log)])
        for line in lines
    ]
    shown = [(line, points) for line, points in shown if points]
    if not shown:
        return ""
    xs = [x for _, points in shown for x, _ in points]
    ys = [y for _, points in shown for _, y in points]
    x_ticks = _decades(min(xs), max(xs)) if log_x else _ticks(min(xs), max(xs))
    y_ticks = _decades(min(ys), max(ys)) if log else _ticks(min(ys), max(ys))
    scale = _Scale(x_ticks, y_ticks, log, log_x)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(f"{y_label} against {x_label}")}">'
    ]
    step = -(-len(y_ticks) // _DECADES) if log else 1
    for place, y in enumerate(y_ticks):
        at = scale.y(y)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
        )
        if place % step == 0:
            parts.append(
                f'<text class="tick" x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">'
                f"{_format(y, log, percent)}</text>"
            )
    for x in x_ticks:
        parts.append(
            f'<text class="tick" x="{scale.x(x)}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="middle">{_format(x, log_x, False)}</text>'
        )
    for line, points in shown:
        path = " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<polyline class="line c{line.color % N_COLORS}" points="{path}"{dashes}/>')
        if not line.dashed and len(points) <= 60:
            parts += [
                f'<circle class="dot {name_color(line.color)}" '
                f'cx="{scale.x(x)}" cy="{scale.y(y)}" r="3">'
                f"<title>{html.escape(line.label)}: {x:g}, {_format(y, log, percent, exact=True)}"
                "</title></circle>"
                for x, y in points
            ]
        if line.ringed is not None:
            x, y = line.ringed
            parts.append(
                f'<circle class="ring c{line.color % N_COLORS}" cx="{scale.x(x)}" '
                f'cy="{scale.y(y)}" r="7"/>'
            )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"{html.escape(x_label)}</text>"
        f'<text class="label" x="12" y="{(_HEIGHT - _BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 12 {(_HEIGHT - _BOTTOM) / 2})">{html.escape(y_label)}</text></svg>'
    )
    return "".join(parts)


class _Scale:
    """Where values are in a chart."""

    def __init__(
        self, x_ticks: Sequence[float], y_ticks: Sequence[float], log: bool, log_x: bool
    ) -> None:
        self._log, self._log_x = log, log_x
        left, right = _place(x_ticks[0], log_x), _place(x_ticks[-1], log_x)
        low, high = _place(y_ticks[0], log), _place(y_ticks[-1], log)
        self._x = left, max(right - left, 1e-12)
        self._y = low, max(high - low, 1e-12)

    def x(self, value: float) -> float:
        share = (_place(value, self._log_x) - self._x[0]) / self._x[1]
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (_place(value, self._log) - self._y[0]) / self._y[1]
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def _place(value: float, log: bool) -> float:
    return math.log10(value) if log else value


def _ticks(low: float, high: float) -> list[float]:
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    return [float(tick) for tick in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _format(value: float, log: bool, percent: bool, *, exact: bool = False) -> str:
    if percent:
        return f"{100 * value:.2f}%" if exact else f"{100 * value:g}%"
    if log:
        return f"{value:.2e}" if exact else f"1e{round(math.log10(value))}"
    return f"{value:g}"
