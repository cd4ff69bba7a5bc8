"""`dtopk plan`: for a job's store or for sizes alone, in this process and in workers."""

import json
import re

import pytest

from dtopk.engine.forecast import Speed

GIVEN = ["--n", "1281167", "--d", "4096", "--m", "1000"]
JOB = """
version = 1
[data]
store = "small.zarr"
[model]
loss = "topk_hinge_alpha"
k = 2
gamma = 1.0
"""
LOCAL = """
[cluster]
kind = "local"
workers = 3
memory_per_worker = "1GB"
threads_per_worker = 1
"""


@pytest.fixture
def measured(monkeypatch):
    """Stand in for the measurement; note what was asked for."""
    asked = []

    def measure_speed(loss, n_features, n_classes, **options):
        asked.append((loss.name, n_features, n_classes, options))
        return Speed(
            gflops=100.0,
            ratio=1.5,
            certificate_ratio=2.0,
            copy_rate=1e10,
            n_features=n_features,
            n_classes=n_classes,
        )

    monkeypatch.setattr("dtopk.engine.forecast.measure_speed", measure_speed)
    return asked


@pytest.fixture
def job(tmp_path, store):
    def write(text=JOB):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return path

    return write


def test_sizes_come_from_the_store_of_the_job(call_json, job, measured):
    fields = call_json("plan", job())
    assert (fields["n_samples"], fields["n_features"], fields["n_classes"]) == (120, 6, 4)
    assert fields["workers"] == 0
    assert fields["partitions"] == 1
    assert fields["features_in_memory"]
    assert fields["duals_in_memory"]
    assert "least_workers" not in fields
    assert [(name, d, m) for name, d, m, _ in measured] == [("topk_hinge_alpha", 6, 4)]


def test_workers_come_from_the_job(call_json, job, measured):
    fields = call_json("plan", job(JOB + LOCAL))
    assert (fields["workers"], fields["partitions"]) == (3, 3)
    assert fields["memory_bytes"] == 10**9
    assert fields["usable_bytes"] == 9 * 10**8
    assert fields["needed_bytes"] == max(
        sum(holding[when] for holding in fields["holdings"])
        for when in ("in_round", "at_certificate")
    )
    assert fields["fits"]
    assert fields["least_workers"] == fields["least_workers_in_memory"] == 1
    assert measured[0][3]["threads"] == 1


def test_the_lower_limit_of_the_job_counts(call_json, job, measured):
    for limit, expected in (("800MB", 8 * 10**8), ("1200MB", 10**9)):
        path = job(f'{JOB}{LOCAL}[resources]\nmemory_limit = "{limit}"\n')
        assert call_json("plan", path)["memory_bytes"] == expected


def test_options_replace_what_the_job_has(call_json, job, measured):
    fields = call_json(
        "plan", job(JOB + LOCAL), "--workers", "2", "--memory", "2GB", "--m", "8", "--threads", "5",
        "--loss", "softmax", "--k", "1", "--gamma", "0",
    )  # fmt: skip
    assert (fields["workers"], fields["memory_bytes"]) == (2, 2 * 10**9)
    assert (fields["n_samples"], fields["n_features"], fields["n_classes"]) == (120, 6, 8)
    assert [holding["name"] for holding in fields["holdings"]][2] == "buffers of 5 threads"
    name, _, n_classes, options = measured[0]
    assert (name, n_classes, options["threads"]) == ("softmax", 8, 5)


def test_partitions_of_the_job_stay_with_fewer_workers(call_json, job, measured):
    path = job(JOB + LOCAL)
    fields = call_json("plan", path, "--set", "cluster.partitions=4", "--workers", "2")
    assert (fields["workers"], fields["partitions"]) == (2, 4)
    # Of the four chunks, of at most 32 rows, each has two.
    assert fields["rows_per_worker"] == 64


def test_sizes_that_cannot_be_run_here_need_no_store_and_no_job(call, measured):
    result = call("plan", *GIVEN, "--workers", "8", "--memory", "6GB")
    assert result.status == 0
    assert "1,281,167, 4,096 features, 1,000 classes" in result.out
    assert "8 workers of 6.00 GB, at most 160,768 rows each" in result.out
    assert "in memory  rows and duals" in result.out
    # 157 blocks of 1,024 rows: 2 bytes a feature, and 12 for label and weight.
    assert "features of 160,768 rows" in result.out
    assert f"{160_768 * (2 * 4096 + 12) / 1e6:,.1f}" in result.out
    # 4 * 160,768 * 4,096 * 1,000 operations at 1e11 a second, and half as long again.
    assert re.search(r"^sweeps +39\.51$", result.out, re.MULTILINE)
    assert "least workers of 6.00 GB" in result.out
    assert result.err == "measuring the solver on rows of this shape\n"


def test_what_does_not_fit_is_streamed(call, measured):
    result = call("plan", *GIVEN, "--workers", "2", "--memory", "1.5GB")
    assert result.status == 0
    assert "neither rows nor duals: both are streamed in every epoch" in result.out
    assert "duals read and written" in result.out
    result = call("plan", *GIVEN, "--workers", "4", "--memory", "4GB")
    assert "duals; rows are streamed in every epoch" in result.out


def test_what_cannot_fit_ends_with_1_and_the_arithmetic(call, measured):
    result = call("plan", *GIVEN, "--workers", "2", "--memory", "400MB")
    assert result.status == 1
    assert "in memory  does not fit" in result.out
    assert "time" not in result.out
    assert "error: workers must have at least " in result.err
    assert "weights W, 4,096 x 1,000 16,384,000; " in result.err
    assert re.search(r"^least workers of 0\.40 GB +none$", result.out, re.MULTILINE)
    assert measured == []


def test_what_cannot_fit_says_so_in_json_too(call, measured):
    result = call("plan", *GIVEN, "--workers", "2", "--memory", "400MB", "--json")
    fields = json.loads(result.out)
    assert result.status == 1
    assert not fields["fits"]
    assert fields["least_workers"] is None
    assert "forecast" not in fields


def test_this_process_is_planned_for_with_its_own_limit(call, measured):
    result = call("plan", *GIVEN, "--memory", "10GB")
    assert result.status == 0
    assert "this process, at most 1,281,167 rows" in result.out
    assert "features, duals and weights, MB" in result.out
    assert "least workers" not in result.out
    result = call("plan", *GIVEN, "--memory", "1MB")
    assert result.status == 1
    assert "error: memory_limit must be at least" in result.err


def test_rates_that_are_given_are_taken(call, call_json, measured):
    given = [*GIVEN, "--workers", "8", "--memory", "6GB", "--gflops", "1000"]
    fields = call_json("plan", *given, "--bandwidth", "100MB", "--read-rate", "2GB")
    assert fields["speed"]["gflops"] == 1000
    assert fields["forecast"]["sweep_seconds"] == pytest.approx(1.5 * 4e-12 * 160_768 * 4096 * 1000)
    assert fields["forecast"]["exchange_seconds"] == fields["traffic"]["epoch"] / 1e8
    assert fields["forecast"]["first_read_seconds"] == fields["traffic"]["first_read"] / 2e9
    out = call("plan", *given, "--bandwidth", "100MB").out
    assert "1,000.0 Gflop/s, as given" in out
    assert "network" in out
    assert "0.10 GB/s" in out


def test_the_speed_is_measured_here(call_json, job):
    fields = call_json("plan", job(), "--threads", "1")
    assert fields["speed"]["gflops"] > 0
    assert fields["forecast"]["epoch_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "100", "--m", "7"], "--d must be given, since there is no job."),
        ([*GIVEN, "--memory", "much"], "must be a size above 0 such as '512MB' or '4GiB'"),
        ([*GIVEN, "--set", "model.k=3"], "--set must be given with a job file, got none."),
        ([*GIVEN, "--workers", "0"], "0 is not in the range x>=1"),
        ([*GIVEN, "--loss", "topk_hinge"], "loss 'topk_hinge' is unknown"),
        ([*GIVEN, "--loss", "topk_hinge_beta", "--k", "1000"], "k must be between 1 and"),
    ],
)
def test_what_cannot_be_is_refused(call, arguments, message):
    result = call("plan", *arguments)
    assert result.status == 2
    assert message in result.err
    assert result.out == ""


def test_a_store_that_is_not_there_is_named(call, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('version = 1\n[data]\nstore = "none.zarr"\n')
    result = call("plan", path, "--n", "100")
    assert result.status == 2
    assert "--d, --m must be given, since there is no store at" in result.err
    assert "none.zarr" in result.err


def test_memory_of_other_machines_must_be_given(call, tmp_path):
    path = tmp_path / "job.toml"
    text = JOB + '[cluster]\nkind = "scheduler"\nscheduler = "tcp://10.0.0.1:8786"\n'
    path.write_text(text)
    result = call("plan", path, *GIVEN)
    assert result.status == 2
    assert "--memory must be given for workers on other machines, got none." in result.err
