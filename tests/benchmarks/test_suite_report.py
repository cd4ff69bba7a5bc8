"""What the suite keeps of its runs, what it runs again, and what its tables say."""

import json
import re
from dataclasses import replace

import pytest

from dtopk.benchmarks import suite
from dtopk.benchmarks.measure import Run
from dtopk.benchmarks.peers import Effort
from dtopk.benchmarks.problems import Shape
from dtopk.benchmarks.report import HEADER, explain, table_rows, write_report
from dtopk.benchmarks.results import FILE_NAME, Results, Row, Settings
from dtopk.benchmarks.suite import SuiteOptions, describe_machine, run_suite
from dtopk.plots import TimeBar, draw_times

SHAPE = Shape(name="60x8x6", n_samples=60, n_features=8, n_classes=6)
DESCENT = "tests.benchmarks.counting_peer:GradientDescent"
MISSING = "tests.benchmarks.counting_peer:Missing"
OPTIONS = SuiteOptions(shapes=(SHAPE,), peers=(DESCENT,), threads=1, time_limit_s=10.0)


class ScriptedRuns:
    """Stands for :func:`run_in_process`: the distance halves as the iterations double."""

    def __init__(self, seconds_per_iteration=0.01):
        self.asked = []
        self.seconds_per_iteration = seconds_per_iteration
        self.gap = 1e-5

    def __call__(self, peer, task, folder):
        self.asked.append((peer, task.effort))
        facts = {}
        if peer == "reference":
            primal = 100.0
            facts = {"dual_value": 100.0, "relative_gap": self.gap}
        else:
            primal = 100.0 * (1 + 0.2 / (task.effort or 40.0))
        seconds = self.seconds_per_iteration * (task.effort or 40.0)
        if seconds > task.limit_s:
            return Run(effort=task.effort, status="late")
        return Run(
            effort=task.effort, status="done", seconds=seconds, peak_bytes=5_000_000,
            primal=primal, accuracy={"top_1": 0.5, "top_5": 0.75}, facts=facts,
        )  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    scripted = ScriptedRuns()
    monkeypatch.setattr(suite, "run_in_process", scripted)
    return scripted


def row_of(results, name=DESCENT):
    return results.rows[SHAPE.name, "softmax", name]


def test_suite_doubles_the_iterations_until_the_tolerance(runs, tmp_path):
    """0.2 / 128 is above 1e-3, and 0.2 / 256 below."""
    results = run_suite(OPTIONS, tmp_path)
    efforts = [effort for name, effort in runs.asked if name == DESCENT]
    assert efforts == [64, 128, 256, None]
    reached = row_of(results).reached(1e-3)
    assert (reached.effort, reached.seconds) == (256, 2.56)
    assert row_of(results).suboptimality(row_of(results).default) == pytest.approx(0.005)


def test_suite_ends_where_twice_the_work_cannot_be_done_in_time(runs, tmp_path):
    """At 0.1 s an iteration 128 of them are over the limit of 10 s, and 64 are not: 12.8 s would
    be no more than one and a half limits. At 0.13 s they would be more.
    """
    runs.seconds_per_iteration = 0.1
    row = row_of(run_suite(OPTIONS, tmp_path / "a"))
    assert [run.status for run in row.runs] == ["done", "late"]
    runs.seconds_per_iteration = 0.13
    results = run_suite(OPTIONS, tmp_path / "b")
    assert [run.status for run in row_of(results).runs] == ["done"]
    assert table_rows(results, SHAPE.name)[0][2] == "not in 10 s (3e-03 with 64 iterations)"


def test_default_that_is_an_effort_too_is_not_run_twice(runs, tmp_path, monkeypatch):
    from tests.benchmarks.counting_peer import GradientDescent

    monkeypatch.setattr(GradientDescent, "effort", Effort(name="iterations", first=64, default=128))
    row = row_of(run_suite(OPTIONS, tmp_path / "a"))
    assert row.default == row.runs[1]
    assert (DESCENT, None) not in runs.asked
    # 4,000 of them would take 40 s of the 10 that there are.
    monkeypatch.setattr(GradientDescent, "effort", Effort(name="iterations", first=64, default=4e3))
    assert row_of(run_suite(OPTIONS, tmp_path / "b")).default == Run(effort=None, status="late")
    assert (DESCENT, None) not in runs.asked


def test_solver_that_is_late_at_the_least_effort_is_not_run_by_its_defaults(runs, tmp_path):
    runs.seconds_per_iteration = 1.0
    row = row_of(run_suite(OPTIONS, tmp_path))
    assert [run.status for run in row.runs] == ["late"]
    assert row.default == Run(effort=None, status="late")
    assert (DESCENT, None) not in runs.asked


def test_suite_runs_again_only_what_it_is_told_to(runs, tmp_path):
    first = run_suite(OPTIONS, tmp_path)
    n_runs = len(runs.asked)
    assert run_suite(OPTIONS, tmp_path) == first
    assert len(runs.asked) == n_runs
    run_suite(replace(OPTIONS, again=True), tmp_path)
    # The reference too.
    assert runs.asked[n_runs:] == runs.asked[:n_runs]


def test_suite_measures_another_version_anew(runs, tmp_path, monkeypatch):
    from tests.benchmarks.counting_peer import GradientDescent

    run_suite(OPTIONS, tmp_path)
    n_runs = len(runs.asked)
    monkeypatch.setattr(GradientDescent, "installed_version", classmethod(lambda cls: "99"))
    assert row_of(run_suite(OPTIONS, tmp_path)).version == "99"
    # The lower bound is kept.
    assert runs.asked[n_runs:] == [run for run in runs.asked[:n_runs] if run[0] == DESCENT]


def test_suite_keeps_what_was_measured_where_the_solver_is_installed(runs, tmp_path, monkeypatch):
    from tests.benchmarks.counting_peer import GradientDescent

    first = run_suite(OPTIONS, tmp_path)
    monkeypatch.setattr(GradientDescent, "installed_version", classmethod(lambda cls: ""))
    assert run_suite(OPTIONS, tmp_path) == first


def test_bound_that_is_not_close_judges_nobody(runs, tmp_path):
    """A tenth of the tolerance, 1e-4, is the most that a bound may be from the optimum."""
    runs.gap = 3e-4
    options = replace(OPTIONS, peers=(DESCENT, "tests.benchmarks.counting_peer:Scripted"))
    results = run_suite(options, tmp_path)
    assert runs.asked == [("reference", 1e-4)]
    assert [run.message for row in results.rows.values() for run in row.runs] == [
        "no bound close enough (gap 3e-04)"
    ] * 2
    assert table_rows(results, SHAPE.name)[0][2] == "failed"
    runs.gap = 1e-4
    assert row_of(run_suite(OPTIONS, tmp_path)).reached(1e-3)


def test_suite_tries_what_was_not_installed_once_more(runs, tmp_path, monkeypatch):
    options = replace(OPTIONS, peers=(MISSING,))
    assert table_rows(run_suite(options, tmp_path), SHAPE.name)[0][2] == "not installed"
    assert runs.asked == []
    from tests.benchmarks.counting_peer import Missing

    monkeypatch.setattr(Missing, "distribution", "numpy")
    assert row_of(run_suite(options, tmp_path), MISSING).runs


def test_suite_tries_what_failed_once_more(runs, tmp_path, monkeypatch):
    def fail(peer, task, folder):
        return Run(effort=task.effort, status="failed", message=f"{peer} fails.")

    monkeypatch.setattr(suite, "run_in_process", fail)
    row = row_of(run_suite(OPTIONS, tmp_path))
    assert [run.message for run in row.runs] == ["no lower bound: reference fails."]
    monkeypatch.setattr(suite, "run_in_process", runs)
    assert row_of(run_suite(OPTIONS, tmp_path)).runs[-1].status == "done"


def test_suite_refuses_what_needs_more_than_the_memory(runs, tmp_path):
    shape = replace(SHAPE, memory_limit=1000)
    results = run_suite(replace(OPTIONS, shapes=(shape,)), tmp_path)
    needed = 60 * 8 * 4 + 8 * 8 * 6
    assert table_rows(results, SHAPE.name)[0][2] == f"needs {needed:,} bytes"
    assert runs.asked == []


def test_results_of_other_settings_are_refused(runs, tmp_path):
    run_suite(OPTIONS, tmp_path)
    message = f"time_limit_s must be 10.0, as of the results in '{tmp_path}/results.json', got 20.0"
    with pytest.raises(ValueError, match=re.escape(message)):
        run_suite(replace(OPTIONS, time_limit_s=20.0), tmp_path)


def test_file_that_holds_no_results_is_refused(tmp_path):
    (tmp_path / FILE_NAME).write_text('{"version": 99}')
    with pytest.raises(ValueError, match="must hold the results of a suite, version 1"):
        Results.load(tmp_path, OPTIONS.settings)


def test_rows_come_back_from_the_file(runs, tmp_path):
    results = run_suite(OPTIONS, tmp_path)
    assert Results.load(tmp_path, OPTIONS.settings) == results
    assert json.loads((tmp_path / FILE_NAME).read_text())["rows"][0]["peer"] == DESCENT


def test_rows_of_data_are_gone_afterwards(runs, tmp_path):
    run_suite(OPTIONS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def made_results():
    settings = Settings(C=1.0, tol=1e-3, time_limit_s=9.0, threads=2, machine="a machine")
    results = Results(settings, titles={"s": "a shape"})
    own = Run(
        effort=1e-3, status="done", seconds=0.5, peak_bytes=2_000_000, primal=10.0,
        accuracy={"top_1": 0.9, "top_5": 1.0}, facts={"relative_gap": 8e-4},
    )  # fmt: skip
    grid = Run(
        effort=4, status="done", seconds=2.0, peak_bytes=0, primal=10.0,
        accuracy={"top_1": 0.8}, facts={"single_seconds": 0.25},
    )  # fmt: skip
    failed = Run(effort=8, status="failed", message="ValueError: no.")
    rows = [
        Row(shape="s", objective="softmax", peer="torch-sgd", version="1", runs=(grid,),
            default=Run(effort=None, status="late"), bound=9.999),
        Row(shape="s", objective="softmax", peer="spams", version="2", runs=(failed,)),
        Row(shape="s", objective="top5_hinge", peer="dtopk", version="3", runs=(own,)),
        Row(shape="s", objective="softmax", peer="dtopk", version="3", runs=(own,), default=own),
    ]  # fmt: skip
    results.rows = {row.key: row for row in rows}
    return results


def test_table_has_dtopk_first_and_the_others_by_its_time():
    rows = [dict(zip(HEADER, row, strict=True)) for row in table_rows(made_results(), "s")]
    assert [row["solver"].split(",")[0] for row in rows] == [
        "dtopk", "PyTorch", "SPAMS fistaFlat", "dtopk",
    ]  # fmt: skip
    own, grid, failed, _ = rows
    assert (own["s"], own["by dtopk's"], own["default: distance"]) == ("0.50", "1", "8.0e-04")
    assert (grid["s"], grid["by dtopk's"], grid["with"]) == (
        "2.00 (0.25)", "4 (0.5 for one rate)", "4 epochs",
    )  # fmt: skip
    assert (grid["default: s"], grid["top-1"], grid["top-5"]) == ("not in 9 s", "80.00", "")
    assert (failed["s"], failed["by dtopk's"], failed["MB"]) == ("failed", "", "")


def test_explanation_names_failures_versions_and_losses_that_dtopk_has_alone():
    text = "\n".join(explain(made_results()))
    assert "SPAMS fistaFlat, softmax, s: ValueError: no." in text
    assert "No other solver of the suite minimises: smooth top-5 hinge." in text
    assert "(torch 1): time of the whole grid" in text
    assert "a user would not know when that is" in text


def test_report_is_a_table_and_a_figure_of_each_shape(tmp_path):
    paths = write_report(made_results(), tmp_path)
    assert [path.name for path in paths] == ["table.md", "s.png"]
    lines = paths[0].read_text().splitlines()
    assert lines[0] == "## a shape"
    assert lines[2].count("|") == lines[3].count("|") == len(HEADER) + 1
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_figure_names_the_time_of_the_best_rate_alone(tmp_path, monkeypatch):
    drawn = []

    def draw(bars, **options):
        drawn.extend(bars)
        return draw_times(bars, **options)

    monkeypatch.setattr("dtopk.benchmarks.report.draw_times", draw)
    write_report(made_results(), tmp_path)
    assert [bar.label for bar in drawn if bar.seconds == 2.0] == [
        "PyTorch, SGD over 8 learning rates (0.25 s for one)"
    ]


def test_figure_hatches_what_was_not_done_in_time():
    bars = [
        TimeBar(group="a", label="x", seconds=2.0),
        TimeBar(group="b", label="y", seconds=None),
    ]
    axes = draw_times(bars, limit_s=30.0, xlabel="s", title="t").axes[0]
    assert [bar.get_hatch() for bar in axes.patches] == [None, "///"]
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == pytest.approx([2.0, 30.0])
    assert [text.get_text().strip() for text in axes.texts] == ["2 s", "> 30 s"]
    assert axes.get_xscale() == "log"


def test_machine_has_a_name_and_cores():
    assert re.fullmatch(r".+, \d+ cores", describe_machine())
