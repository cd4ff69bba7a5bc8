"""The [cluster] section of a job: what it takes, what it refuses, and what it asks of workers."""

import re

import pytest

from dtopk.job import ClusterSection, load_job
from dtopk.launch import ClusterOptions

DATA = "version = 1\n[data]\nstore = 'x.zarr'\n"


@pytest.fixture
def load(tmp_path):
    def load(cluster, overrides=()):
        (tmp_path / "job.toml").write_text(f"{DATA}[cluster]\n{cluster}\n")
        return load_job(tmp_path / "job.toml", overrides).cluster

    return load


def test_job_without_the_section_asks_for_no_workers(tmp_path):
    (tmp_path / "job.toml").write_text(DATA)
    assert load_job(tmp_path / "job.toml").cluster.make_options() == ClusterOptions()


def test_every_option_of_the_workers_comes_from_the_section():
    section = ClusterSection(
        kind="local",
        workers=4,
        threads_per_worker=3,
        memory_per_worker="1.5GB",
        min_workers=2,
        wait_s=10,
        tls_ca="a",
        tls_cert="b",
        tls_key="c",
        dashboard=False,
    )
    assert section.make_options() == ClusterOptions(
        kind="local",
        workers=4,
        threads_per_worker=3,
        memory_per_worker_bytes=1_500_000_000,
        min_workers=2,
        wait_s=10.0,
        tls_ca="a",
        tls_cert="b",
        tls_key="c",
        dashboard=False,
    )
    section = ClusterSection(kind="scheduler", scheduler="tcp://h:1")
    assert section.make_options() == ClusterOptions(kind="scheduler", scheduler="tcp://h:1")


def test_paths_start_at_the_files_folder_and_addresses_stay(load, tmp_path):
    tls = "tls_ca = 'tls/ca.pem'\ntls_cert = 'tls/cert.pem'\ntls_key = '/k.pem'\n"
    cluster = load(f"{tls}kind = 'scheduler'\nscheduler = 'scheduler.json'")
    assert cluster.scheduler == str(tmp_path / "scheduler.json")
    assert cluster.tls_ca == str(tmp_path / "tls" / "ca.pem")
    assert cluster.tls_cert == str(tmp_path / "tls" / "cert.pem")
    assert cluster.tls_key == "/k.pem"
    assert load(f"{tls}kind = 'scheduler'\nscheduler = 'tls://h:1'").scheduler == "tls://h:1"


@pytest.mark.parametrize("scheduler", ["h:8786", "scheduler.yaml", "h", "tcp://h:8786/x.json"])
def test_what_is_no_scheduler_is_shown_as_it_was_given(load, scheduler):
    with pytest.raises(
        ValueError,
        match=rf"cluster\.scheduler must be an address .* got '{scheduler}'\. In --set",
    ):
        load("kind = 'scheduler'", [f"cluster.scheduler={scheduler}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster.kind=locl", "got 'locl'. Did you mean 'local'"),
        ("cluster.kind=scheduler", "cluster.scheduler must be an address"),
        ("cluster.workers=0", "cluster.workers must be at least 1, got 0"),
        ("cluster.threads_per_worker=-1", "cluster.threads_per_worker must be at least 0, got -1"),
        ("cluster.memory_per_worker=lots", "cluster.memory_per_worker must be 'auto' or a size"),
        ("cluster.min_workers=0", "cluster.min_workers must be at least 1, got 0"),
        ("cluster.min_workers=3", "cluster.min_workers must be at most workers = 2 of a local"),
        ("cluster.wait_s=0", "cluster.wait_s must be a finite number above 0, got 0.0"),
        ("cluster.partitions=-1", "cluster.partitions must be at least 0, got -1"),
        ("cluster.threads_per_partition=-1", "cluster.threads_per_partition must be at least 0"),
        ("cluster.round_timeout_s=-1", "cluster.round_timeout_s must be a finite number, 0 or"),
        ("cluster.checkpoint_s=nan", "cluster.checkpoint_s must be a finite number, 0 or above"),
        ("cluster.scheduler=tcp://h:1", "cluster.scheduler must be empty with kind 'local'"),
        ("cluster.tls_ca=ca.pem", "cluster.tls_cert must be given with the other two"),
        ("cluster.dashboard=no", "cluster.dashboard must be true or false, got 'no'"),
    ],
)
def test_values_out_of_rule_name_key_and_place(load, text, message):
    with pytest.raises(ValueError, match=rf"{re.escape(message)}.* In --set {re.escape(text)}\.$"):
        load("kind = 'local'", [text])


def test_values_that_do_not_go_together_name_every_place_that_has_to_do_with_it(load):
    overrides = ["cluster.workers=2", "cluster.kind=scheduler", "cluster.scheduler=tls://h:1"]
    with pytest.raises(
        ValueError,
        match=r"^cluster\.tls_ca must be given.* In --set cluster\.scheduler=tls://h:1\.$",
    ):
        load("", overrides)
