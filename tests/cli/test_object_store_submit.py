"""`dtopk submit` of runs and sweeps whose folder is in an object store."""

import time

import numpy as np
import pytest

from dtopk.cli import committed
from dtopk.launch.submit import Attempt, SubmissionFolder, SubmissionRecord
from dtopk.model import load_model
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import as_path
from tests.small_stores import make_store
from tests.submitted_runs import driver_of, end_processes, has_ended, wait_until


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Be in an empty folder; runs that were submitted from it end with the test."""
    monkeypatch.chdir(tmp_path)
    yield
    for record in tmp_path.glob("runs/*/submission/submission.json"):
        end_processes(record.parents[1])


@pytest.fixture
def job_path(store, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "version = 1\n[data]\nstore = 'small.zarr'\nvalidation = 'test'\n[model]\nC = 0.1\n"
        "[solver]\ntol = 1e-6\ndtype = 'float64'\n[cluster]\ncheckpoint_s = 0\n"
        "[tracking]\nmlflow = false\n"
    )
    return path


def test_run_is_the_run_of_train_and_found_by_its_address(call, call_json, job_path, s3, tmp_path):
    assert call("train", job_path, "--run-dir", tmp_path / "local").status == 0
    run = f"{s3}/runs/first"
    answer = call_json("submit", job_path, "--to", "local", "--run-dir", run,
                       "--set", "tracking.mlflow=true")  # fmt: skip
    folder = tmp_path / "runs" / "first"
    assert answer["run_folder"] == run
    assert answer["logs"].startswith(str(folder / "submission"))
    # The job is not in this folder, and its file of MLflow is where it is said to be.
    assert answer["mlflow"] == f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    wait_until(has_ended(call_json, run))
    found = call_json("status", run)
    assert (found["run_dir"], found["finished"], found["failure"]) == (run, True, None)
    assert (tmp_path / "runs" / "mlflow.db").is_file()
    assert call_json("status", folder) == found
    models = [load_model(as_path(each, name="x")) for each in (tmp_path / "local", run)]
    np.testing.assert_array_equal(models[0].W, models[1].W)
    assert {each.name for each in folder.iterdir()} == {"submission"}
    names = {each.name for each in ObjectPath(run).iterdir()}
    assert "model.npz" in names
    assert "submission" not in names
    assert "certified: relative gap" in call("logs", run).out
    result = call("submit", job_path, "--to", "local", "--run-dir", run)
    assert result.status == 2
    assert "which holds a run that has ended." in result.err
    result = call("status", f"{s3}/runs/second")
    assert result.status == 2
    assert f"job or address '{s3}/runs/second' must be that of a run folder in" in result.err


def test_sweep_that_is_killed_goes_on_from_the_object_store(
    call, call_json, job_path, s3, tmp_path
):
    run, folder = f"{s3}/runs/sweep", tmp_path / "runs" / "sweep"
    make_store(tmp_path / "larger.zarr", n_train=20_000, chunk_rows=2000)
    words = [
        "data.store=larger.zarr", "sweep.C=[1e-12, 1e-11, 1e6]", "sweep.width=1", "model.gamma=1",
        "model.loss=topk_hinge_alpha", "solver.tol=1e-15",
    ]  # fmt: skip
    submit = ("submit", job_path, "--to", "local", "--run-dir", run,
              *[word for each in words for word in ("--set", each)])  # fmt: skip
    call_json(*submit, "--set", "solver.max_epochs=100000")
    wait_until(lambda: call_json("status", run)["models_done"] == 2)
    driver_of(folder).kill()
    wait_until(has_ended(call_json, run))
    # Two models were kept since the start.
    assert committed.main(str(folder / "submission")) == 0
    kept = [ObjectPath(f"{run}/settings/{name}/result.json").read_text()
            for name in list_done(run)]  # fmt: skip
    call_json(*submit, "--set", "solver.max_epochs=100000")
    wait_until(lambda: "2 done already" in call("logs", run).out)
    assert committed.main(str(folder / "submission")) == 1
    assert "commits and stops" in call("cancel", run).out
    wait_until(has_ended(call_json, run))
    # It has given its lock back, which a killed run leaves for a minute.
    assert not ObjectPath(f"{run}/lock").is_file()
    assert kept == [ObjectPath(f"{run}/settings/{name}/result.json").read_text()
                    for name in list_done(run)]  # fmt: skip
    assert call_json("status", run)["failure"]["cause"] == "cancelled"


def list_done(run):
    settings = sorted(each.name for each in ObjectPath(f"{run}/settings").iterdir())
    return [name for name in settings if ObjectPath(f"{run}/settings/{name}/result.json").is_file()]


def make_submission(run, run_dir):
    folder = SubmissionFolder(run=run)
    folder.create()
    folder.write_record(
        SubmissionRecord(
            back_end="slurm", job_id="1", host="h", run_dir=run_dir, log_dir=str(folder.path)
        )
    )
    return folder


def test_folder_that_is_another_runs_is_refused(call, job_path, s3, tmp_path):
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    submit = ("submit", job_path, "--to", "local", "--run-dir", f"{s3}/runs/first")
    result = call(*submit)
    assert result.status == 2
    assert f"folder of a submission must be new or empty, got '{folder}' for '{s3}/" in result.err
    make_submission(tmp_path / "logs" / "first", f"{s3}/others/first")
    result = call(*submit, "--set", f"submit.log_directory={tmp_path / 'logs'}")
    assert result.status == 2
    assert "folder of a submission must be that of one run folder" in result.err


def test_run_that_cannot_be_read_has_no_commits(tmp_path, s3, call_json, capsys):
    """A job then counts as one that failed, and is not started again for ever."""
    empty = SubmissionFolder(run=tmp_path / "none")
    empty.create()
    empty.note_attempt(Attempt(began=time.time(), host="h"))
    assert committed.main(str(empty.path)) == 1
    assert "which has no submission/submission.json" in capsys.readouterr().err
    folder = make_submission(tmp_path / "first", "s3://no-such-bucket/first")
    folder.note_attempt(Attempt(began=time.time(), host="h"))
    assert committed.main(str(folder.path)) == 1
