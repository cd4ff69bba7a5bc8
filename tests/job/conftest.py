"""Fixtures of the jobs' tests."""

import signal

import pytest

from dtopk.job import (
    ModelSection,
    OutputSection,
    SolverSection,
    TrackingSection,
    TrainJob,
    training,
)
from tests.small_stores import make_store


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "small.zarr")


@pytest.fixture
def make_job(tmp_path):
    """Make a job that trains quickly and is not tracked; sections can be given."""

    def make_job(run_dir="run", **sections):
        defaults = {
            "model": ModelSection(loss="softmax", C=0.1),
            "solver": SolverSection(tol=1e-3, max_epochs=200),
            "output": OutputSection(run_dir=str(tmp_path / "runs" / run_dir)),
            "tracking": TrackingSection(mlflow=False),
        }
        return TrainJob(**(defaults | sections))

    return make_job


@pytest.fixture
def no_figures(monkeypatch):
    """Leave the figures out, which take most of the time of a small job."""
    monkeypatch.setattr(training, "save_png", lambda figure, path: None)


@pytest.fixture(autouse=True)
def interruptible():
    """Take interrupts as a program at a terminal does, also where the shell has them ignored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
