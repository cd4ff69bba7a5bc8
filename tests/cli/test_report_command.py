"""`dtopk report`."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from dtopk.job import DataSection, ModelSection, OutputSection, TrackingSection, TrainJob, train
from dtopk.job.report_chart import Line, draw_lines
from dtopk.model import load_model

_VOID = {"meta", "br", "img"}


class Balance(HTMLParser):
    """Hold a page to closing what it opens, and to loading nothing."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.loaded += [value for name, value in attrs if name in ("src", "href")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def runs(store, tmp_path):
    """Train two models, of which one is not certified."""
    paths = []
    for name, model in (
        ("soft", ModelSection(C=0.1)),
        ("a<b>", ModelSection(loss="topk_hinge_alpha", k=2, C=0.1)),
    ):
        job = TrainJob(
            data=DataSection(validation="test", evaluate=("train", "test")),
            model=model,
            output=OutputSection(run_dir=str(tmp_path / "runs" / name), save_dual=False),
            tracking=TrackingSection(mlflow=False),
        )
        paths.append(train(store, job).run_dir)
    return paths


def test_report_shows_runs_side_by_side_and_loads_nothing(call, runs, tmp_path):
    page = tmp_path / "page.html"
    result = call("report", *runs, "--out", page)
    assert result.status == 0, result.err
    assert f"wrote {page}\n" in result.err
    text = page.read_text()
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert parser.loaded == []
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert "a&lt;b&gt;" in text
    assert "a<b>" not in text
    for title in (
        "Comparison", "Gap by epoch", "Gap by time", "Top-k accuracy on &#x27;test&#x27;",
        "test: top-1 by epoch", "Certificate", "Timing", "Environment",
        "Accuracy by class on &#x27;test&#x27;", "Most confused on &#x27;test&#x27;",
    ):  # fmt: skip
        assert title in text, title
    assert len(re.findall("<svg", text)) == 6


def test_report_shows_probabilities_and_sets_of_a_calibrated_model(call, runs, tmp_path):
    assert call("calibrate", runs[1], "--split", "test").status == 0
    page = tmp_path / "page.html"
    result = call("report", *runs, "--out", page)
    assert result.status == 0, result.err
    text = page.read_text()
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    # Of 50 rows sets of 99% cannot be made.
    for shown in ("temperature", "expected calibration error", "80%", "95%"):
        assert f"<td>{shown}</td>" in text or f"<td class=number>{shown}</td>" in text, shown
    assert "<td class=number>99%</td>" not in text
    assert text.count("Reliability on") == 1


def test_report_of_a_moved_store_leaves_out_what_takes_its_rows(call, runs, store, tmp_path):
    (tmp_path / "small.zarr").rename(tmp_path / "moved.zarr")
    result = call("report", runs[0], "--out", tmp_path / "page.html")
    assert result.status == 0
    assert "Accuracy by class is left out" in result.err
    assert "Most confused" not in (tmp_path / "page.html").read_text()


def test_report_of_no_run_is_refused(call, tmp_path):
    result = call("report", tmp_path, "--out", tmp_path / "page.html")
    assert result.status == 2
    assert "RUN must be a run folder" in result.err


def test_lines_lie_where_their_values_are():
    """Of y from 0 to 10, 5 is halfway up; of 1 to 100 on a logarithmic axis 10 is."""
    straight = draw_lines(
        [Line(label="a", color=0, points=[(0, 0), (1, 5), (2, 10)])], x_label="x", y_label="y"
    )
    log = draw_lines(
        [Line(label="a", color=0, points=[(0, 1), (1, 10), (2, 100)])],
        x_label="x", y_label="y", log=True,
    )  # fmt: skip
    for chart in (straight, log):
        points = re.search(r'points="([^"]*)"', chart)[1].split()
        heights = [float(point.split(",")[1]) for point in points]
        assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.1)
    assert draw_lines([], x_label="x", y_label="y") == ""


def test_report_names_rows_that_the_model_was_trained_on(call, runs, tmp_path):
    """A model that says it was trained on 'test' too is shown on another split, or with a note."""
    seen = "which has rows that the model was trained on"
    page = tmp_path / "page.html"
    assert call("report", runs[0], "--out", page).status == 0
    assert seen not in page.read_text()
    model = load_model(runs[0])
    dataclasses.replace(model, trained_on=("train", "test")).save(runs[0] / "model.npz")
    assert call("report", runs[0], "--out", page).status == 0
    assert f"is that of split &#x27;train&#x27;, {seen}" in page.read_text()
    dataclasses.replace(model, trained_on=("test",)).save(runs[0] / "model.npz")
    assert call("report", runs[0], "--out", page).status == 0
    assert seen not in page.read_text()
    assert "Accuracy by class on &#x27;train&#x27;" in page.read_text()
