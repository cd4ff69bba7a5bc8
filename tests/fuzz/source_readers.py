"""Readers of what an ingest takes."""

import io
import tempfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from dtopk_storage.errors import DatasetError
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.ingest.label_reading import read_labels
from dtopk_storage.manifest import check_class_names
from dtopk_storage.sources.base import SourceOptions
from dtopk_storage.sources.formats import open_source
from dtopk_storage.values import as_feature_dtype, convert_features
from tests.fuzz.reader import D, Files, M, Reader, collect, make_rows, save_to_bytes


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
    X, y = make_rows()
    lines = [f"{','.join(map(str, row))},{'abc'[label]}" for row, label in zip(X, y, strict=True)]
    return [{"x.csv": ("f0,f1,f2,label\n" + "\n".join(lines) + "\n").encode()}]


def _svmlight_seeds() -> list[Files]:
    X, y = make_rows()
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
    X, y = make_rows()
    y_file = save_to_bytes(np.save, y)
    arrays = (X, np.asfortranarray(X.astype(np.float64)), X.astype(np.float16))
    return [{"x.npy": save_to_bytes(np.save, values), "y.npy": y_file} for values in arrays]


def _npz_seeds() -> list[Files]:
    X, y = make_rows()
    return [
        {"x.npz": save_to_bytes(np.savez, X=X, y=y)},
        {"x.npz": save_to_bytes(np.savez_compressed, X=np.asfortranarray(X), y=np.eye(M)[y])},
    ]


def _text_seeds() -> list[Files]:
    X, y = make_rows()
    return [
        {"x.npy": save_to_bytes(np.save, X), "y.txt": "".join(f"{each}\n" for each in y).encode()}
    ]


def _parquet_seeds() -> list[Files]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, y = make_rows()
    columns = {**{f"f{at}": X[:, at] for at in range(D)}, "label": y}
    lists = {"X": X.tolist(), "label": [[int(each)] for each in y]}
    return [
        {
            "x.parquet": save_to_bytes(
                lambda file, table: pq.write_table(table, file), pa.table(table)
            )
        }
        for table in (columns, lists)
    ]


def _hdf5_seeds() -> list[Files]:
    import h5py

    X, y = make_rows()
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

    X, y = make_rows()
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


READERS = [
    Reader(name="svmlight", make_seeds=_svmlight_seeds, read=partial(_read_source, "x.svm")),
    Reader(
        name="svmlight_gz", make_seeds=_compressed_seeds, read=partial(_read_source, "x.svm.gz")
    ),
    Reader(name="csv", make_seeds=_csv_seeds, read=partial(_read_source, "x.csv")),
    Reader(name="npy", make_seeds=_npy_seeds, read=partial(_read_source, "x.npy", labels="y.npy")),
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
]
