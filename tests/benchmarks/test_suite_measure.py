"""One run in a process of its own: its time, its memory, and every way in which it may end."""

import numpy as np
import pytest

from dtopk.benchmarks.measure import run_in_process
from dtopk.benchmarks.peers import Task
from dtopk.benchmarks.problems import ProblemData, Shape

SHAPE = Shape(name="tiny", n_samples=50, n_features=4, n_classes=3)
PEER = "tests.benchmarks.counting_peer:"


@pytest.fixture
def data_folder(tmp_path):
    ProblemData.write(SHAPE, tmp_path)
    return tmp_path


def run(name, folder, limit_s=60.0):
    task = Task(objective="softmax", C=2.0, shape=SHAPE, threads=1, effort=1.0, limit_s=limit_s)
    return run_in_process(PEER + name, task, folder)


def test_run_is_judged_by_its_weights(data_folder):
    """Weights of zero: the softmax loss of a row is log 3, and class 0 is named first."""
    found = run("Scripted", data_folder)
    assert (found.status, found.message) == ("done", "")
    assert found.primal == pytest.approx(2.0 * 50 * np.log(3))
    held_out = np.load(data_folder / "test_y.npy")
    assert found.accuracy == {"top_1": pytest.approx((held_out == 0).mean())}
    assert found.seconds < 1


def test_memory_is_the_peak_of_the_training(data_folder):
    assert 60e6 < run("Allocates", data_folder).peak_bytes < 100e6


def test_run_is_ended_at_its_limit(data_folder):
    found = run("Sleeps", data_folder, limit_s=0.2)
    assert (found.status, found.seconds) == ("late", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Fails", "RuntimeError: there is no solution."),
        ("Dies", "exit status 9: no more memory"),
        ("WrongShape", "ValueError: weights must be of shape (4, 3), got (3, 4)."),
    ],
)
def test_failed_run_says_why(data_folder, name, message):
    found = run(name, data_folder)
    assert (found.status, found.message) == ("failed", message)


def test_run_that_is_not_ready_in_time_failed(data_folder, monkeypatch):
    monkeypatch.setattr("dtopk.benchmarks.measure.SETUP_LIMIT_S", 0.1)
    found = run("Stranded", data_folder)
    assert found.status == "failed"
    assert found.message == "did not load, import and compile within 0.1 s"
