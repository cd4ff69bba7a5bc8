"""Fixtures of the command line's tests."""

import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.launch.submit import SubmissionFolder
from dtopk.model import Model
from tests.small_stores import make_rows, make_store
from tests.submitted_runs import end_processes


@pytest.fixture
def call(capsys):
    """Call the command line, as a shell would: exit status and both outputs come back."""

    def call(*arguments):
        capsys.readouterr()
        status = run_and_report(dtopk, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return call


@pytest.fixture
def call_json(call):
    """Call with --json, and hold it to one JSON object on standard output."""

    def call_json(*arguments):
        result = call(*arguments, "--json")
        assert result.status == 0, result.err
        assert result.out.count("\n") == 1
        return json.loads(result.out)

    return call_json


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "small.zarr")


@pytest.fixture
def model_path(tmp_path):
    """Save a model that scores by the nearest mean: <x, mean> - |mean|^2 / 2."""
    X, y = make_rows(2000, seed=3)
    means = np.stack([X[y == label].mean(axis=0) for label in range(4)], axis=1)
    Model(
        W=means,
        intercept=-0.5 * (means**2).sum(axis=0),
        classes=np.array(["ant", "bee", "cat", "dog"]),
        loss="topk_hinge_alpha",
        loss_parameters={"k": 1, "gamma": 0.0, "smoothing": "lapin"},
    ).save(tmp_path / "model.npz")
    return tmp_path / "model.npz"


@pytest.fixture
def run_dir(tmp_path):
    """Give a run folder with spaces, whose processes are ended with the test."""
    path = tmp_path / "my runs" / "first one"
    yield path
    if SubmissionFolder(run=path).record.is_file():
        end_processes(path)


@pytest.fixture(autouse=True)
def interruptible():
    """Take interrupts as a program at a terminal does, also where the shell has them ignored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
