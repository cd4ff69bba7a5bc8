"""Secrets are planted where users have them, and looked for in all that commands say and leave."""

import base64
import logging
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk_storage.objects import ObjectPath
from tests.launch.conftest import certificates
from tests.mlflow_server import find_port
from tests.s3_server import SECRET, use_server
from tests.small_stores import make_rows, make_store

__all__ = ["certificates"]  # a fixture

USER, PASSWORD = "planted-user", "planted-password/1@x"
TOKEN, WRONG_SECRET = "planted-session-token/2", "planted-secret-key/3"
OTHER_PASSWORD = "planted-password-of-the-environment"
BASIC = [base64.b64encode(f"{USER}:{each}".encode()) for each in (PASSWORD, OTHER_PASSWORD)]
PLANTED = (SECRET, PASSWORD, quote(PASSWORD, safe=""), OTHER_PASSWORD, TOKEN, WRONG_SECRET)
WITH_PASSWORD = f"s3://{USER}:{PASSWORD}@bucket/x"


@pytest.fixture
def said(capfd, caplog):
    """Call commands; all that they, and workers that they start, have said is in `text`."""
    found = SimpleNamespace(text="", secrets=[each.encode() for each in PLANTED] + BASIC)

    def call(*arguments, ends=0):
        status = run_and_report(dtopk, [str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        found.text += out + err + caplog.text
        caplog.clear()
        assert status == ends, err
        return out + err

    def check(content, where):
        body = content.encode() if isinstance(content, str) else content
        assert [each for each in found.secrets if each in body] == [], where

    found.call, found.check = call, check
    with caplog.at_level(logging.DEBUG, "dtopk"), caplog.at_level(logging.DEBUG, "dtopk_storage"):
        yield found
    check(found.text, "what was said")


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "version = 1\n[data]\nstore = 'near.zarr'\n[model]\nC = 0.1\n[tracking]\nexperiment = 'e'\n"
    )
    return path


def add_password(uri):
    return uri.replace("http://", f"http://{USER}:{quote(PASSWORD, safe='')}@")


@pytest.fixture
def planted(monkeypatch, certificates, said):
    """Put a password into the address of a tracker, another one beside it, and look for a key."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", add_password("http://127.0.0.1:9"))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", USER)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", OTHER_PASSWORD)
    lines = Path(certificates.key).read_bytes().splitlines()
    said.secrets += [line for line in lines if not line.startswith(b"-----")]
    assert len(said.secrets) > len(PLANTED) + len(BASIC) + 1


@pytest.mark.slow
def test_secrets_are_in_nothing_that_commands_say_or_leave(
    s3, planted, said, job, certificates, mlflow_server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dtopk_storage.run_lock._SETTLE_S", 0)
    mlflow_server.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", add_password(mlflow_server.uri))
    X, y = make_rows(120, seed=1)
    np.savez(tmp_path / "a.npz", X=X, y=y)
    store, run = f"{s3}/a.zarr", f"{s3}/runs/1"
    tls = [f"cluster.{name}={path}" for name, path in certificates.options.items()]
    settings = [f"data.store={store}", "cluster.kind=local", "cluster.workers=1",
                "cluster.dashboard=false", "tracking.register_as=planted", *tls]  # fmt: skip
    overrides = [word for each in settings for word in ("--set", each)]
    said.call("ingest", "a.npz", store, "--split", "test=0.2", "--split", "val=0.2")
    said.call("plan", job, *overrides)
    said.call("train", job, "--run-dir", run, *overrides)
    said.call("calibrate", run, store, "--split", "val")
    said.call("info", store, "--verify")
    said.call("info", run, "--verify")
    said.call("evaluate", run, store)
    said.call("predict", run, store, "p.csv")
    said.call("track", run)
    said.call("report", run, "--out", "report.html")
    said.call("ingest", "a.npz", "near.zarr", "--split", "test=0.2")
    job.write_text(job.read_text() + "[sweep]\nC = [0.1, 1.0]\nmetric = ['top_1']\n")
    said.call("sweep", job, "--run-dir", "sweep", "--set", "data.validation=test")

    left = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    left |= {name: (ObjectPath(s3) / name).read_bytes() for name in ObjectPath(s3).find()}
    folder = mlflow_server._folder
    tracked = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for where, content in {**left, **tracked}.items():
        said.check(content, where)
    # It was looked for in the right places: there is what was not secret.
    for name in ("report.html", "p.csv", "sweep.csv", "model.npz", "result.json", "job.toml"):
        assert [where for where in left if where.endswith(name)], name
    assert [where for where in tracked if where.endswith("model.npz")]
    assert run.encode() in (folder / "mlflow.db").read_bytes()
    assert mlflow_server.uri.removeprefix("http://") in said.text
    assert certificates.key.encode() in left["runs/1/job.toml"]


@pytest.mark.parametrize("to", ["local", "slurm", "pbs", "lsf", "sge", "kubernetes"])
def test_secrets_are_in_nothing_that_is_submitted(
    to, planted, said, job, certificates, tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY", certificates.key)
    make_store(tmp_path / "near.zarr")
    settings = {
        "local": [],
        "slurm": ["submit.walltime=00:10:00", "submit.memory=1GiB", "submit.cores=1"],
        "kubernetes": ["submit.memory=1GiB", "submit.cores=1", "submit.driver_memory=1GiB",
                       "submit.image=registry/dtopk:1", "data.store=s3://bucket/a.zarr",
                       "tracking.uri=http://mlflow:5000"],
    }  # fmt: skip
    settings |= {
        other: [*settings["slurm"], "submit.form=workers", "submit.interface=lo"]
        for other in ("pbs", "lsf", "sge")
    }
    run = "s3://bucket/run" if to == "kubernetes" else tmp_path / "run"
    if to not in ("local", "kubernetes"):
        settings[to] += [f"cluster.{name}={path}" for name, path in certificates.options.items()]
    overrides = [word for each in settings[to] for word in ("--set", each)]
    text = said.call("submit", job, "--to", to, "--dry-run", "--run-dir", run, *overrides)
    assert str(run) in text


WRONG = {
    "secret": {"AWS_SECRET_ACCESS_KEY": WRONG_SECRET},
    "token": {"AWS_SESSION_TOKEN": TOKEN, "AWS_ACCESS_KEY_ID": "nobody"},
    "bucket": {},
    "server": {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{find_port()}"},
}
"""What is wrong with the environment."""


@pytest.mark.parametrize(
    ("command", "wrong"),
    [(name, what) for name in ("ingest", "train") for what in ("secret", "token", "bucket")]
    + [("info", "server")],
)
def test_secrets_are_in_no_error_of_a_store(
    s3, s3_server, said, job, tmp_path, monkeypatch, command, wrong
):
    changes = WRONG[wrong]
    monkeypatch.setattr("dtopk_storage.run_lock._SETTLE_S", 0)
    use_server(monkeypatch, s3_server, **changes)
    place = f"{s3}/x" if changes else "s3://dtopk-nowhere/x"
    if command == "ingest":
        X, y = make_rows(20, seed=1)
        np.savez(tmp_path / "a.npz", X=X, y=y)
    arguments = {
        "ingest": ["ingest", tmp_path / "a.npz", place],
        "info": ["info", place],
        "train": ["train", job, "--set", f"data.store={place}", "--set", "tracking.mlflow=false"],
    }[command]
    text = said.call(*arguments, ends=1 if wrong == "server" else 2)
    assert text.count("error: ") == 1


@pytest.mark.parametrize("answers", [True, False])
def test_secrets_are_in_no_error_of_the_tracker(said, job, tmp_path, monkeypatch, answers):
    """The run goes on without it; `track` fails."""
    make_store(tmp_path / "near.zarr")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", add_password(f"http://127.0.0.1:{find_port()}"))
    if answers:
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = tmp_path / "run"
    said.call("train", job, "--run-dir", run, "--set", "tracking.wait_s=1")
    assert "error: " in said.call("track", run, ends=1)
    for path in run.rglob("*"):
        if path.is_file():
            said.check(path.read_bytes(), path)


COMMANDS = {
    "ingest": ["ingest", WITH_PASSWORD, "x.zarr"],
    "ingest to": ["ingest", "a.npz", WITH_PASSWORD],
    "features": ["features", WITH_PASSWORD, "x.zarr"],
    "info": ["info", WITH_PASSWORD],
    "plan": ["plan", WITH_PASSWORD],
    "train": ["train", WITH_PASSWORD],
    "train into": ["train", "job.toml", "--run-dir", WITH_PASSWORD],
    "train on": ["train", "job.toml", "--set", f"data.store={WITH_PASSWORD}"],
    "train from": ["train", "job.toml", "--set", f"solver.warm_start={WITH_PASSWORD}"],
    "track to": ["train", "job.toml", "--set", f"tracking.uri={WITH_PASSWORD}"],
    "train again": ["train", "--resume", WITH_PASSWORD],
    "sweep": ["sweep", WITH_PASSWORD],
    "submit": ["submit", WITH_PASSWORD, "--to", "local"],
    "submit into": ["submit", "job.toml", "--to", "local", "--run-dir", WITH_PASSWORD],
    "status": ["status", WITH_PASSWORD],
    "logs": ["logs", WITH_PASSWORD],
    "cancel": ["cancel", WITH_PASSWORD],
    "evaluate": ["evaluate", WITH_PASSWORD, "near.zarr"],
    "evaluate on": ["evaluate", "near.zarr", WITH_PASSWORD],
    "calibrate": ["calibrate", WITH_PASSWORD],
    "predict": ["predict", WITH_PASSWORD, "near.zarr", "p.csv"],
    "predict into": ["predict", "near.zarr", "near.zarr", WITH_PASSWORD],
    "track": ["track", WITH_PASSWORD],
    "report": ["report", WITH_PASSWORD],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_address_with_a_password_is_refused_and_not_repeated(
    said, job, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path / "near.zarr")
    text = said.call(*COMMANDS[command], ends=2)
    assert text.count("error: ") == 1
    assert USER not in text
