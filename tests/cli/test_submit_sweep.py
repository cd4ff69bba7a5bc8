"""`dtopk submit` of a sweep, and `status`, `logs` and `cancel` of it."""

import dataclasses
import json
import shlex
import time

import pytest
import yaml  # type: ignore[import-untyped]

from dtopk.cli.submit import _prepare_job
from dtopk.cli.submitted_progress import read_progress
from dtopk.job import job_to_toml
from dtopk.job.files import load_any_job
from dtopk.job.run_folder import RunRecord
from dtopk.job.sweep_folder import SweepFolder
from dtopk.launch.submit import BACK_ENDS, SubmissionFolder, SubmissionRecord, make_back_end
from tests.small_stores import make_store
from tests.submitted_runs import driver_of, has_ended, wait_until

N_MODELS = 4


@pytest.fixture
def job_path(store, tmp_path):
    """Give a job of four models, one after the other."""
    path = tmp_path / "sweep.toml"
    path.write_text(
        "version = 1\n[data]\nstore = 'small.zarr'\nvalidation = 'test'\n"
        "[solver]\ntol = 1e-4\n[tracking]\nmlflow = false\n"
        "[sweep]\nC = [1e-3, 1e-2, 0.1, 1]\nwidth = 1\n"
    )
    return path


@pytest.fixture
def endless(tmp_path):
    """Give settings of a sweep whose last model does not come to an end."""
    make_store(tmp_path / "larger.zarr", n_train=20_000, chunk_rows=2000)
    settings = (f"data.store={tmp_path / 'larger.zarr'}", "solver.tol=1e-15",
                "solver.max_epochs=100000", "model.loss=topk_hinge_alpha", "model.gamma=1",
                "solver.dtype=float64", "sweep.C=[1e-12, 1e-11, 1e-10, 1e6]")  # fmt: skip
    return [word for setting in settings for word in ("--set", setting)]


def settings_of(target):
    """Say what a back end must be told."""
    words = {
        "local": (),
        "slurm": ("cores=2", "memory=8GB"),
        "kubernetes": ("cores=2", "memory=8GB", "image=dtopk:1", "claim=data"),
    }.get(target, ("cores=2", "memory=8GB", "form=workers", "interface=ib0", "driver=job"))
    return [word for each in words for word in ("--set", f"submit.{each}")]


@pytest.mark.parametrize("target", BACK_ENDS)
def test_dry_run_of_a_sweep_prints_what_sweeps(call, job_path, tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    places = ["--run-dir", tmp_path / "run"]
    if target == "kubernetes":
        places = ["--run-dir", "/data/run", "--set", "data.store=/data/store.zarr"]
    result = call("submit", job_path, "--to", target, *settings_of(target), *places, "--dry-run")
    assert result.status == 0, result.err
    assert not (tmp_path / "run").exists()
    if target != "kubernetes":
        assert '"$python" -m dtopk.cli sweep "$place/job.toml"' in result.out
        assert target == "local" or '--set cluster.scheduler="$scheduler_file"' in result.out
        return
    spec = yaml.safe_load(result.out)["spec"]["job"]["spec"]["containers"][0]
    assert '\n    dtopk sweep "$job" --run-dir "$1"' in spec["command"][2]
    (job,) = (each["value"] for each in spec["env"] if each["name"] == "DTOPK_JOB")
    assert "[sweep]\n" in job


def test_submitted_sweep_comes_to_what_sweep_comes_to(call, call_json, job_path, run_dir, tmp_path):
    here = call_json("sweep", job_path, "--run-dir", tmp_path / "here")
    answer = call_json("submit", job_path, "--to", "local", "--run-dir", run_dir)
    assert answer["run_folder"] == str(run_dir)
    wait_until(has_ended(call_json, run_dir))
    found = call_json("status", run_dir)
    assert (found["command"], found["finished"], found["failure"]) == ("sweep", True, None)
    assert (found["models"], found["models_done"]) == (N_MODELS, N_MODELS)
    assert (found["certified"], found["restarts"]) == (True, 0)
    there = json.loads((run_dir / "sweep.json").read_text())
    assert there["best"]["top_1"]["name"] == here["best"]["top_1"]["name"]
    assert there["settings"][0]["top_1"] == here["settings"][0]["top_1"]
    out = call("status", run_dir).out
    assert f"sweep          {run_dir}\n" in out
    assert "4 of 4 models\n" in out
    assert "none needed: the sweep is done\n" in out
    assert f"all models are certified: dtopk info {shlex.quote(str(run_dir))}\n" in out
    assert "4 of 4: softmax" in call("logs", run_dir).out
    # More values may be added to it.
    call_json("submit", job_path, "--to", "local", "--run-dir", run_dir,
              "--set", "sweep.C=[1e-3, 1e-2, 0.1, 1, 10]")  # fmt: skip
    wait_until(has_ended(call_json, run_dir))
    assert call_json("status", run_dir)["models_done"] == N_MODELS + 1


@pytest.mark.slow
def test_killed_sweep_says_so_and_trains_what_is_missing(
    call, call_json, job_path, run_dir, endless
):
    call_json("submit", job_path, "--to", "local", "--run-dir", run_dir, *endless)
    result = call("submit", job_path, "--to", "local", "--run-dir", run_dir, *endless)
    assert result.status == 2
    assert "error: sweep folder must have no job under way, got" in result.err
    wait_until(lambda: call_json("status", run_dir)["models_done"] == N_MODELS - 1)
    driver_of(run_dir).kill()
    wait_until(has_ended(call_json, run_dir))
    found = call_json("status", run_dir)
    assert (found["failure"]["cause"], found["finished"]) == ("killed", False)
    assert 0 <= time.time() - found["committed"] < 60
    assert "ago, after 3 of 4 models\n" in call("status", run_dir).out
    before = {path: path.stat().st_mtime_ns for path in run_dir.glob("settings/*/result.json")}
    assert len(before) == N_MODELS - 1
    call_json("submit", job_path, "--to", "local", "--run-dir", run_dir, *endless)
    wait_until(lambda: driver_of(run_dir) and "3 done already" in call("logs", run_dir).out)
    assert "commits and stops" in call("cancel", run_dir).out
    wait_until(has_ended(call_json, run_dir))
    (_, second) = SubmissionFolder(run=run_dir).read_attempts()
    assert (second.status, second.why) == (130, "cancelled")
    assert not (run_dir / "sweep.json").exists()
    found = call_json("status", run_dir)
    assert found["failure"]["cause"] == "cancelled"
    assert "3 of 4 models are done and kept" in call("logs", run_dir).out
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(("ended", "committed"), [((0, 0), None), ((0, 1e9), 1e9)])
def test_results_without_a_time_are_no_commits_of_1970(call, job_path, tmp_path, ended, committed):
    """Earlier versions have not noted when a training came to its end."""
    run = tmp_path / "sweep"
    words = ("--set", "sweep.C=[0.1, 1]", "--set", "solver.tol=1e-1")
    assert call("sweep", job_path, "--run-dir", run, *words).status == 0
    for path, time_s in zip(sorted(run.glob("settings/*/result.json")), ended, strict=True):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"ended": time_s}))
    folder = SubmissionFolder(run=run)
    folder.create()
    folder.job.write_text((run / "job.toml").read_text())
    record = SubmissionRecord(
        back_end="local", job_id="1", host="h", run_dir=str(run), log_dir="", command="sweep"
    )
    folder.write_record(record)
    progress = read_progress(folder)
    assert (progress.n_done, progress.committed) == (2, committed)


def test_refused_sweep_says_why(call, call_json, job_path, run_dir):
    call_json("submit", job_path, "--to", "local", "--run-dir", run_dir,
              "--set", "data.evaluate=['night']")  # fmt: skip
    wait_until(has_ended(call_json, run_dir))
    found = call_json("status", run_dir)
    assert found["failure"]["cause"] == "refused"
    assert found["failure"]["text"].startswith("The sweep was refused: ")
    assert "night" in found["failure"]["text"]


def test_sweep_keeps_the_partitions_that_it_began_with(job_path, run_dir):
    """Those of the workers that are asked for now would be others."""
    settings = ["submit.cores=2", "submit.memory=8GB", "submit.nodes=2", "submit.interface=lo"]
    job = load_any_job(job_path, settings, run_dir=str(run_dir))
    first = _prepare_job(job, make_back_end("slurm"))
    assert first.cluster.partitions == 2
    before = dataclasses.replace(first.cluster, partitions=3)
    folder = SweepFolder(path=run_dir)
    run_dir.mkdir(parents=True)
    folder.write_record(RunRecord())
    folder.job.write_text(job_to_toml(dataclasses.replace(first, cluster=before)))
    assert _prepare_job(job, make_back_end("slurm")).cluster.partitions == 3


def test_folder_of_a_run_is_refused_for_a_sweep(call, job_path, tmp_path, store):
    plain = tmp_path / "plain.toml"
    plain.write_text("version = 1\n[data]\nstore = 'small.zarr'\n[tracking]\nmlflow = false\n")
    run = tmp_path / "run"
    assert call("train", plain, "--run-dir", run, "--set", "solver.tol=1e-2").status == 0
    result = call("submit", job_path, "--to", "local", "--run-dir", run)
    assert result.status == 2
    assert "folder of the sweep must be new or empty, or hold a sweep to go on with" in result.err
