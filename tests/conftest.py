"""Environment and fixtures that every test shares."""

import os
import signal

# A shell that runs the tests in the background has them ignore interrupts, which some send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports the libraries that read them.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
# A developer's own tracking server is no place for the runs of tests.
os.environ.pop("MLFLOW_TRACKING_URI", None)
# Two threads at most: the arrays in tests are small, and more threads would only wait.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_variable, str(min(2, os.cpu_count() or 1)))

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from tests.mlflow_server import mlflow_server, silent_server  # noqa: E402, F401
from tests.s3_server import s3, s3_server  # noqa: E402, F401

_WITH_PROCESSES = (
    "test_dask_", "test_faults", "test_estimator_clients", "test_train_on_workers",
    "test_object_store",  # which ask for their server by parameter
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests have to be in the same process, where they are shared out to several.

    Tests of a module share their fixtures. Those that start workers or a server are kept out of
    each other's way, and come first, since together they take longest.
    """

    def starts_workers(item: pytest.Item) -> bool:
        name = item.path.name
        if item.path.parent.name in ("launch", "cli") or name.startswith(_WITH_PROCESSES):
            return True
        servers = {"client", "s3_server", "mlflow_server"}
        return bool(servers & set(getattr(item, "fixturenames", ())))

    for item in items:
        group = "processes" if starts_workers(item) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not starts_workers(item))


@pytest.fixture
def rng() -> np.random.Generator:
    """Draw the same numbers in every run."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def client():
    """Give a client of two worker processes of one thread each, which all tests share.

    A test that ends or wounds workers needs a cluster of its own.
    """
    from dtopk.launch import ClusterOptions, open_cluster

    options = ClusterOptions(kind="local", workers=2, threads_per_worker=1, dashboard=False)
    with open_cluster(options) as client:
        yield client
