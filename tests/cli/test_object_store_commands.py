"""The commands with stores, runs and models in an object store."""

import csv
import io
import uuid

import numpy as np
import pytest

from dtopk_storage import open_store
from dtopk_storage.objects import ObjectPath
from tests.s3_server import use_server
from tests.small_stores import make_rows


@pytest.fixture(params=["memory", "s3"])
def far(request, monkeypatch):
    """Give an address in an object store where nothing is."""
    monkeypatch.setattr("dtopk_storage.run_lock._SETTLE_S", 0)
    if request.param == "s3":
        return request.getfixturevalue("s3")
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def source(tmp_path):
    X, y = make_rows(120, seed=1)
    np.savez(tmp_path / "a.npz", X=X, y=np.array(["ant", "bee", "cat", "dog"])[y])
    return tmp_path / "a.npz"


def test_all_commands_take_addresses(call, call_json, far, source, tmp_path, monkeypatch):
    """From a file to predictions, in the order in which a user goes."""
    monkeypatch.chdir(tmp_path)
    url, run = f"{far}/a.zarr", f"{far}/runs/1"
    result = call("ingest", source, url, "--split-rows", "test=100:120", "--chunk-mib", 0.001)
    assert result.status == 0, result.err
    assert f"wrote {url}" in result.err
    fields = call_json("info", url, "--verify")
    assert (fields["path"], fields["n_samples"], fields["verified"]) == (url, 120, True)
    assert fields["bytes_on_disk"] > 120 * 6 * 4
    job = tmp_path / "job.toml"
    job.write_text("version = 1\n[data]\nstore = 'x'\n[tracking]\nmlflow = false\n")
    trained = call_json("train", job, "--set", f"data.store={url}", "--run-dir", run)
    assert trained["run_dir"] == run
    assert trained["certified"]
    again = call("train", "--resume", run)
    assert again.status == 2
    assert f"got '{run}', whose run has ended" in again.err
    fields = call_json("info", run, "--verify")
    assert fields["recomputed"]["certified"]
    assert call_json("info", f"{run}/model.npz")["kind"] == "model"
    for model in (run, f"{run}/model.npz"):
        evaluated = call_json("evaluate", model, url)
        assert evaluated["splits"]["test"]["n_samples"] == 20
    for name in ("p.csv", "p.parquet", "p.zarr"):
        assert call_json("predict", run, url, f"{far}/{name}", "--k", 2)["n_samples"] == 120
        refused = call("predict", run, url, f"{far}/{name}")
        assert "output must be a new path" in refused.err
        assert call("predict", run, url, f"{far}/{name}", "--overwrite").status == 0
    text = ObjectPath(f"{far}/p.csv").read_text()
    assert len(list(csv.DictReader(io.StringIO(text)))) == 120
    calibrated = call_json("calibrate", run, "--split", "test")
    assert calibrated["model"] == f"{run}/model.npz"
    assert ObjectPath(f"{run}/reliability.png").read_bytes().startswith(b"\x89PNG")
    assert call_json("info", f"{run}/model.npz")["calibration"]["n_samples"] == 20
    for name in ("p.csv", "p.parquet", "p.zarr"):
        made = call_json(
            "predict",
            run,
            url,
            f"{far}/{name}",
            "--coverage",
            0.9,
            "--overwrite",
            "--probabilities",
        )
        assert made["coverage"] == 0.9
    lifted = f"{far}/lifted.zarr"
    assert call("features", url, lifted, "--components", 16).status == 0
    assert open_store(lifted).n_features == 16
    like = call("features", url, f"{far}/other.zarr", "--like", f"{lifted}.map.npz")
    assert like.status == 0, like.err
    planned = call("plan", job, "--set", f"data.store={url}", "--gflops", 10)
    assert planned.status == 0, planned.err


def test_errors_name_address_and_remedy(call, s3, s3_server, monkeypatch):
    found = call("info", "s3://dtopk-nowhere/a.zarr")
    assert found.status == 2
    assert "its bucket must exist, but there is no 'dtopk-nowhere'" in found.err
    assert "s3://dtopk-nowhere/a.zarr" in found.err
    use_server(monkeypatch, s3_server, AWS_SECRET_ACCESS_KEY="not-that-one")
    found = call("info", f"{s3}/a.zarr")
    assert found.status == 2
    assert "refuses access" in found.err
    assert "not-that-one" not in found.err


@pytest.mark.parametrize("command", ["info", "evaluate", "predict", "ingest", "train", "features"])
def test_credentials_in_an_address_are_refused_and_not_repeated(call, command, source):
    url = "s3://AKIAKEY:top/secret@bucket/x"
    arguments = {
        "evaluate": (url, url),
        "predict": (url, url, "p.csv"),
        "ingest": (source, url),
        "train": ("--resume", url),
        "features": (url, url),
    }.get(command, (url,))
    found = call(command, *arguments)
    assert found.status == 2
    assert "must be an address without credentials" in found.err
    assert "secret" not in found.err
    assert "AKIAKEY" not in found.err
