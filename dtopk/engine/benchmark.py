"""Measure a pass against the matrix products that no pass can do without."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from dtopk.engine.memory import free_memory
from dtopk.engine.rows import StoreRows
from dtopk.kernels.blas import gemm
from dtopk.losses import Labels, LabelSets, Loss
from dtopk.solvers.certificate import CertificateSums, choose_masks
from dtopk.solvers.sdca import BlockUpdater, RowConversion, Timings, default_block_size
from dtopk_storage import create_store, open_store

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Seconds of one pass over all rows, its parts, and what it is measured against.

    They are those of the pass whose ratio is the median.
    """

    loss: Loss
    """The loss."""
    block_size: int
    """Rows solved together."""
    limit_seconds: float
    """The two products with W that every row needs, over all rows."""
    epoch_seconds: float
    """A pass of blocked SDCA, rows in memory in the precision of the computation."""
    ratio: float
    """The pass by the limit, which was measured just before it."""
    certificate_seconds: float
    """Primal and dual value of all rows, in float64."""
    parts: Timings
    """The parts of the pass."""


def blas_description() -> str:
    """Name the BLAS that computes the products, its kernel and its threads."""
    for pool in threadpool_info():
        if pool["user_api"] == "blas" and "scipy.libs" in pool["filepath"]:
            return (
                f"{pool['internal_api']} {pool['version']}, kernel {pool['architecture']}, "
                f"{pool['num_threads']} threads"
            )
    return "unknown"


def check_memory(n: int, d: int, m: int, dtype: np.dtype[Any]) -> None:
    """Refuse sizes that memory does not hold, before anything is made.

    Parameters
    ----------
    n, d, m : int
        Rows, features and classes.
    dtype : dtype
        Of the computation.

    Raises
    ------
    ValueError
        With the bytes.
    """
    # Features as made and converted; duals, scores and their copies; weights.
    needed = (2 * n * d + 2 * n * m + 4 * d * m) * dtype.itemsize
    free = free_memory()
    if needed > free:
        raise ValueError(
            f"rows, features and classes must fit into the {free:,} bytes of memory that are free, "
            f"got {n:,} x {d:,} x {m:,}, which take {needed:,}."
        )


def measure_read(X: Array, labels: NDArray[np.int32], n_classes: int) -> float:
    """Return the seconds to read X once from a float16 store that is in the page cache.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    labels : ndarray of shape (n,), int32
    n_classes : int
    """
    with tempfile.TemporaryDirectory(prefix="dtopk-bench-") as folder:
        names = [str(code) for code in range(n_classes)]
        path = Path(folder) / "bench.zarr"
        with create_store(
            path, n_features=X.shape[1], class_names=names, dtype="float16"
        ) as writer:
            writer.append(X, labels)
        rows = StoreRows(open_store(path), "train")
        for _ in range(2):
            began = time.perf_counter()
            for piece in rows.pieces:
                rows.read(piece)
            seconds = time.perf_counter() - began
    return seconds


def measure_pass(
    loss: Loss,
    X: Array,
    labels: NDArray[np.int32],
    n_classes: int,
    *,
    C: float = 1.0,
    block_size: int = 0,
    threads: int = 0,
    passes: int = 5,
) -> PassTimes:
    """Time passes of blocked SDCA, each beside the limit.

    Parameters
    ----------
    loss : Loss
    X : ndarray of shape (n, d), float32 or float64
    labels : ndarray of shape (n,), int32
        For a loss of sets of labels, the only one of each set.
    n_classes : int
    C : float
    block_size : int
        0: the default for the number of classes.
    threads : int
        0: all.
    passes : int
        Passes to time, the first one from duals of zero.

    Returns
    -------
    PassTimes

    Raises
    ------
    ValueError
        If the loss has no update.
    """
    if not loss.has_update:
        raise ValueError(f"loss {loss.name!r} has no exact update of a row that could be timed.")
    n, d = X.shape
    size = min(block_size or default_block_size(d, n_classes), n)
    conversion = RowConversion(n_features=d, dtype=X.dtype)
    updater = BlockUpdater(loss, conversion, n_classes, size)
    W, dual = np.zeros((d, n_classes), X.dtype), np.zeros((n, n_classes), X.dtype)
    costs = np.full(n, C, X.dtype)
    given: Labels = labels
    if "multiclass" not in loss.targets:
        given = LabelSets.from_labels(labels)
    if loss.n_masked:
        # A pass is one over a convex problem: with what the loss leaves out at weights of zero.
        given = choose_masks(loss, conversion, W, X, labels)
    limits, epochs, parts = [], [], []
    with threadpool_limits(threads or None, user_api="blas"):
        _warm_up(loss, X, given, n_classes)
        for number in range(passes):
            limits.append(_time_limit(X, n_classes))
            updater.timings = Timings()
            began = time.perf_counter()
            order = np.random.default_rng(number).permutation(n)
            for start in range(0, n, size):
                updater.update(X, given, costs, dual, order[start : start + size], W, 1.0)
            epochs.append(time.perf_counter() - began)
            parts.append(updater.timings)
        began = time.perf_counter()
        CertificateSums(loss, conversion, W).add(X, given, costs, dual)
        certificate_seconds = time.perf_counter() - began
    ratios = [epoch / limit for epoch, limit in zip(epochs, limits, strict=True)]
    middle = sorted(range(passes), key=ratios.__getitem__)[passes // 2]
    return PassTimes(
        loss=loss,
        block_size=size,
        limit_seconds=limits[middle],
        epoch_seconds=epochs[middle],
        ratio=ratios[middle],
        certificate_seconds=certificate_seconds,
        parts=parts[middle],
    )


def _warm_up(loss: Loss, X: Array, labels: Labels, n_classes: int) -> None:
    """Compile the kernels, on a row."""
    X, labels = X[:1], labels[:1]
    conversion = RowConversion(n_features=X.shape[1], dtype=X.dtype)
    W, dual = np.zeros((X.shape[1], n_classes), X.dtype), np.zeros((1, n_classes), X.dtype)
    BlockUpdater(loss, conversion, n_classes, 1).compile(X, labels, W)
    CertificateSums(loss, conversion, W).add(X, labels, np.ones(1, X.dtype), dual)


def _time_limit(X: Array, n_classes: int) -> float:
    """Time S = X W and W += X' S for all rows at once."""
    W, S = np.zeros((X.shape[1], n_classes), X.dtype), np.zeros((len(X), n_classes), X.dtype)
    # Touch the pages first: their first use is no part of the products.
    W += 0
    S += 0
    began = time.perf_counter()
    gemm(X, W, S)
    gemm(X.T, S, W, beta=1.0)
    return time.perf_counter() - began
