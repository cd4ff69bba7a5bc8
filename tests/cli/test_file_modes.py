"""Files are made as the user's umask says, and what is temporary is the user's alone."""

import os
import stat
import tempfile
import uuid

import numpy as np
import pytest

from dtopk.launch import ClusterOptions, open_cluster
from dtopk_storage.ingest import IngestOptions, ingest
from tests.small_stores import make_rows


@pytest.fixture
def source(tmp_path):
    X, y = make_rows(200, seed=1)
    np.savez(tmp_path / "a.npz", X=X, y=y)
    return tmp_path / "a.npz"


@pytest.fixture(params=[0o022, 0o027, 0o002], ids=oct)
def mask(request):
    """Set the umask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def list_modes(folder):
    return {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.slow
def test_what_commands_make_has_the_modes_of_the_umask(call, source, tmp_path, monkeypatch, mask):
    """Shared folders need 002, and others 022 or less: none is made wider or narrower."""
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.chdir(made)
    (tmp_path / "job.toml").write_text("version = 1\n[data]\nstore = 'made/s.zarr'\n")
    for arguments in (
        ["ingest", source, "s.zarr", "--split", "test=0.2", "--split", "val=0.2", "--shuffle"],
        ["features", "s.zarr", "lifted.zarr", "--components", "8"],
        ["train", tmp_path / "job.toml", "--run-dir", "runs/a"],
        ["calibrate", "runs/a", "--split", "val"],
        ["predict", "runs/a", "s.zarr", "p.csv"],
        ["predict", "runs/a", "s.zarr", "p.parquet"],
        ["predict", "runs/a", "s.zarr", "p.zarr"],
        ["report", "runs/a", "--out", "page.html"],
    ):
        result = call(*arguments)
        assert result.status == 0, result.err
    modes = list_modes(made)
    assert {"model.npz", "mlflow.db", "p.zarr", "page.html"} <= {path.name for path in modes}
    for path, mode in modes.items():
        # SQLite lets nobody else write its files.
        allowed = 0o644 if path.name == "mlflow.db" else 0o777 if path.is_dir() else 0o666
        assert oct(mode) == oct(allowed & ~mask), path


def test_temporary_folders_are_the_users_alone(source, tmp_path, monkeypatch):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr("dtopk_storage.run_lock._SETTLE_S", 0)
    seen = {}

    def look(progress=None):
        seen.update({path.name.split("-")[1]: path.stat().st_mode for path in place.iterdir()})

    ingest(source, f"memory://{uuid.uuid4().hex}/s", IngestOptions(shuffle=True), look)
    with open_cluster(ClusterOptions(kind="local", workers=1, dashboard=False)):
        look()
    modes = {what: oct(stat.S_IMODE(mode)) for what, mode in seen.items()}
    assert modes == {"ingest": "0o700", "workers": "0o700"}
