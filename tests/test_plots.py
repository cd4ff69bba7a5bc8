"""Figures: what they show, and that they are whole files."""

from types import SimpleNamespace

import numpy as np
import pytest

from dtopk.evaluation import ReliabilityBins
from dtopk.plots import draw_convergence, draw_reliability, draw_topk_accuracy, save_png


def make_history(gaps, exact=()):
    return [
        SimpleNamespace(
            epoch=epoch,
            seconds=0.5 * epoch,
            primal=2.0 + gap,
            dual_value=2.0,
            relative_gap=gap,
            exact=epoch in exact,
        )
        for epoch, gap in enumerate(gaps)
    ]


def get_line(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def test_convergence_shows_gaps_against_epochs_and_seconds():
    figure = draw_convergence(make_history([1, 0.1, 0.01], exact=[2]), tol=0.05, title="t")
    for axes, places in zip(figure.axes, ([0, 1, 2], [0, 0.5, 1]), strict=False):
        assert axes.get_yscale() == "log"
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), places)
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1, 0.1, 0.01])
        assert get_line(axes, "tolerance 0.05").get_ydata() == [0.05, 0.05]


def test_convergence_marks_exact_epochs():
    figure = draw_convergence(make_history([1, 0.1, 0.01], exact=[2]), tol=0.05, title="t")
    marked = get_line(figure.axes[0], "recomputed over all rows")
    assert (list(marked.get_xdata()), list(marked.get_ydata())) == ([2], [0.01])


def test_convergence_shows_both_objectives():
    axes = draw_convergence(make_history([1, 0.1]), tol=0.05, title="t").axes[2]
    np.testing.assert_array_equal(get_line(axes, "primal").get_ydata(), [3, 2.1])
    np.testing.assert_array_equal(get_line(axes, "dual").get_ydata(), [2, 2])


@pytest.mark.parametrize("gaps", [[], [1], [1, 0, -1e-9]])
def test_convergence_bears_few_epochs_and_no_gap(tmp_path, gaps):
    save_png(draw_convergence(make_history(gaps), tol=1e-3, title="t"), tmp_path / "c.png")


def test_topk_accuracy_shows_a_line_a_split(tmp_path):
    figure = draw_topk_accuracy({"train": {1: 0.9, 2: 1.0}, "test": {1: 0.5, 2: 0.75}}, title="t")
    np.testing.assert_array_equal(get_line(figure.axes[0], "train").get_ydata(), [90, 100])
    np.testing.assert_array_equal(get_line(figure.axes[0], "test").get_ydata(), [50, 75])


def test_figure_is_a_png_file(tmp_path):
    save_png(draw_topk_accuracy({"test": {1: 0.5, 2: 0.75}}, title="t"), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_reliability_shows_accuracy_and_rows_by_confidence(tmp_path):
    before = ReliabilityBins(
        n_rows=np.array([1, 3]), confidence=np.array([0.5, 0.9]), accuracy=np.array([1.0, 0.6])
    )
    after = ReliabilityBins(
        n_rows=np.array([4]), confidence=np.array([0.7]), accuracy=np.array([0.7])
    )
    figure = draw_reliability({"before": before, "calibrated": after}, title="t")
    axes, shares = figure.axes
    line = get_line(axes, "before")
    np.testing.assert_allclose(line.get_xdata(), [50, 90])
    np.testing.assert_allclose(line.get_ydata(), [100, 60])
    np.testing.assert_allclose(get_line(axes, "calibrated").get_ydata(), [70])
    np.testing.assert_allclose(shares.lines[0].get_ydata(), [25, 75])
    save_png(figure, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
