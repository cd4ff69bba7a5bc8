"""Clusters that run already: connecting to them, waiting for them, and what is said of them."""

import asyncio
import contextlib
import json
import logging
import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from distributed import LocalCluster
from distributed.comm.core import CommClosedError

from dtopk.launch import (
    ClusterError,
    ClusterOptions,
    describe_workers,
    inspection,
    open_cluster,
    wait_for_workers,
)
from dtopk.launch.settings import DASK_SETTINGS
from dtopk.launch.workers import ask_workers

SETTINGS = Path(__file__).parents[2] / "deploy" / "dask.yaml"
MARGIN_S = 15.0
"""Seconds by which an error may come later than it says, on a machine with other work."""


def connect(scheduler, **options):
    return open_cluster(ClusterOptions(kind="scheduler", scheduler=str(scheduler), **options))


@pytest.fixture
def address(client):
    return client.scheduler.address


@pytest.fixture
def refuses():
    """Expect an error of `open_cluster`, and that it comes in time."""

    @contextlib.contextmanager
    def refuses(error, message, within_s=0.0):
        start = time.monotonic()
        with pytest.raises(error, match=message):
            yield
        assert time.monotonic() - start < within_s + MARGIN_S

    return refuses


def test_scheduler_is_reached_by_address_and_by_file(client, address, tmp_path):
    (tmp_path / "scheduler.json").write_text(json.dumps({"address": address}))
    for scheduler in (address, tmp_path / "scheduler.json"):
        with connect(scheduler, min_workers=2) as other:
            assert describe_workers(other) == describe_workers(client)
            assert other.submit(os.getpid).result() != os.getpid()
    # It was not ours to end.
    assert client.submit(abs, -3).result() == 3


def test_settings_hold_while_connected_and_no_longer(address):
    before = dask.config.get("distributed.comm.timeouts.tcp", default=None)
    with connect(address):
        assert dask.config.get("distributed.comm.timeouts.tcp") == "11s"
    assert dask.config.get("distributed.comm.timeouts.tcp", default=None) == before


def test_scheduler_file_that_comes_later_is_waited_for(address, tmp_path):
    def write():
        with open(tmp_path / "scheduler.json", "w") as file:
            file.write('{"address": ')
            file.flush()
            time.sleep(0.5)
            file.write(f'"{address}"}}')

    timer = threading.Timer(0.5, write)
    timer.start()
    with connect(tmp_path / "scheduler.json", wait_s=30) as client:
        assert len(describe_workers(client)) == 2
    timer.join()


def test_scheduler_file_that_never_comes_is_one_error(tmp_path, refuses):
    path = tmp_path / "scheduler.json"
    message = (
        rf"^scheduler must be that of a running cluster, but none answered at '{path}' within "
        r"wait_s = 0\.5 s: there is no such file\.$"
    )
    with refuses(ClusterError, message, within_s=0.5), connect(path, wait_s=0.5):
        pass


def test_scheduler_file_of_no_folder_is_not_waited_for(tmp_path, refuses):
    with refuses(ValueError, r"but there is no folder '.*absent'\.$"):
        with connect(tmp_path / "absent" / "scheduler.json", wait_s=600):
            pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tcp://127.0.0.1:8786", r"which is not JSON: Expecting value"),
        ("[" * 100_000, r"which is not JSON: maximum recursion"),
        ("[1]", r"which has no address of a scheduler: None"),
        ('{"address": 3}', r"which has no address of a scheduler: 3"),
        ('{"address": "h:8786"}', r"which has no address of a scheduler: 'h:8786'"),
    ],
)
def test_file_that_no_scheduler_wrote_is_named(tmp_path, refuses, text, message):
    path = tmp_path / "scheduler.json"
    path.write_text(text)
    os.utime(path, (0, 0))
    message = rf"^scheduler must be a file that 'dask .* wrote, got '{path}', {message}.*\.$"
    with refuses(ValueError, message), connect(path, wait_s=600):
        pass


def test_file_that_is_being_written_for_ever_is_one_error(tmp_path, refuses):
    (tmp_path / "scheduler.json").write_text("{")
    with refuses(ClusterError, r"within wait_s = 0\.5 s: .* not JSON: .*[^.]\.$", within_s=0.5):
        with connect(tmp_path / "scheduler.json", wait_s=0.5):
            pass


def test_address_where_nothing_listens_is_one_error_in_time(refuses):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with refuses(ClusterError, rf"at '{address}' within wait_s = 1 s: .* does not answer", 1.0):
        with connect(address, wait_s=1.0):
            pass


def test_address_where_something_else_is_silent_is_one_error_in_time(refuses):
    """Dask's own client would wait for its greeting for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with refuses(ClusterError, r"within wait_s = 1 s: .* does not answer", 1.0):
            with connect(address, wait_s=1.0):
                pass


def test_address_of_a_worker_is_named_as_such(client, refuses):
    worker = describe_workers(client)[0].address
    with refuses(ClusterError, rf"got '{worker}', where a worker answers\.$"), connect(worker):
        pass


def test_workers_that_do_not_come_are_counted(client, address, refuses):
    message = (
        r"^min_workers = 3 workers must be there within \d(\.\d+)? s, got 2 "
        rf"\(tcp://.*, tcp://.*\)\. At the scheduler '{address}'\. .* 'dask worker {address}'"
    )
    with refuses(ClusterError, message, within_s=1.0), connect(address, min_workers=3, wait_s=1.0):
        pass
    with refuses(ClusterError, r"^min_workers = 3 workers must be there within 0 s, got 2"):
        wait_for_workers(client, 3, 0.0)
    wait_for_workers(client, 2, 0.0)


def test_workers_of_a_scheduler_that_goes_while_they_are_asked_are_one_error():
    def lose(ask, callback_timeout):
        raise CommClosedError("Stream is closed.")

    client = SimpleNamespace(sync=lose, scheduler=SimpleNamespace(address="tcp://10.0.0.1:1"))
    with pytest.raises(ClusterError, match=r"scheduler at 'tcp://10.0.0.1:1' must .* is closed\."):
        ask_workers(client, os.getpid)


def test_connection_that_is_given_up_leaves_no_traceback(address, caplog):
    log = logging.getLogger("distributed.client")
    log.addHandler(caplog.handler)
    try:
        with connect(address):
            log.error("", exc_info=asyncio.CancelledError())
            log.error("something else", exc_info=KeyError())
    finally:
        log.removeHandler(caplog.handler)
    told = {record.getMessage() for record in caplog.records if record.exc_info}
    assert told == {"something else"}


def test_scheduler_that_is_gone_is_one_error(refuses):
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(threads_cluster())
        address = cluster.scheduler_address
        client = stack.enter_context(connect(address))
        assert len(describe_workers(client)) == 1
        cluster.close()
        message = rf"^the scheduler at '{address}' must answer within 30 s, but .* is lost\.$"
        for ask in (describe_workers, lambda client: wait_for_workers(client, 1, 60.0)):
            with refuses(ClusterError, message):
                ask(client)


def threads_cluster():
    """Start a scheduler and a worker in this process."""
    return LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    )


@pytest.mark.slow
def test_tls_files_open_a_cluster_that_nobody_else_can_use(
    certificates, other_certificates, refuses
):
    files = certificates.options
    options = ClusterOptions(kind="local", workers=1, dashboard=False, **files)
    with open_cluster(options) as client:
        address = client.scheduler.address
        [worker] = describe_workers(client)
        assert address.startswith("tls://127.0.0.1:")
        assert worker.address.startswith("tls://127.0.0.1:")
        with connect(address, **files) as other:
            assert other.submit(os.getpid).result() == worker.pid
        foreign = other_certificates.options
        message = r"^scheduler must speak TLS .* signed, but: .*CERTIFICATE_VERIFY_FAILED"
        with refuses(ClusterError, message), connect(address, wait_s=600, **foreign):
            pass
        foreign["tls_ca"] = certificates.ca  # the scheduler is trusted, and does not trust
        message = r"^tls_cert must be a certificate that the scheduler at .*ALERT"
        with refuses(ClusterError, message), connect(address, wait_s=600, **foreign):
            pass
        plain = address.replace("tls://", "tcp://")
        with refuses(ClusterError, r"does not answer", 1.0), connect(plain, wait_s=1.0):
            pass


def test_tls_to_a_scheduler_without_is_one_error(address, certificates, refuses):
    encrypted = address.replace("tcp://", "tls://")
    message = rf"^scheduler must speak TLS at '{encrypted}', with a certificate .*, but: .*\.$"
    with refuses(ClusterError, message):
        with connect(encrypted, wait_s=600, **certificates.options):
            pass


def test_tls_is_held_against_the_address_in_the_file(tmp_path, certificates, refuses):
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"address": "tls://127.0.0.1:1"}))
    os.utime(path, (0, 0))
    with refuses(ValueError, r"^tls_ca must be given, .* 'tls://127\.0\.0\.1:1', got none"):
        with connect(path):
            pass
    path.write_text(json.dumps({"address": "tcp://127.0.0.1:1"}))
    os.utime(path, (0, 0))
    with refuses(ValueError, r"^scheduler must have an address that starts with tls://"):
        with connect(path, **certificates.options):
            pass


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key"])
def test_tls_file_that_is_absent_is_named(certificates, name, refuses):
    files = certificates.options | {name: "/absent.pem"}
    message = rf"^{name} must be the path of a file in PEM, got '/absent\.pem': No such file"
    with refuses(ValueError, message), connect("tls://127.0.0.1:1", **files):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tls_ca", r"^tls_ca must be a certificate in PEM, got '.*junk\.pem'"),
        ("tls_cert", r"^tls_cert and tls_key must be a certificate and its private key in PEM"),
        ("tls_key", r"^tls_cert and tls_key must be a certificate and its private key in PEM"),
    ],
)
def test_tls_file_that_is_no_pem_is_named(certificates, tmp_path, name, message, refuses):
    (tmp_path / "junk.pem").write_text("junk")
    files = certificates.options | {name: str(tmp_path / "junk.pem")}
    with refuses(ValueError, message), connect("tls://127.0.0.1:1", **files):
        pass


def test_tls_key_with_a_password_is_refused_and_not_asked_for(certificates, tmp_path, refuses):
    locked = str(tmp_path / "locked.pem")
    subprocess.run(
        ["openssl", "ec", "-in", certificates.key, "-aes256", "-passout", "pass:x", "-out", locked],
        check=True,
        capture_output=True,
    )
    files = certificates.options | {"tls_key": locked}
    with refuses(ValueError, r"^tls_key must be a private key without a password, got '.*locked"):
        with connect("tls://127.0.0.1:1", **files):
            pass


def test_other_versions_are_warned_of(address, monkeypatch, caplog):
    installed = {"numpy": "1.0", "zarr": "2.0"}
    version = inspection.version
    monkeypatch.setattr(inspection, "version", lambda name: installed.get(name) or version(name))
    with connect(address):
        pass
    warned = [message for message in caplog.messages if "must be the same everywhere" in message]
    # The scheduler of the tests' cluster is in this process.
    assert [message.partition(" ")[0] for message in warned] == ["numpy", "zarr"]
    assert re.fullmatch(
        r"numpy must be the same everywhere for the same results, got 1\.0 here and "
        rf"{re.escape(version('numpy'))} on tcp://127\.0\.0\.1:\d+ and 1 more\.",
        warned[0],
    )


@pytest.fixture
def start_cluster(start, tmp_path):
    """Start scheduler and worker in the way that deploy/README.md says."""

    def start_cluster(*worker_options, **variables):
        listen = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
        file = ("--scheduler-file", "scheduler.json")
        start("-m", "dask", "scheduler", *file, "--port", "0", *listen, **variables)
        start("-m", "dask", "worker", *file, *listen, "--nworkers", "1", "--memory-limit", "1GB",
              "--local-directory", str(tmp_path), *worker_options, **variables)  # fmt: skip
        return tmp_path / "scheduler.json"

    return start_cluster


@pytest.mark.slow
def test_cluster_started_with_the_settings_is_taken_as_it_is(start_cluster, caplog):
    scheduler = start_cluster(
        "--nthreads", "1", "--resources", "threads=3", "--name", "w", DASK_CONFIG=str(SETTINGS)
    )
    with connect(scheduler, wait_s=60.0) as client:
        [worker] = describe_workers(client)
        assert (worker.name, worker.threads, worker.memory_limit) == ("w", 3, 10**9)
        assert client.nthreads() == {worker.address: 1}
        assert client.run(os.getenv, "MALLOC_TRIM_THRESHOLD_") == {worker.address: None}
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    # Processes may take their time to start.
    assert [record for record in warned if "aiting" not in record.getMessage()] == []


@pytest.mark.slow
def test_cluster_started_with_other_settings_is_warned_of(start_cluster, caplog):
    scheduler = start_cluster("--nthreads", "2")
    with connect(scheduler, wait_s=60.0) as client:
        [worker] = describe_workers(client)
        assert worker.threads == 2
    settings = [message.partition(" ")[0] for message in caplog.messages if "README" in message]
    assert settings == ["distributed.scheduler.worker-ttl", "distributed.worker.memory.pause"]


@pytest.mark.slow
def test_cluster_without_dtopk_is_refused(start_cluster, tmp_path, refuses):
    (tmp_path / "without.py").write_text("import sys\nsys.modules['dtopk'] = None\n")
    scheduler = start_cluster("--nthreads", "1", "--preload", "without.py")
    message = (
        r"^dtopk [\d.]+ must be installed where .*, but tcp://127\.0\.0\.1:\d+ cannot load it: "
    )
    with refuses(ClusterError, message, within_s=60.0), connect(scheduler, wait_s=60.0):
        pass


def test_settings_for_clusters_started_by_hand_are_those_of_local_ones():
    found = dask.config.collect(paths=[str(SETTINGS)], env={})
    for name, value in DASK_SETTINGS.items():
        assert dask.config.get(name, config=found) == value
