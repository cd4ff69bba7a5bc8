"""How long an epoch will take: from the speed of this machine, and from what a plan moves."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike
from threadpoolctl import threadpool_limits

from dtopk.engine.benchmark import measure_pass
from dtopk.engine.plan import ClusterPlan
from dtopk.engine.sdca_run import PROBED_ROWS, PROBED_SHARE
from dtopk.kernels.blas import gemm
from dtopk.losses import Loss
from dtopk.solvers.sdca import default_block_size
from dtopk.testing import make_features

BANDWIDTH = 1e9
"""Bytes a second that a worker gets from others, where nothing is said: a fast network's."""
READ_RATE = 5e8
"""Bytes a second that a worker reads from its store, where nothing is said."""
CALL_SECONDS = 0.02
"""What it takes to call all members, and to hear from them."""

_MOST_WEIGHTS = 1 << 23
"""Numbers in the weights of a sample, at most: a block of rows takes a second on two cores."""
_PASS_SECONDS = 0.3
_MOST_ROWS = 8192
_PASSES = 3
_COPY_BYTES = 1 << 26
_CALLS_PER_ROUND, _CALLS_PER_EPOCH = 3, 3
"""Sweep, multiply and settle; own, probe, move the centre."""
_COPIES_PER_CHANGE = 4
"""Times that a change of W is read and written: as a copy of W, less W, scaled, and settled."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a process does what a run is made of."""

    gflops: float
    """1e9 operations a second in the two products with W that every row needs."""
    ratio: float
    """Seconds of a pass of blocked SDCA by those of the two products."""
    certificate_ratio: float
    """Seconds of a certificate by those of the two products."""
    copy_rate: float
    """Bytes of an array copied in a second."""
    n_features: int
    """Features of the rows that this was measured on."""
    n_classes: int
    """Their classes; fewer than asked where the weights would be too large."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How long the parts of a run take, in seconds."""

    sweep_seconds: float
    """Sweeps of an epoch, of the member with most rows."""
    read_seconds: float
    """Reading and writing on disk in an epoch, which goes on beside the sweeps."""
    join_seconds: float
    """Making and settling changes of W, in an epoch."""
    exchange_seconds: float
    """What members send each other in an epoch."""
    estimate_seconds: float
    """Estimating the gap on some rows, after an epoch."""
    call_seconds: float
    """Calling the members, in an epoch."""
    certificate_seconds: float
    """A certificate."""
    first_read_seconds: float
    """Reading the features for the first time, where they stay in memory."""

    @property
    def epoch_seconds(self) -> float:
        """An epoch, all together."""
        work = max(self.sweep_seconds, self.read_seconds)
        between = self.join_seconds + self.exchange_seconds + self.estimate_seconds
        return work + between + self.call_seconds


def measure_speed(
    loss: Loss,
    n_features: int,
    n_classes: int,
    *,
    dtype: DTypeLike = "float32",
    C: float = 1.0,
    block_size: int = 0,
    threads: int = 0,
) -> Speed:
    """Measure how fast this machine solves rows of a shape, on a sample that is made up.

    Parameters
    ----------
    loss : Loss
    n_features, n_classes : int
    dtype : dtype
        Of the computation.
    C : float
    block_size : int
        Rows solved together; 0: from the number of classes.
    threads : int
        Of the matrix products; 0: all.

    Returns
    -------
    Speed
    """
    m = max(min(n_classes, _MOST_WEIGHTS // n_features), min(n_classes, 64))
    d = max(min(n_features, _MOST_WEIGHTS // m), 1)
    size = block_size or default_block_size(n_features, n_classes)
    with threadpool_limits(threads or None, user_api="blas"):
        n_rows = _choose_rows(d, m, size, np.dtype(dtype))
        copy_rate = _measure_copies()
    X, labels = make_features(n_rows, d, m, seed=0)
    times = measure_pass(
        loss, X.astype(dtype), labels, m, C=C, block_size=size, threads=threads, passes=_PASSES
    )
    return Speed(
        gflops=4e-9 * n_rows * d * m / times.limit_seconds,
        ratio=times.ratio,
        certificate_ratio=times.certificate_seconds / times.limit_seconds,
        copy_rate=copy_rate,
        n_features=d,
        n_classes=m,
    )


def _choose_rows(d: int, m: int, block_size: int, dtype: np.dtype[np.generic]) -> int:
    """Choose rows whose two products take about `_PASS_SECONDS`."""
    X, W = np.ones((block_size, d), dtype), np.ones((d, m), dtype)
    S = np.empty((block_size, m), dtype)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        gemm(X, W, S)
        seconds.append(time.perf_counter() - began)
    blocks = int(_PASS_SECONDS / (2 * max(min(seconds), 1e-7)))
    return block_size * min(max(blocks, 1), max(_MOST_ROWS // block_size, 1))


def _measure_copies() -> float:
    source, target = np.ones(_COPY_BYTES, np.uint8), np.empty(_COPY_BYTES, np.uint8)
    target[:] = source
    began = time.perf_counter()
    target[:] = source
    return _COPY_BYTES / (time.perf_counter() - began)


def forecast(
    plan: ClusterPlan,
    speed: Speed,
    *,
    bandwidth: float = BANDWIDTH,
    read_rate: float = READ_RATE,
) -> Forecast:
    """Forecast the seconds of an epoch and of a certificate.

    Parameters
    ----------
    plan : ClusterPlan
    speed : Speed
        Of a member.
    bandwidth : float
        Bytes a second that a member gets from others.
    read_rate : float
        Bytes a second that a member reads from, or writes to, its disk or object store.

    Returns
    -------
    Forecast
    """
    sizes, traffic, layout = plan.sizes, plan.traffic, plan.layout
    products = 4e-9 * plan.member_rows * sizes.width * sizes.n_classes / speed.gflops
    stored = traffic.epoch_read + traffic.duals_streamed
    certificate = products * speed.certificate_ratio
    certificate_read = traffic.certificate_read / read_rate
    alone = layout.n_partitions == 1
    calls = layout.n_rounds * _CALLS_PER_ROUND + _CALLS_PER_EPOCH
    return Forecast(
        sweep_seconds=products * speed.ratio,
        read_seconds=stored / read_rate,
        join_seconds=0.0 if alone else layout.n_rounds * _joined_bytes(plan) / speed.copy_rate,
        exchange_seconds=traffic.epoch / bandwidth,
        estimate_seconds=products * _probed_share(plan),
        call_seconds=0.0 if plan.n_members == 1 else CALL_SECONDS * calls,
        certificate_seconds=max(certificate, certificate_read) + traffic.certificate / bandwidth,
        first_read_seconds=traffic.first_read / read_rate,
    )


def _probed_share(plan: ClusterPlan) -> float:
    """Return the share of the rows whose gap is estimated.

    A row's scores are one product, and its loss and duals take about as long as another.
    """
    if plan.sizes.needs.passes:
        return 0.0
    n_samples = plan.sizes.n_samples
    return min(max(PROBED_ROWS / n_samples, PROBED_SHARE), 1.0)


def _joined_bytes(plan: ClusterPlan) -> int:
    """Count the bytes copied in a round, of a member's own changes and of what it collects."""
    own = plan.partitions_hosted * plan.sizes.weights_bytes
    collected = plan.layout.n_partitions * plan.kept_rows * plan.sizes.n_classes * 8
    return _COPIES_PER_CHANGE * (own + collected)
