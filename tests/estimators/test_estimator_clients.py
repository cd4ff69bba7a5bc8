"""TopKClassifier on the workers of a client: the same bits, and nothing large on the way."""

import copy
import os
import pickle
import signal
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from distributed.protocol.pickle import dumps
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dtopk import TopKClassifier
from dtopk.estimators import clients, linear
from dtopk.estimators import spool as spool_module
from dtopk_storage import create_store, open_store
from tests.cluster_runs import cluster, pids_of
from tests.small_stores import make_rows

N, D = 400, 6
MESSAGE_BYTES = 1_000_000
"""Most bytes of a message by way of the scheduler."""


@pytest.fixture(scope="module")
def data():
    return make_rows(N)


@pytest.fixture(scope="module")
def arrays(data):
    X, y = data
    return da.from_array(X, ((100, 0, 1, 299), (2, 4))), da.from_array(y, 77)


@pytest.fixture
def folder(tmp_path):
    """Give a folder for spools, which must be empty in the end."""
    place = tmp_path / "spools"
    place.mkdir()
    yield place
    assert list(place.iterdir()) == []


def make(**parameters):
    # Bits depend on the number of threads, and each worker here owns one.
    return TopKClassifier(**{"n_jobs": 1, "random_state": 0, "tol": 0.03, **parameters})


def assert_same(one, other):
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)
    np.testing.assert_array_equal(one.classes_, other.classes_)
    assert one.certificate_ == other.certificate_


def test_workers_give_the_bits_of_this_process(client, data, arrays, folder):
    """As many partitions of the same rows of a spool, wherever the rows are and whoever trains."""
    weight = np.random.default_rng(1).uniform(0.5, 2, N)
    here = make(partitions=2, class_weight="balanced").fit(*arrays, weight)
    there = make(class_weight="balanced", client=client, spool_dir=folder)
    assert_same(there.fit(*arrays, da.from_array(weight, 130)), here)
    assert_same(there.fit(*data, weight), here)
    assert there.n_iter_ > 1
    assert there.certificate_.certified


def test_default_client_trains_on_dask_arrays_alone(client, data, arrays, monkeypatch):
    used = []
    fit_on_cluster = clients.Client.gather

    def gather(self, *arguments, **known):
        used.append(self)
        return fit_on_cluster(self, *arguments, **known)

    monkeypatch.setattr(clients.Client, "gather", gather)
    make().fit(*arrays)
    assert used == []
    with client.as_current():
        make().fit(*data)
        assert used == []
        clf = make().fit(*arrays)
        assert set(used) == {client}
    assert_same(clf, make(partitions=2).fit(*arrays))


def test_store_is_trained_on_where_it_lies(client, data, tmp_path):
    with create_store(
        tmp_path / "store", n_features=D, class_names=("ant", "bee", "cat", "dog"), chunk_rows=64
    ) as writer:
        writer.append(*data)
    store = open_store(tmp_path / "store")
    there = make(client=client, spool_dir=tmp_path).fit(store)
    assert_same(there, make(partitions=2).fit(store))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_warm_start_goes_on_with_workers(client, arrays):
    clf = make(client=client, warm_start=True).fit(*arrays)
    n_iter = clf.n_iter_
    assert clf.fit(*arrays).n_iter_ < n_iter


def test_fit_in_a_task_makes_room_for_its_own_tasks(client, data, arrays):
    def train(X, y):
        return make().fit(da.from_array(X, 100), y)

    future = client.submit(train, *data, pure=False)
    assert_same(future.result(timeout=120), make(partitions=2).fit(*arrays))


@pytest.mark.slow
def test_fit_goes_on_when_a_worker_is_killed(arrays, folder, monkeypatch):
    """What it goes on from lies in the spool."""
    killed: list[int] = []

    def kill(self, record, W):
        if record.epoch == 2 and not killed:
            killed.append(pids_of(client)[0])
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(linear.EpochLines, "on_epoch", kill)
    with cluster(1, 1) as client:
        there = make(client=client, verbose=1, spool_dir=folder).fit(*arrays)
    assert killed
    assert_same(there, make(partitions=2).fit(*arrays))


def test_features_that_are_not_finite_are_named_by_a_worker(client, data, folder):
    X, y = data
    X = X.copy()
    X[321, 4] = np.inf
    match = "X must be finite in float32, got inf in row 321, column 4"
    with pytest.raises(ValueError, match=match):
        make(client=client, spool_dir=folder).fit(da.from_array(X, 50), y)


@pytest.mark.slow
def test_folder_that_workers_do_not_see_is_refused(client, arrays, tmp_path):
    """The name of a folder that is open is one for this process alone."""
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        match = r"spool_dir must be a folder that every worker sees, got '/proc/.*', in which the"
        with pytest.raises(ValueError, match=match):
            make(client=client, spool_dir=f"/proc/self/fd/{opened}").fit(*arrays)
    finally:
        os.close(opened)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [False, True])
def test_worker_that_does_not_see_the_spool_is_named(client, arrays, tmp_path, monkeypatch, given):
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    answers = {workers[0]: "", workers[1]: "[Errno 2] No such file", "gone": OSError("closed")}
    monkeypatch.setattr(spool_module, "ask_workers", lambda client, function: answers)
    parameters = {"spool_dir": tmp_path} if given else {}
    need = "be a folder that every worker sees" if given else "be given for these workers"
    with pytest.raises(ValueError, match=rf"spool_dir must {need}, got .*{workers[1]}.*No such"):
        make(client=client, **parameters).fit(*arrays)


@pytest.mark.parametrize(
    "method", ["decision_function", "predict", "predict_proba", "predict_log_proba"]
)
def test_predictions_of_workers_equal_those_of_arrays(client, data, arrays, method):
    clf = make().fit(*data).set_params(client=client)
    lazy = getattr(clf, method)(arrays[0])
    there = client.compute(lazy).result()
    np.testing.assert_allclose(there, getattr(clf, method)(data[0]), rtol=1e-5, atol=1e-6)


class Traffic:
    """Sizes of what a client sends the scheduler, and of what comes back."""

    def __init__(self, monkeypatch):
        self.sizes: list[int] = []
        graph, gather, scatter = Client._graph_to_futures, Client._gather, Client._scatter

        def sending(client, expr, *arguments, **known):
            self.sizes.append(len(dumps(expr)))
            return graph(client, expr, *arguments, **known)

        async def gathering(client, *arguments, **known):
            came = await gather(client, *arguments, **known)
            self.sizes.append(len(pickle.dumps(came)))
            return came

        async def scattering(client, data, *arguments, **known):
            if not known.get("direct"):
                self.sizes.append(len(pickle.dumps(data)))
            return await scatter(client, data, *arguments, **known)

        monkeypatch.setattr(Client, "_graph_to_futures", sending)
        monkeypatch.setattr(Client, "_gather", gathering)
        monkeypatch.setattr(Client, "_scatter", scattering)


class Unreachable:
    """Connections that do not come about."""

    def __call__(self, address=None, **known):
        return self

    def __getattr__(self, name):
        raise OSError(f"no route for {name}")


@pytest.fixture(scope="module")
def wide():
    """Weights of more than a message."""
    d, m = 3000, 100
    X = np.random.default_rng(0).normal(size=(200, d)).astype(np.float32)
    return X, np.arange(200) % m, make(max_epochs=3, tol=0.5).fit(X, np.arange(200) % m)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "by way of the scheduler"])
def test_weights_go_to_workers_once_and_in_no_graph(client, wide, monkeypatch, direct):
    X, _, fitted = wide
    clf = copy.copy(fitted).set_params(client=client)
    assert clf.coef_.nbytes > MESSAGE_BYTES
    traffic = Traffic(monkeypatch)
    if not direct:
        monkeypatch.setattr(client, "rpc", Unreachable())
    halves = da.full(X.shape, np.float32(0.5), chunks=(20, 3000))
    labels, scores = clf.predict_topk(halves, 3, return_scores=True)
    there = client.gather(client.compute([labels, scores]))
    here = fitted.predict_topk(np.full_like(X, 0.5), 3, return_scores=True)
    np.testing.assert_array_equal(there[0], here[0])
    np.testing.assert_allclose(there[1], here[1], rtol=1e-4, atol=1e-6)
    assert max(traffic.sizes) < MESSAGE_BYTES * 1.01
    assert (sum(traffic.sizes) > clf.coef_.nbytes) != direct


def test_labels_here_go_to_workers_in_pieces(client, monkeypatch):
    n = 400_000
    clf = make().fit(*make_rows(N)).set_params(client=client)
    X = da.zeros((n, D), chunks=(100_000, D), dtype=np.float32)
    label = clf.predict(np.zeros((1, D), np.float32))[0]
    y = np.where(np.arange(n) < 300_000, label, label + 1).astype(np.int64)
    traffic = Traffic(monkeypatch)
    assert y.nbytes > 3 * MESSAGE_BYTES
    assert clf.score(X, y) == 0.75
    assert clf.score(X, y, np.where(np.arange(n) < 300_000, 1.0, 0.0)) == 1.0
    assert max(traffic.sizes) < MESSAGE_BYTES


def peak_memory():
    """Return the most bytes that this process has held since the peak was set back."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_rows_come_neither_here_nor_to_the_scheduler(client, folder, monkeypatch):
    """More of them than this process takes of memory; the scheduler is in it."""
    n_blocks, rows, d = 10, 20_000, 64

    def draw(block_id=(0, 0)):
        rng = np.random.default_rng(block_id[0])
        return rng.normal(size=(rows, d)).astype(np.float32)

    X = da.map_blocks(
        draw, chunks=((rows,) * n_blocks, (d,)), dtype=np.float32, meta=np.empty((0, 0), np.float32)
    )
    y = X[:, :3].argmax(axis=1)
    make(client=client, tol=0.5).fit(X[:rows], y[:rows])
    traffic = Traffic(monkeypatch)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    clf = make(client=client, tol=0.2, spool_dir=folder).fit(X, y)
    grown = peak_memory() - before
    assert clf.certificate_.certified
    assert client.compute((clf.predict(X) == y).mean()).result() > 0.9
    assert X.nbytes > 50_000_000
    assert grown < 20_000_000
    assert max(traffic.sizes) < MESSAGE_BYTES / 4


def test_client_is_a_parameter_that_is_shared_and_never_copied(client, data):
    clf = make(client=client, C=0.5)
    assert clf.get_params()["client"] is client
    copied = clone(clf)
    assert copied.client is client
    assert copied is not clf
    assert copied.get_params() == clf.get_params()
    pipeline = clone(make_pipeline(StandardScaler(), clf))
    assert pipeline.steps[-1][1].client is client
    clf.fit(*data)
    assert not hasattr(clone(clf), "coef_")
    for other in (pickle.loads(pickle.dumps(clf)), copy.deepcopy(clf), copy.copy(clf)):
        assert other.client is None
        assert other.C == 0.5
        np.testing.assert_array_equal(other.predict(data[0]), clf.predict(data[0]))
    assert clf.client is client
    assert "client=<Client" in repr(clf)


def test_grid_search_trains_on_workers(client, data):
    search = GridSearchCV(make(client=client), {"C": [0.1]}, cv=2).fit(*data)
    assert search.best_estimator_.client is client
    assert search.cv_results_["mean_test_score"][0] > 0.5


def test_client_must_be_one_that_can_be_waited_for(data, arrays):
    match = r"client must be a distributed\.Client or None, got 'tcp"
    for fit_on in (data, arrays):
        with pytest.raises(TypeError, match=match):
            make(client="tcp://127.0.0.1:8786").fit(*fit_on)

    class Asynchronous(Client):
        asynchronous = True

        def __init__(self):
            pass

        def __del__(self):
            pass

    with pytest.raises(TypeError, match="client must be synchronous"):
        make(client=Asynchronous()).fit(*data)
