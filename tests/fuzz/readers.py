"""Every reader of files that dtopk has, with small valid inputs for it."""

import io
import json
import random
import re
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from dtopk.calibration import Calibration
from dtopk.cli.run_info import describe_model, describe_run
from dtopk.job import load_job
from dtopk.job.files import load_sweep
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.job.sweep_folder import SweepFolder
from dtopk.lifting import draw_map, load_map
from dtopk.model import Model
from dtopk.tracking.outbox import read_kept
from dtopk_storage import create_dual, create_store, open_dual, open_run_state, open_store
from dtopk_storage.errors import CheckpointError, DatasetError
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.ingest.label_reading import read_labels
from dtopk_storage.manifest import check_class_names, checksum
from dtopk_storage.sources.base import SourceOptions
from dtopk_storage.sources.formats import open_source
from dtopk_storage.values import as_feature_dtype, convert_features
from tests.small_stores import make_store

Files = Mapping[str, bytes]
"""An input: the content of each file, by its path in the folder of the input."""
N, D, M = 12, 3, 3
"""Rows, features and classes of the valid inputs."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """What reads files, and what it is tried with."""

    name: str
    """Its name on the command line."""
    make_seeds: Callable[[], list[Files]]
    """Makes valid inputs."""
    read: Callable[[Path], object]
    """Reads the input in a folder; ValueError and OSError say that it is no valid one."""
    fixed: tuple[str, ...] = ()
    """Files that stay as they are."""
    repair: Callable[[str, bytes], bytes] = lambda name, content: content
    """Makes the checksums of a file right again, where it can."""


def collect(folder: Path) -> Files:
    """Read all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, D)).astype(np.float32), np.arange(N) % M


def _saved(save: Callable[..., None], *values: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *values, **named)
    return file.getvalue()


# Sources of stores.


def _read_source(name: str, folder: Path, labels: str = "") -> None:
    """Read a source as an ingest does; of one input in 16 make the store, which takes longer."""
    file = folder / labels if labels else None
    if zlib.crc32(b"".join(collect(folder).values())) % 16 == 0:
        with tempfile.TemporaryDirectory() as target:
            ingest(folder / name, Path(target) / "out.zarr", IngestOptions(labels=file))
        return
    source = open_source(folder / name, SourceOptions())
    named = source if file is None else open_source(file, SourceOptions(), role="labels")
    vector = named.open_vector(None, "labels")
    codes, names, kind = read_labels(vector, lambda rows: None)
    check_class_names(names, kind, vector.place)
    if vector.column is not None:
        source.options = SourceOptions(skip_columns=(vector.column,))
    features = source.open_features()
    if features.n_samples not in (None, len(codes)):
        raise DatasetError(f"{features.place} has other rows than its labels.")
    dtype, done = as_feature_dtype("float32"), 0
    for block in features.blocks(0):
        convert_features(block, dtype, divide_by=1.0, place=features.place, start=done)
        done += len(block)


def _csv_seeds() -> list[Files]:
    X, y = _rows()
    lines = [f"{','.join(map(str, row))},{'abc'[label]}" for row, label in zip(X, y, strict=True)]
    return [{"x.csv": ("f0,f1,f2,label\n" + "\n".join(lines) + "\n").encode()}]


def _svmlight_seeds() -> list[Files]:
    X, y = _rows()
    lines = [
        f"{label} {' '.join(f'{at + 1}:{value}' for at, value in enumerate(row))}"
        for row, label in zip(X, y, strict=True)
    ]
    several = [f"{line[0]},{(int(line[0]) + 1) % M}{line[1:]}" for line in lines]
    return [{"x.svm": ("\n".join(text) + "\n").encode()} for text in (lines, several)]


def _compressed_seeds() -> list[Files]:
    import gzip

    return [{"x.svm.gz": gzip.compress(files["x.svm"], mtime=0)} for files in _svmlight_seeds()]


def _npy_seeds() -> list[Files]:
    X, y = _rows()
    y_file = _saved(np.save, y)
    arrays = (X, np.asfortranarray(X.astype(np.float64)), X.astype(np.float16))
    return [{"x.npy": _saved(np.save, values), "y.npy": y_file} for values in arrays]


def _npz_seeds() -> list[Files]:
    X, y = _rows()
    return [
        {"x.npz": _saved(np.savez, X=X, y=y)},
        {"x.npz": _saved(np.savez_compressed, X=np.asfortranarray(X), y=np.eye(M)[y])},
    ]


def _text_seeds() -> list[Files]:
    X, y = _rows()
    return [{"x.npy": _saved(np.save, X), "y.txt": "".join(f"{each}\n" for each in y).encode()}]


def _parquet_seeds() -> list[Files]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, y = _rows()
    columns = {**{f"f{at}": X[:, at] for at in range(D)}, "label": y}
    lists = {"X": X.tolist(), "label": [[int(each)] for each in y]}
    return [
        {"x.parquet": _saved(lambda file, table: pq.write_table(table, file), pa.table(table))}
        for table in (columns, lists)
    ]


def _hdf5_seeds() -> list[Files]:
    import h5py

    X, y = _rows()
    seeds: list[Files] = []
    for options in ({}, {"chunks": (4, D), "compression": "gzip"}):
        file = io.BytesIO()
        with h5py.File(file, "w") as made:
            made.create_dataset("X", data=X, **options)
            made.create_dataset("y", data=[b"abc"[each : each + 1] for each in y])
        seeds.append({"x.h5": file.getvalue()})
    return seeds


def _zarr_seeds() -> list[Files]:
    import zarr

    X, y = _rows()
    seeds: list[Files] = []
    for version in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            group = zarr.open_group(folder, mode="w", zarr_format=version)
            for name, values in (("X", X), ("y", y)):
                array = group.create_array(
                    name, shape=values.shape, dtype=values.dtype, chunks=(4, *values.shape[1:])
                )
                array[:] = values
            seeds.append({f"x.zarr/{name}": body for name, body in collect(Path(folder)).items()})
    return seeds


# What dtopk writes itself.


def _store_seeds() -> list[Files]:
    X, y = _rows()
    sets = [[label, label + 1] if label + 1 < M else [label] for label in y.tolist()]
    seeds: list[Files] = []
    for labels, options in (
        (y.astype(np.int32), {"compression": "lz4"}),
        (y.astype(np.int32), {"compression": "none", "sample_weight": True}),
        (sets, {"compression": "zstd", "kind": "multilabel"}),
    ):
        with tempfile.TemporaryDirectory() as folder:
            with create_store(
                Path(folder) / "x.zarr",
                n_features=D,
                class_names=("a", "b", "c"),
                chunk_rows=4,
                **options,
            ) as writer:
                weight = np.ones(N) if "sample_weight" in options else None
                writer.append(X, labels, split="train", sample_weight=weight)
            seeds.append(collect(Path(folder)))
    return seeds


def _read_store(folder: Path) -> None:
    open_store(folder / "x.zarr").verify()


def _dual_seeds() -> list[Files]:
    with tempfile.TemporaryDirectory() as folder:
        dual = create_dual(
            Path(folder) / "dual", n_samples=N, n_classes=M, dtype="float32", chunk_rows=4
        )
        dual.write(0, np.arange(N * M, dtype=np.float32).reshape(N, M) // 4)
        return [collect(Path(folder))]


def _read_dual(folder: Path) -> None:
    dual = open_dual(folder / "dual")
    # Chunks that are not there are zeros, of any number: who reads duals knows how many there are.
    if (dual.n_samples, dual.n_classes) != (N, M):
        raise CheckpointError(f"duals in {dual.path!r} are of other rows or classes.")
    for start in range(0, dual.n_samples, dual.chunk_rows):
        dual.read(start, min(start + dual.chunk_rows, dual.n_samples))


def _state_seeds() -> list[Files]:
    with tempfile.TemporaryDirectory() as folder:
        state = open_run_state(Path(folder) / "state")
        state.write_array("000001-a", "W/0", np.arange(24.0).reshape(8, 3))
        state.write_array("000001-a", "dual/000000", np.zeros((40, 30), np.float32))
        state.commit("000001-a", {"progress": {"epoch": 1}, "saved": 1.0, "arrays": ["W/0"]})
        return [collect(Path(folder))]


def _read_state(folder: Path) -> None:
    state = open_run_state(folder / "state")
    manifest = state.load()
    if manifest is not None:
        for name in ("W/0", "dual/000000"):
            state.read_array(manifest["version"], name)


def _model_seeds() -> list[Files]:
    rng = np.random.default_rng(0)
    plain: dict[str, Any] = {
        "W": rng.normal(size=(D, M)).astype(np.float32),
        "intercept": np.zeros(M, np.float32),
        "classes": np.array(["a", "b", "c"]),
        "loss": "softmax",
        "link": "softmax",
        "job": {"data": {"train": "train"}},
        "certificate": {"primal": 1.0, "dual_value": 1.0, "relative_gap": 0.0, "tol": 1e-3},
    }
    full = plain | {
        "feature_mean": np.zeros(D),
        "feature_scale": np.ones(D),
        "class_rows": np.ones(M, np.int64),
        "calibration": Calibration(
            temperature=1.5,
            n_classes=M,
            score="lac",
            conformal_scores=np.linspace(0, 1, 20, dtype=np.float32),
        ),
    }
    seeds: list[Files] = []
    for fields in (plain, full):
        with tempfile.TemporaryDirectory() as folder:
            Model(**fields).save(Path(folder) / "model.npz")
            seeds.append(collect(Path(folder)))
    return seeds


def _read_model(folder: Path) -> None:
    describe_model(str(folder / "model.npz"), verify=False)


def _map_seeds() -> list[Files]:
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "store", n_train=20, n_test=5)
        seeds: list[Files] = []
        for kind in ("fourier", "nystroem"):
            place = Path(folder) / "map.npz"
            draw_map(store, kind, n_components=4, gamma=0.5, seed=0).save(place)
            seeds.append({"map.npz": place.read_bytes()})
        return seeds


_JOB = """version = 1
[data]
store = "x.zarr"
train = "train"
validation = "test"
center = true
[model]
loss = "topk_hinge_alpha"
k = 2
gamma = 1.0
C = 10.0
fit_intercept = true
[solver]
tol = 1e-3
max_epochs = 20
dtype = "float64"
[resources]
memory_limit = "2GB"
[tracking]
mlflow = false
[output]
run_dir = "runs/{time}"
"""
_SWEEP = """[sweep]
loss = ["softmax", "topk_hinge_alpha"]
k = [1, 2]
C = [0.1, 1, 10]
metric = ["top_1"]
folds = 3
"""
_USHER = """[cluster]
kind = "local"
workers = 2
partitions = 2
[submit]
nodes = 2
walltime = "02:00:00"
"""


def _read_job(folder: Path) -> None:
    load_job(folder / "job.toml")


def _read_sweep(folder: Path) -> None:
    load_sweep(folder / "job.toml")


_RESULT = {
    "primal": 1.5, "dual": 1.25, "relative_gap": 0.1, "certified": False, "epochs": 3,
    "resumable": True, "committed": True, "complete": True,
}  # fmt: skip
_HISTORY = (
    "epoch,seconds,primal,dual_value,relative_gap,exact,test/top_1\n"
    "1,0.5,2.0,1.0,0.5,False,\n2,0.7,1.6,1.2,0.2,True,0.75\n"
)


def _run_seeds() -> list[Files]:
    record = json.dumps(asdict(RunRecord(id="a", started=1.0, state="state", version="0")))
    seeds: list[Files] = []
    for state in _state_seeds():
        seeds.append(
            {
                "run/job.toml": _JOB.encode(),
                "run/run.json": record.encode(),
                "run/result.json": json.dumps(_RESULT).encode(),
                "run/history.csv": _HISTORY.encode(),
                "run/state/state.json": state["state/state.json"],
            }
        )
    return seeds


def _read_run(folder: Path) -> None:
    run = RunFolder(path=folder / "run")
    record = run.read_record()
    run.read_history()
    if record.state == "state":
        # A run has the absolute path of its state.
        run.write_record(RunRecord(**(asdict(record) | {"state": str(run.path / "state")})))
    describe_run(str(run.path), verify=False)
    run.has_ended()


def _sweep_seeds() -> list[Files]:
    result = {
        "name": "softmax/C-1", "solver": "sdca", "stop_reason": "tolerance", "epochs": 3,
        "seconds": 1.0, "primal": 1.5, "dual": 1.25, "duality_gap": 0.25, "relative_gap": 0.1,
        "certified": True, "splits": ["train"],
    }  # fmt: skip
    return [
        {
            "sweep/job.toml": (_JOB + _SWEEP).encode(),
            "sweep/sweep-run.json": json.dumps(asdict(RunRecord(id="a", started=1.0))).encode(),
            "sweep/sweep.json": json.dumps({"n_done": 1, "settings": [result]}).encode(),
            "sweep/settings/softmax/result.json": json.dumps(result).encode(),
            "sweep/settings/softmax/model.npz": _model_seeds()[0]["model.npz"],
        }
    ]


@dataclass(frozen=True)
class _Unit:
    name: str = "softmax"


def _read_sweep_folder(folder: Path) -> None:
    sweep = SweepFolder(path=folder / "sweep")
    sweep.read_record()
    sweep.read_result()
    sweep.find_result(_Unit())


def _outbox_seeds() -> list[Files]:
    lines = [{"kind": "start", "version": 1, "run": "r"}, {"kind": "metrics", "values": {"a": 1.0}}]
    return [{"mlflow.jsonl": "".join(json.dumps(line) + "\n" for line in lines).encode()}]


def _cost_seeds() -> list[Files]:
    costs = np.ones((M, M)) - np.eye(M)
    job = '[model]\nloss = "structured_hinge"\nlabel_cost = "costs.{}"\n'
    text = "".join(",".join(map(str, row)) + "\n" for row in costs)
    return [
        {"job.toml": _with_costs(job.format("npy")), "costs.npy": _saved(np.save, costs)},
        {"job.toml": _with_costs(job.format("csv")), "costs.csv": text.encode()},
    ]


def _with_costs(model: str) -> bytes:
    return f'version = 1\n[data]\nstore = "x.zarr"\n{model}'.encode()


# Checksums.


def _repair_json(name: str, content: bytes) -> bytes:
    """Make the checksum of a state or of a manifest right again."""
    try:
        fields: Any = json.loads(content)
        if name.endswith("state.json"):
            fields.pop("checksum", None)
            text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
            fields["checksum"] = f"crc32c:{google_crc32c.value(text.encode('ascii')):08x}"
        elif name.endswith("x.zarr/zarr.json"):
            manifest = fields["attributes"]["dtopk"]
            manifest["checksum"] = checksum(manifest)
        else:
            return content
        return json.dumps(fields).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return content


def _repair(name: str, content: bytes) -> bytes:
    """Make the checksum of what dtopk writes right again: of JSON, of arrays, of chunks."""
    if name.endswith(".json"):
        return _repair_json(name, content)
    if name.endswith(".array") or re.search(r"/c/\d+", name):
        return content[:-4] + google_crc32c.value(content[:-4]).to_bytes(4, "little")
    return content


def list_readers() -> dict[str, Reader]:
    """List the readers by name."""
    readers = [
        Reader(name="svmlight", make_seeds=_svmlight_seeds, read=partial(_read_source, "x.svm")),
        Reader(
            name="svmlight_gz", make_seeds=_compressed_seeds, read=partial(_read_source, "x.svm.gz")
        ),
        Reader(name="csv", make_seeds=_csv_seeds, read=partial(_read_source, "x.csv")),
        Reader(
            name="npy", make_seeds=_npy_seeds, read=partial(_read_source, "x.npy", labels="y.npy")
        ),
        Reader(name="npz", make_seeds=_npz_seeds, read=partial(_read_source, "x.npz")),
        Reader(
            name="text",
            make_seeds=_text_seeds,
            read=partial(_read_source, "x.npy", labels="y.txt"),
            fixed=("x.npy",),
        ),
        Reader(name="parquet", make_seeds=_parquet_seeds, read=partial(_read_source, "x.parquet")),
        Reader(name="hdf5", make_seeds=_hdf5_seeds, read=partial(_read_source, "x.h5")),
        Reader(name="zarr", make_seeds=_zarr_seeds, read=partial(_read_source, "x.zarr")),
        Reader(name="store", make_seeds=_store_seeds, read=_read_store, repair=_repair),
        Reader(name="dual", make_seeds=_dual_seeds, read=_read_dual, repair=_repair),
        Reader(name="state", make_seeds=_state_seeds, read=_read_state, repair=_repair),
        Reader(name="model", make_seeds=_model_seeds, read=_read_model),
        Reader(name="map", make_seeds=_map_seeds, read=lambda folder: load_map(folder / "map.npz")),
        Reader(
            name="job",
            make_seeds=lambda: [{"job.toml": (_JOB + more).encode()} for more in ("", _USHER)],
            read=_read_job,
        ),
        Reader(
            name="sweep_job",
            make_seeds=lambda: [{"job.toml": (_JOB + _SWEEP).encode()}],
            read=_read_sweep,
        ),
        Reader(name="run", make_seeds=_run_seeds, read=_read_run, repair=_repair),
        Reader(name="sweep", make_seeds=_sweep_seeds, read=_read_sweep_folder),
        Reader(
            name="outbox",
            make_seeds=_outbox_seeds,
            read=lambda folder: read_kept(folder / "mlflow.jsonl"),
        ),
        Reader(name="label_cost", make_seeds=_cost_seeds, read=_read_job, fixed=("job.toml",)),
    ]
    return {reader.name: reader for reader in readers}


def draw(reader: Reader, files: Files, rng: random.Random) -> Files:
    """Change one file of an input, or leave it out.

    Parameters
    ----------
    reader : Reader
    files : mapping of str to bytes
    rng : random.Random
    """
    from tests.fuzz.mutations import mutate

    names = [name for name in files if name not in reader.fixed]
    # Metadata are few bytes, and most of what can go wrong.
    weights = [4 if name.endswith((".json", ".zarray", ".zgroup")) else 1 for name in names]
    name = rng.choices(names, weights)[0]
    if len(names) > 1 and rng.random() < 0.02:
        return {other: content for other, content in files.items() if other != name}
    changed = mutate(files[name], rng)
    if rng.random() < 0.85:
        changed = reader.repair(name, changed)
    return {**files, name: changed}
