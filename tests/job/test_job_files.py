"""Job files: what they take, what they refuse, and how they say it."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from dtopk.job.config import (
    DataSection,
    ModelSection,
    ResourcesSection,
    TrackingSection,
    TrainJob,
)
from dtopk.job.files import job_from_dict, job_to_dict, job_to_toml, load_job
from dtopk.job.sweep_config import SweepJob, SweepSection

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def write_job(tmp_path):
    def write(text="", version="version = 1"):
        path = tmp_path / "job.toml"
        path.write_text(f"{version}\n{text}\n")
        return path

    return write


DATA = "[data]\nstore = 'x.zarr'\n"


def test_job_fills_in_what_the_file_leaves_out(write_job, tmp_path):
    job = load_job(write_job(DATA))
    assert job.data.store == str(tmp_path / "x.zarr")
    assert job.model == ModelSection()


def test_job_paths_start_at_the_files_folder(write_job, tmp_path):
    job = load_job(write_job("[data]\nstore = '../a/x.zarr'\n[output]\nrun_dir = 'runs/{time}'\n"))
    assert job.data.store == str(tmp_path.parent / "a" / "x.zarr")
    assert job.output.run_dir == str(tmp_path / "runs" / "{time}")


def test_job_paths_given_by_set_start_at_the_working_directory(write_job, tmp_path, monkeypatch):
    path = write_job(DATA)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    job = load_job(path, ["data.store=y.zarr"])
    assert job.data.store == str(tmp_path / "elsewhere" / "y.zarr")


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ("model.C=0.5", "model", "C", 0.5),
        ("model.C=2", "model", "C", 2.0),
        ("model.loss=softmax", "model", "loss", "softmax"),
        ("model.loss='softmax'", "model", "loss", "softmax"),
        ("model.fit_intercept=true", "model", "fit_intercept", True),
        ("data.evaluate=['train', 'test']", "data", "evaluate", ("train", "test")),
        ("tracking.run_name=a = b", "tracking", "run_name", "a = b"),
        ("solver.warm_start=", "solver", "warm_start", ""),
    ],
)
def test_set_overrides_a_value(write_job, text, section, key, value):
    job = load_job(write_job(DATA), [text])
    assert getattr(getattr(job, section), key) == value


@pytest.mark.parametrize("text", ["C=1", "model.C", "=1", ".C=1", "model.=1"])
def test_set_must_name_section_and_key(write_job, text):
    with pytest.raises(ValueError, match=r"--set must be section\.key=value, got"):
        load_job(write_job(DATA), [text])


def test_job_comes_back_from_its_own_text(write_job):
    job = load_job(write_job(DATA), ["model.C=3", "data.evaluate=['a','b']"])
    path = write_job(job_to_toml(job), version="")
    assert load_job(path) == job
    assert job_from_dict(job_to_dict(job)) == job


def test_resolved_job_gives_every_value(write_job):
    tables = job_to_dict(TrainJob())
    for section in dataclasses.fields(TrainJob):
        fields = dataclasses.fields(section.default_factory)
        assert list(tables[section.name]) == [field.name for field in fields]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1.0", "-1"])
@pytest.mark.parametrize(
    ("section", "key", "rule"),
    [
        ("model", "C", "number above 0"),
        ("model", "gamma", "number, 0 or above"),
        ("model", "intercept_scaling", "number above 0"),
        ("solver", "tol", "number above 0"),
        ("solver", "time_limit_s", "number, 0 or above"),
    ],
)
def test_job_refuses_numbers_out_of_range(write_job, section, key, rule, number):
    path = write_job(f"{DATA}[{section}]\n{key} = {number}")
    value = float(number)
    with pytest.raises(
        ValueError,
        match=rf"^{section}\.{key} must be a finite {rule}, got {value}\. In '.*job.toml'\.$",
    ):
        load_job(path)


@pytest.mark.parametrize("name", ["model.C", "solver.tol", "model.intercept_scaling"])
def test_job_refuses_zero_where_it_means_nothing(write_job, name):
    with pytest.raises(ValueError, match=rf"{name} must be a finite number above 0, got 0\.0\."):
        load_job(write_job(DATA), [f"{name}=0"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.k=0", "model.k must be at least 1, got 0"),
        ("solver.max_epochs=0", "solver.max_epochs must be at least 1, got 0"),
        ("solver.block_size=-1", "solver.block_size must be at least 0, got -1"),
        ("solver.seed=-1", "solver.seed must be at least 0, got -1"),
        ("resources.threads=-1", "resources.threads must be at least 0, got -1"),
        ("data.train=", "data.train must name a split, got ''"),
        ("output.run_dir=", "output.run_dir must name a folder, got ''"),
        ("tracking.experiment=", "tracking.experiment must name an experiment, got ''"),
        ("tracking.alias=champion", "tracking.alias must go with tracking.register_as"),
        ("tracking.register_as=a/b", "tracking.register_as must have no slash, colon or quote"),
        ("tracking.wait_s=-1", "tracking.wait_s must be a finite number, 0 or above, got -1"),
        ("solver.dtype=float16", "must be one of 'float32', 'float64', got 'float16'"),
        ("solver.acceleration=yes", "must be one of 'auto', 'off', got 'yes'"),
        ("model.smoothing=laplin", "got 'laplin'. Did you mean 'lapin'"),
        ("model.class_weight=balance", "got 'balance'. Did you mean 'balanced'"),
        ("resources.memory_limit=lots", "'auto' or a size above 0 such as '512MB'.*got 'lots'"),
        ("resources.memory_limit=0GB", "'auto' or a size above 0 such as '512MB'.*got '0GB'"),
    ],
)
def test_job_refuses_values_out_of_rule(write_job, text, message):
    with pytest.raises(ValueError, match=message):
        load_job(write_job(DATA), [text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.C='1'", "model.C must be a number, got '1'"),
        ("model.C=true", "model.C must be a number, got True"),
        ("model.k=1.5", "model.k must be a whole number, got 1.5"),
        ("model.k=true", "model.k must be a whole number, got True"),
        ("model.loss=3", "model.loss must be a string, got 3"),
        ("tracking.mlflow=1", "tracking.mlflow must be true or false, got 1"),
        ("data.evaluate=test", "data.evaluate must be a list of strings, got 'test'"),
    ],
)
def test_job_refuses_values_of_another_type(write_job, text, message):
    with pytest.raises(ValueError, match=rf"^{message}\. In --set {re.escape(text)}\.$"):
        load_job(write_job(DATA), [text])


@pytest.mark.parametrize(
    ("sections", "overrides", "place"),
    [
        ("[model]\nk = 0", ["model.C=2"], r"In '.*job\.toml'\."),
        ("[model]\nC = 2", ["model.C=3", "model.k=0"], r"In --set model\.k=0\."),
        ("[model]\nk = 0", ["model.k=0"], r"In --set model\.k=0\."),
        ("[model]\nk = 3", ["model.loss=softmax"], r"In --set model\.loss=softmax\."),
        ("[model]\nloss = 'softmax'", ["model.C=2", "model.k=3"], r"In --set model\.k=3\."),
        ("", ["model.C=2", "solver.name=x"], r"In --set solver\.name=x\."),
        ("", ["model.C=2", "solver.nme=x"], r"In --set solver\.nme=x\."),
        ("[modle]", ["model.C=2"], r"In '.*job\.toml'\."),
    ],
)
def test_job_error_names_the_guilty_place_alone(write_job, sections, overrides, place):
    with pytest.raises(ValueError, match=rf"[.?] {place}$") as caught:
        load_job(write_job(DATA + sections), overrides)
    assert str(caught.value).count(" In ") == 1


@pytest.mark.parametrize("tol", ["1", "2.5"])
def test_job_refuses_a_tolerance_that_certifies_nothing(write_job, tol):
    with pytest.raises(ValueError, match=r"^solver\.tol must be below 1, got .*\. In --set"):
        load_job(write_job(DATA), [f"solver.tol={tol}"])


def test_job_that_is_a_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"^JOB must be a TOML job file, .* which is a folder\.$"):
        load_job(tmp_path)


def test_job_that_is_no_text_is_named(tmp_path):
    (tmp_path / "features.npz").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(ValueError, match=r"^JOB must be a TOML job file, .* is not text in UTF-8"):
        load_job(tmp_path / "features.npz")


def test_job_names_the_nearest_section(write_job):
    path = write_job(DATA + "[modle]\nC = 1")
    with pytest.raises(
        ValueError, match=r"section 'modle' is unknown\. Did you mean 'model'\?.* In"
    ):
        load_job(path)


def test_job_names_the_nearest_key(write_job):
    path = write_job(DATA + "[solver]\nmax_epoch = 1")
    with pytest.raises(
        ValueError, match=r"key in \[solver\] 'max_epoch' is unknown\. Did you mean 'max_epochs'\?"
    ):
        load_job(path)


def test_job_refuses_a_newer_version(write_job):
    with pytest.raises(
        ValueError, match=r"version must be at most 1, got 2\. In '.*job\.toml'\. A"
    ):
        load_job(write_job(DATA, version="version = 2"))


@pytest.mark.parametrize("version", ["", "version = 0", "version = '1'", "version = true"])
def test_job_must_say_its_version(write_job, version):
    with pytest.raises(ValueError, match=r"version must be a whole number, 1 to 1, got"):
        load_job(write_job(DATA, version=version))


def test_job_that_is_not_toml_is_named_with_the_line(write_job):
    path = write_job("[data]\nstore = ")
    with pytest.raises(ValueError, match=r"job\.toml' must be TOML: .*line 3"):
        load_job(path)


def test_job_that_is_absent_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"job file '.*absent\.toml' does not exist"):
        load_job(tmp_path / "absent.toml")


def test_job_refuses_a_key_outside_of_sections(write_job):
    with pytest.raises(ValueError, match=r"'store' must stand in a section such as \[model\]"):
        load_job(write_job("store = 'x'"))


def test_job_file_must_name_a_store(write_job):
    with pytest.raises(ValueError, match=r"data\.store must be the path of a feature store, got"):
        load_job(write_job())


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("auto", 0), ("1GB", 10**9), ("1.5 GiB", 3 * 2**29), ("100", 100), ("2kib", 2048)],
)
def test_memory_limit_in_bytes(text, n_bytes):
    assert ResourcesSection(memory_limit=text).memory_limit_bytes == n_bytes


def test_readme_lists_every_key_with_its_default():
    text = (JOBS / "README.md").read_text().partition("## Keys")[2]
    job = SweepJob(data=DataSection(validation="val"), sweep=SweepSection())
    for section, values in job_to_dict(job).items():
        if section == "version":
            continue
        part = text.partition(f"### [{section}]\n")[2].partition("\n### ")[0]
        cells = [line.split("`") for line in part.splitlines() if line.startswith("| `")]
        rows = {row[1]: row[3] for row in cells}
        assert set(rows) == set(values), section
        for key, value in values.items():
            if (section, key) != ("data", "validation"):
                assert tomllib.loads(f"value = {rows[key]}")["value"] == value, key


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "a b"])
def test_alias_of_mlflow_s_own_is_refused(alias):
    with pytest.raises(
        ValueError, match=r"tracking\.alias must be of letters, digits, '-' and '_'"
    ):
        TrackingSection(register_as="letter", alias=alias)
