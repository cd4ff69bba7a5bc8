"""The adapters of the suite: what they minimise is what they say, C included."""

import importlib.util
import re
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from dtopk.benchmarks.peers import PEERS, Fitted, Peer, Task, find_peer
from dtopk.benchmarks.peers.base import Effort
from dtopk.benchmarks.problems import OBJECTIVES, ProblemData, Shape, evaluate_primal
from dtopk.engine import ArrayRows, FitOptions, fit

SHAPE = Shape(name="tiny", n_samples=120, n_features=8, n_classes=5)
CLOSE = 1e-3
"""Relative, of objectives. A C that were wrong by n_samples, or by 2, would miss by far more."""
EFFORTS = {"iterations": 2000.0, "epochs": 2000.0, "tolerance": 1e-4}
IN_PROCESSES = ("spark", "dask-ml", "dtopk-dask")
"""They start processes: tested one by one, or by the suite itself."""
IMPORTED = {
    "dtopk": "dtopk",
    "liblinear-official": "liblinear",
    "scikit-learn": "sklearn",
    "snapml": "snapml",
    "sklearn-contrib-lightning": "lightning",
    "spams-bin": "spams",
    "torch": "torch",
    "pyspark": "pyspark",
    "dask-ml": "dask_ml",
}
ADAPTED = [
    (name, objective)
    for name, peer in PEERS.items()
    for objective in peer.objectives
    if OBJECTIVES[objective].parameters.get("k", 1) < SHAPE.n_classes and name not in IN_PROCESSES
]


def make_task(objective, C, effort, shape=SHAPE):
    return Task(objective=objective, C=C, shape=shape, threads=1, effort=effort, limit_s=60.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ProblemData.write(SHAPE, tmp_path_factory.mktemp("rows"))


def train(name, task, data):
    with ExitStack() as stack:
        fitted = find_peer(name)().prepare(task, data, stack)()
    assert isinstance(fitted, Fitted)
    assert fitted.W.dtype == np.float64
    assert fitted.W.shape == (task.shape.n_features, task.shape.n_classes)
    return fitted


def primal_of(fitted, task, data):
    loss = OBJECTIVES[task.objective].make_loss()
    return evaluate_primal(loss, data.training_batches(), task.C, fitted.W)


def optimum_of(task, data):
    X, y = data.load_training()
    loss = OBJECTIVES[task.objective].make_loss()
    options = FitOptions(C=task.C, tol=1e-6, dtype="float64", max_epochs=5000)
    certificate = fit(ArrayRows(X, y, SHAPE.n_classes), loss, options).certificate
    assert certificate.relative_gap <= 1e-6
    return certificate.primal


@pytest.mark.filterwarnings("ignore")  # of a solver that stops where it is told to
@pytest.mark.parametrize("C", [0.1, 3.0])
@pytest.mark.parametrize(("name", "objective"), ADAPTED)
def test_peer_minimises_our_objective_at_our_C(name, objective, C, data):
    peer = find_peer(name)
    if importlib.util.find_spec(IMPORTED[peer.distribution]) is None:
        pytest.skip(f"{peer.distribution} is not installed")
    effort = 100.0 if name == "torch-sgd" else EFFORTS[peer.effort.name]
    task = make_task(objective, C, effort)
    found, best = primal_of(train(name, task, data), task, data), optimum_of(task, data)
    assert best * (1 - 1e-5) <= found <= best * (1 + CLOSE)


def test_peer_of_the_defaults_stops_by_itself(data):
    task = make_task("softmax", 1.0, None)
    fitted = train("sklearn-lbfgs", task, data)
    assert 1 <= fitted.facts["iterations"] <= 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of what compiles
def test_dtopk_on_workers_minimises_our_objective(data):
    task = make_task("softmax", 1.0, 1e-3)
    found = primal_of(train("dtopk-dask", task, data), task, data)
    assert found <= optimum_of(task, data) * (1 + CLOSE)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_peer_does_the_iterations_that_it_is_told(data):
    fitted = train("sklearn-newton-cg", make_task("softmax", 1.0, 2.0), data)
    assert fitted.facts["iterations"] == 2


def test_dtopk_streams_a_store_within_its_limit(tmp_path):
    shape = Shape(name="s", n_samples=400, n_features=8, n_classes=5, memory_limit=10**7)
    stored = ProblemData.write(shape, tmp_path)
    fitted = train("dtopk", make_task("softmax", 1.0, 1e-3, shape), stored)
    assert fitted.facts["relative_gap"] <= 1e-3
    assert find_peer("dtopk")().bytes_needed(shape) == 0


def test_reference_of_a_store_is_certified_as_it_is_when_its_time_is_over(tmp_path):
    """A gap that is never reached, and 200 passes of dtopk's own, end it otherwise."""
    shape = Shape(name="s", n_samples=400, n_features=8, n_classes=5, memory_limit=10**7)
    stored = ProblemData.write(shape, tmp_path)
    task = replace(make_task("softmax", 1.0, 1e-15, shape), limit_s=1e-6)
    facts = train("reference", task, stored).facts
    assert facts["epochs"] <= 2
    assert facts["relative_gap"] > 1e-15


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what they import
@pytest.mark.parametrize(
    ("name", "module", "attribute"),
    [
        ("dask-ml", "dask_ml.linear_model", "LogisticRegression"),
        ("spark", "pyspark.ml.classification", "LogisticRegression"),
    ],
)
def test_peer_in_processes_fits_a_few_rows_before_the_clock(
    name, module, attribute, data, monkeypatch
):
    kind = getattr(pytest.importorskip(module), attribute)
    fit_rows, n_fits = kind.fit, []

    def fit_and_count(self, *arguments, **options):
        n_fits.append(1)
        return fit_rows(self, *arguments, **options)

    monkeypatch.setattr(kind, "fit", fit_and_count)
    (objective,) = find_peer(name).objectives
    task = make_task(objective, 1.0, 200.0)
    with ExitStack() as stack:
        run = find_peer(name)().prepare(task, data, stack)
        assert len(n_fits) == 1
        found = primal_of(run(), task, data)
    assert found <= optimum_of(task, data) * (1 + CLOSE)


def test_arrays_need_their_features_and_the_copies_that_a_solver_makes():
    shape = Shape(name="s", n_samples=1000, n_features=10, n_classes=5)
    weights = 8 * 10 * 5
    needed = {name: find_peer(name)().bytes_needed(shape) for name in PEERS}
    assert needed["sklearn-lbfgs"] == 1000 * 10 * 4 + weights
    assert needed["sklearn-crammer-singer"] == 1000 * 10 * 12 + weights
    assert needed["liblinear"] == 1000 * 10 * 20 + weights


def test_efforts_grow_by_their_factor():
    assert list(Effort(name="iterations", first=8, runs=3).values()) == [8, 16, 32]
    tolerances = Effort(name="tolerance", first=0.1, factor=0.25, runs=2)
    assert list(tolerances.values()) == [0.1, 0.025]
    assert not tolerances.in_proportion


@pytest.mark.parametrize("name", ["liblinear", "liblinear-primal"])
def test_default_tolerance_is_among_those_that_are_tried(name):
    effort = find_peer(name).effort
    assert effort.default in list(effort.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vowpal", "peer 'vowpal' is unknown. Available: 'dtopk', 'dtopk-dask',"),
        ("no.such:Peer", "peer 'no.such:Peer' cannot be imported: No module named 'no'."),
        ("dtopk.losses:Loss", "peer 'dtopk.losses:Loss' must be a subclass of Peer"),
    ],
)
def test_unknown_peer_is_refused(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find_peer(name)


def test_peer_of_another_module_is_found_by_its_address():
    name = "tests.benchmarks.counting_peer:GradientDescent"
    assert issubclass(find_peer(name), Peer)
    assert find_peer(name).title == "gradient descent"


@pytest.mark.parametrize("name", PEERS)
def test_peer_says_what_it_is(name):
    peer = find_peer(name)
    assert set(peer.objectives) <= set(OBJECTIVES)
    assert peer.distribution in IMPORTED
    assert peer.title
