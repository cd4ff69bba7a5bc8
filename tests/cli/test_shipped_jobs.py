"""Every file in jobs/ is loaded, planned, and trained for two epochs on a store that is small.

A file with a `version` is a job, and with a section [sweep] a sweep; any other one must be known to
the script that reads it. The comments of a job, or of another one, say how its store is made: by
`dtopk ingest` from data that is in jobs/data, which is done here, or from a user's own, whose sizes
are then those that `dtopk plan` is given in the comments.
"""

import csv
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dtopk.cli import dtopk
from dtopk.engine.forecast import Speed
from dtopk.job import load_job, load_sweep, sweeping, training
from dtopk.job.files import job_to_toml
from dtopk.job.names import list_settings
from dtopk.losses import make_loss
from dtopk.model import load_model
from dtopk.testing import make_features
from dtopk_storage import create_store, open_store
from dtopk_storage.manifest import Kind
from tests.benchmarks import passes

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "jobs").glob("*.toml"))
TABLES = {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in FILES}
SWEEPS = [path for path in FILES if "sweep" in TABLES[path]]
JOBS = [path for path in FILES if "version" in TABLES[path] and path not in SWEEPS]
BENCHMARKS = [path for path in FILES if f"jobs/{path.name}" in str(passes.__doc__)]
N_EPOCHS = 2
SPLIT_ROWS = 90
TRAIN_ROWS = 360


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a job's training rows."""

    n_samples: int
    n_features: int
    n_classes: int
    dtype: str
    kind: Kind

    def scale_down(self, k):
        """Keep few rows, and no more features and classes than such can tell apart."""
        return Shape(
            n_samples=min(self.n_samples, TRAIN_ROWS),
            n_features=min(self.n_features, 24),
            n_classes=min(self.n_classes, max(12, k + 2)),
            dtype=self.dtype,
            kind=self.kind,
        )


def list_commands(path):
    """List the command lines that stand by themselves in a file's comments, as lists of words."""
    text = path.read_text(encoding="utf-8")
    joined = re.sub(r"\\\n#\s*", "", text)
    return [shlex.split(found) for found in re.findall(r"^#\s+dtopk (\w.*)$", joined, re.MULTILINE)]


def parse(name, *arguments):
    """Read a command line as the command does, without doing anything."""
    return dtopk.get_command(None, name).make_context(name, list(arguments)).params


def find_commands(name, store):
    """Find the commands in all files that make or plan a store of this name."""
    for path in (*JOBS, *SWEEPS):
        for command, *arguments in list_commands(path):
            if command != name:
                continue
            params = parse(name, *arguments)
            if name == "plan":
                about = TABLES[ROOT / params["job_path"]]["data"]["store"]
            else:
                about = params["store"]
            if Path(about).name == store:
                yield arguments, params


def load(path, overrides=()):
    return (load_sweep if path in SWEEPS else load_job)(path, overrides)


def needs_workers(path):
    """Tell whether a job has workers, or gets them by `dtopk submit`."""
    table = TABLES[path]
    return "submit" in table or table.get("cluster", {}).get("kind", "none") != "none"


def list_splits(job):
    data = job.data
    return {data.train, *data.evaluate, *([data.validation] if data.validation else [])}


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    """Make the stores of the data in jobs/data, by the commands of the comments; once each."""
    folder, made = tmp_path_factory.mktemp("ingested"), {}

    def ingest(store):
        if store not in made:
            arguments, params = next(
                found
                for found in find_commands("ingest", store)
                if (ROOT / found[1]["source"]).is_file()
            )
            where = folder / store
            places = {params["store"]: where, params["source"]: ROOT / params["source"]}
            words = [str(places.get(word, word)) for word in arguments]
            done = CliRunner().invoke(dtopk, ["ingest", *words], catch_exceptions=False)
            assert done.exit_code == 0, done.output
            made[store] = open_store(where)
        return made[store]

    return ingest


@pytest.fixture
def find_shape(ingested):
    """Give the shape of a job's store."""

    def find(path):
        job = load(path)
        store = Path(job.data.store).name
        for _, params in find_commands("plan", store):
            if params["n"] and params["d"] and params["m"]:
                return Shape(
                    n_samples=params["n"],
                    n_features=params["d"],
                    n_classes=params["m"],
                    dtype=params["dtype"] or "float16",  # as `dtopk plan` takes it
                    kind="multiclass",
                )
        assert any(find_commands("ingest", store)), (
            f"no comment in jobs/*.toml says how {store} is made, by `dtopk ingest jobs/data/...`, "
            "or what sizes it has, by `dtopk plan FILE --n N --d D --m M --dtype DTYPE`"
        )
        made = ingested(store)
        return Shape(
            n_samples=made.split_size(job.data.train),
            n_features=made.n_features,
            n_classes=made.n_classes,
            dtype=made.dtype.name,
            kind=made.kind,
        )

    return find


def draw_rows(shape, n_rows, seed):
    """Draw rows of clusters; with sets of labels every third has the next class too.

    Returns
    -------
    X : ndarray of shape (n_rows, n_features), float32
    indicator : ndarray of shape (n_rows, n_classes), uint8
    """
    everything = make_features(TRAIN_ROWS * 4, shape.n_features, shape.n_classes, seed=0)
    rows = np.random.default_rng(seed).choice(TRAIN_ROWS * 4, n_rows, replace=False)
    X, y = (array[rows] for array in everything)
    indicator = np.eye(shape.n_classes, dtype=np.uint8)[y]
    if shape.kind == "multilabel":
        indicator[::3] |= np.roll(indicator[::3], 1, axis=1)
    return X, indicator


@pytest.fixture
def small(find_shape, tmp_path):
    """Write a store like that of a job, with the same splits, and give it with its shape."""

    def make(path):
        job = load(path)
        ks = getattr(job, "sweep", job.model).k or job.model.k
        shape = find_shape(path).scale_down(max(ks) if isinstance(ks, tuple) else ks)
        where = tmp_path / "small.zarr"
        with create_store(
            where, n_features=shape.n_features, class_names=range(shape.n_classes), chunk_rows=32,
            kind=shape.kind, dtype=shape.dtype,
        ) as writer:  # fmt: skip
            for seed, split in enumerate(sorted(list_splits(job))):
                n_rows = shape.n_samples if split == job.data.train else SPLIT_ROWS
                X, indicator = draw_rows(shape, n_rows, seed)
                labels = indicator if shape.kind == "multilabel" else indicator.argmax(axis=1)
                writer.append(X, labels, split=split)
        return where, shape

    return make


@pytest.fixture
def measured(monkeypatch):
    """Stand in for the measurement, which takes seconds."""

    def measure_speed(loss, n_features, n_classes, **options):
        return Speed(
            gflops=100.0,
            ratio=1.5,
            certificate_ratio=2.0,
            copy_rate=1e10,
            n_features=n_features,
            n_classes=n_classes,
        )

    monkeypatch.setattr("dtopk.engine.forecast.measure_speed", measure_speed)


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Leave the figures out, which take most of the time of a small job."""
    for module in (training, sweeping):
        monkeypatch.setattr(module, "save_png", lambda figure, path: None)


def make_overrides(path, store):
    """Say what of a job must be otherwise on this machine, in two epochs and on a small store."""
    changes = [f"data.store={store}", f"solver.max_epochs={N_EPOCHS}", "tracking.mlflow=false",
               "output.state_url="]  # fmt: skip
    if needs_workers(path):
        changes += ["cluster.kind=local", "cluster.workers=2", "cluster.threads_per_worker=1",
                    "cluster.memory_per_worker=auto", "cluster.scheduler=",
                    "cluster.min_workers=1", "cluster.dashboard=false",
                    "cluster.tls_ca=", "cluster.tls_cert=", "cluster.tls_key="]  # fmt: skip
    return [word for change in changes for word in ("--set", change)]


def check_model(path, shape):
    """Hold a model to its shape, and to rows that it has not seen better than by chance."""
    model = load_model(path)
    assert model.W.shape == (shape.n_features, shape.n_classes)
    assert np.isfinite(model.W).all()
    assert np.isfinite(model.intercept).all()
    X, indicator = draw_rows(shape, TRAIN_ROWS, seed=99)
    best = model.decision_function(X).argmax(axis=1)
    share_right = indicator[np.arange(len(X)), best].mean()
    assert share_right > 2 * indicator.mean()


def plan(path, shape, call_json):
    """Plan a job at its full size, where workers are elsewhere with the memory asked for them."""
    job = load_job(path)
    sizes = ["--n", shape.n_samples, "--d", shape.n_features, "--m", shape.n_classes,
             "--dtype", shape.dtype]  # fmt: skip
    if job.submit.memory:
        sizes += ["--workers", job.submit.nodes * job.submit.processes]
        sizes += ["--memory", job.submit.memory]
    elif job.cluster.kind == "scheduler":
        sizes += ["--memory", "4GB"]
    fields = call_json("plan", path, *sizes)
    assert fields["fits"]
    assert fields["needed_bytes"] <= fields["usable_bytes"]
    assert fields["forecast"]["epoch_seconds"] > 0
    expected = (shape.n_samples, shape.n_features, shape.n_classes)
    assert (fields["n_samples"], fields["n_features"], fields["n_classes"]) == expected
    return fields


def test_every_file_has_something_that_reads_it():
    """A new file is a job, with a `version`, or stands in the docstring of passes.py."""
    assert sorted([*JOBS, *SWEEPS, *BENCHMARKS]) == FILES


@each([*JOBS, *SWEEPS])
def test_commands_in_comments_are_taken(path):
    for name, *arguments in list_commands(path):
        parse(name, *arguments)


@each([*JOBS, *SWEEPS])
def test_the_store_of_a_job_is_made_with_the_splits_that_it_names(path):
    """By every command in the comments that makes it, also those of other files."""
    job = load(path)
    commands = list(find_commands("ingest", Path(job.data.store).name))
    assert commands
    for _, params in commands:
        splits = {name for name, *_ in params["split_rows"]} | dict(params["splits"]).keys()
        assert list_splits(job) <= splits


@each(JOBS)
def test_jobs_can_be_planned(path, find_shape, call_json, measured):
    fields = plan(path, find_shape(path), call_json)
    job = load_job(path)
    if job.cluster.kind == "local":
        assert fields["workers"] == job.cluster.workers
    if job.cluster.partitions:
        assert fields["partitions"] == job.cluster.partitions


@each(SWEEPS)
def test_settings_of_sweeps_can_be_planned(path, find_shape, call_json, measured, tmp_path):
    job = load_sweep(path)
    settings, left_out = list_settings(job)
    assert not left_out
    shape = find_shape(path)
    for setting in settings:
        one = tmp_path / "one.toml"
        one.write_text(job_to_toml(setting.make_job(job, str(tmp_path / "run"))), encoding="utf-8")
        plan(one, shape, call_json)


@pytest.mark.parametrize(
    ("name", "features_in_memory", "duals_in_memory"),
    [("imagenet.toml", True, True), ("places.toml", False, True)],
)
def test_large_jobs_hold_in_memory_what_their_comments_say(
    name, features_in_memory, duals_in_memory, find_shape, call_json, measured
):
    path = ROOT / "jobs" / name
    fields = plan(path, find_shape(path), call_json)
    assert fields["features_in_memory"] == features_in_memory
    assert fields["duals_in_memory"] == duals_in_memory


# On workers last: each of them would compile the kernels that this process then has in its cache.
@each(sorted(JOBS, key=needs_workers))
def test_jobs_train_to_a_result(path, small, call, tmp_path):
    store, shape = small(path)
    run = tmp_path / "run"
    done = call("train", path, *make_overrides(path, store), "--run-dir", run)
    assert done.status == 0, done.err
    job = load_job(run / "job.toml")
    assert job.model == load_job(path).model
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert 1 <= result["epochs"] <= N_EPOCHS
    assert 0 <= result["relative_gap"] < 1
    assert result["n_samples"] == shape.n_samples
    assert set(result["top_k_accuracy"]) == set(job.data.evaluate)
    with (run / "history.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) >= result["epochs"]
    check_model(run / "model.npz", shape)


@each(SWEEPS)
def test_sweeps_train_to_a_result(path, small, call, tmp_path):
    store, shape = small(path)
    folder = tmp_path / "sweep"
    done = call("sweep", path, *make_overrides(path, store), "--run-dir", folder)
    assert done.status == 0, done.err
    job = load_sweep(path)
    settings, _ = list_settings(job)
    with (folder / "sweep.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(settings)
    assert {best.name for best in (folder / "best").iterdir()} == set(job.sweep.metric)
    for metric in job.sweep.metric:
        check_model(folder / "best" / metric, shape)


@each(BENCHMARKS)
def test_benchmarks_count_every_scheme_of_every_loss(path):
    """Each once, on few rows; passes.py itself goes on where this stops, to the tolerance."""
    config = TABLES[path] | {"max_passes": dict.fromkeys(TABLES[path]["schemes"], N_EPOCHS)}
    assert {run["set"] for run in passes.runs(config)} == set(config["sets"])
    name, entry = next(pair for pair in config["sets"].items() if "n_samples" in pair[1])
    rows = passes.load_set(entry | {"n_samples": TRAIN_ROWS}, path.parent)
    first = {(run["loss"], run["scheme"]): run for run in passes.runs(config) if run["set"] == name}
    for run in first.values():
        entry = {k: v for k, v in config["losses"][run["loss"]].items() if k != "schemes"}
        options = passes.make_options(config, run["scheme"], run["C"], min(run["partitions"], 4))
        counted = passes.count(rows, make_loss(**entry), options)
        assert 1 <= counted["epochs"] <= N_EPOCHS
        assert 0 <= float(counted["gap"]) < np.inf


@each(BENCHMARKS)
def test_archives_of_benchmarks_are_there(path):
    for entry in TABLES[path]["sets"].values():
        if "archive" in entry:
            few = entry | ({"n_components": 8} if "n_components" in entry else {})
            rows = passes.load_set(few, path.parent)
            assert rows.n_stored > TRAIN_ROWS
