"""Readers of what dtopk writes: stores, duals, states, models and maps."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from dtopk.calibration import Calibration
from dtopk.cli.run_info import describe_model
from dtopk.lifting import draw_map, load_map
from dtopk.model import Model
from dtopk_storage import create_dual, create_store, open_dual, open_run_state, open_store
from dtopk_storage.errors import CheckpointError
from dtopk_storage.manifest import checksum
from tests.fuzz.reader import D, Files, M, N, Reader, collect, make_rows
from tests.small_stores import make_store


def _store_seeds() -> list[Files]:
    X, y = make_rows()
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


def make_states() -> list[Files]:
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


def make_models() -> list[Files]:
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


def repair(name: str, content: bytes) -> bytes:
    """Make the checksum of what dtopk writes right again: of JSON, of arrays, of chunks."""
    if name.endswith(".json"):
        return _repair_json(name, content)
    if name.endswith(".array") or re.search(r"/c/\d+", name):
        return content[:-4] + google_crc32c.value(content[:-4]).to_bytes(4, "little")
    return content


READERS = [
    Reader(name="store", make_seeds=_store_seeds, read=_read_store, repair=repair),
    Reader(name="dual", make_seeds=_dual_seeds, read=_read_dual, repair=repair),
    Reader(name="state", make_seeds=make_states, read=_read_state, repair=repair),
    Reader(name="model", make_seeds=make_models, read=_read_model),
    Reader(name="map", make_seeds=_map_seeds, read=lambda folder: load_map(folder / "map.npz")),
]
