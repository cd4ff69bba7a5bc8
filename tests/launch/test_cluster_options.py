"""Cluster options: what goes together, and what is refused."""

import re

import pytest

from dtopk.launch import ClusterOptions

TLS = {"tls_ca": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem"}


@pytest.mark.parametrize(
    "scheduler",
    [
        "tcp://127.0.0.1:8786",
        "tcp://head.cluster.example:1",
        "tcp://[fe80::1]:65535",
        "/shared/scheduler.json",
        "scheduler.json",
    ],
)
def test_scheduler_is_an_address_or_a_file(scheduler):
    assert ClusterOptions(kind="scheduler", scheduler=scheduler).scheduler == scheduler


@pytest.mark.parametrize(
    "scheduler",
    [
        "",
        "127.0.0.1:8786",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536",
        "tcp://:8786",
        "http://127.0.0.1:8786",
        "tcp://a b:8786",
        "tcp://host:8786/x.json",
        "scheduler.txt",
    ],
)
def test_scheduler_that_is_neither_is_refused(scheduler):
    with pytest.raises(
        ValueError, match=rf"^scheduler must be an address .* got '{re.escape(scheduler)}'\.$"
    ):
        ClusterOptions(kind="scheduler", scheduler=scheduler)


@pytest.mark.parametrize("kind", ["none", "local"])
def test_scheduler_with_another_kind_is_refused(kind):
    with pytest.raises(
        ValueError, match=rf"^scheduler must be empty with kind '{kind}', got 'a\.json'\. To train"
    ):
        ClusterOptions(kind=kind, scheduler="a.json")


@pytest.mark.parametrize("missing", TLS)
def test_tls_files_come_together(missing):
    files = {name: path for name, path in TLS.items() if name != missing}
    with pytest.raises(ValueError, match=rf"^{missing} must be given with the other two"):
        ClusterOptions(kind="local", **files)


def test_tls_address_needs_tls_files():
    with pytest.raises(ValueError, match=r"^tls_ca must be given, with .* at 'tls://h:1', got"):
        ClusterOptions(kind="scheduler", scheduler="tls://h:1")


def test_tls_files_need_a_tls_address():
    with pytest.raises(ValueError, match=r"^scheduler must have an address .* got 'tcp://h:1'\. S"):
        ClusterOptions(kind="scheduler", scheduler="tcp://h:1", **TLS)
    assert ClusterOptions(kind="scheduler", scheduler="tls://h:1", **TLS).tls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "slurm"}, "kind must be one of 'none', 'local', 'scheduler', got 'slurm'"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"threads_per_worker": -1}, "threads_per_worker must be at least 0, got -1"),
        ({"memory_per_worker_bytes": -1}, "memory_per_worker_bytes must be at least 0, got -1"),
        ({"min_workers": 0}, "min_workers must be at least 1, got 0"),
        ({"wait_s": 0.0}, "wait_s must be a finite number above 0, got 0.0"),
        ({"wait_s": float("inf")}, "wait_s must be a finite number above 0, got inf"),
        (
            {"kind": "local", "workers": 2, "min_workers": 3},
            "min_workers must be at most workers = 2 of a local cluster, got 3",
        ),
    ],
)
def test_options_out_of_rule_are_refused(options, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}\.$"):
        ClusterOptions(**options)
