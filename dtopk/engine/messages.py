"""What the members of a run, and who leads it, tell each other: small, and sent whole."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a member asks another for."""

    member: int
    """The other one."""
    kind: str
    """As of :meth:`Member.give`."""
    key: tuple[int, ...]
    """The same."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Who does what."""

    index: int
    """The number of this member."""
    hosts: tuple[int, ...]
    """The member that each partition is at."""
    keepers: tuple[int, ...]
    """The member that sums each slice of W."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a sweep is told."""

    epoch: int
    """Counted from 1."""
    version: str
    """What the epoch writes is written under it."""
    sigma: float
    """sigma': by how much a partition overstates its own changes of W."""
    ratio: float
    """r of the accelerated outer loop; 1: plain."""
    seconds_left: float
    """Time after which the sweep ends, wherever it is."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What one partition's sweep came to."""

    partition: int
    """Its number."""
    member: int
    """The member that it is at."""
    blocks: tuple[int, ...]
    """The blocks visited."""
    duals: tuple[float, ...]
    """sum_i D_i of each block, at the candidate duals."""
    n_rows: int
    """Rows visited; fewer than the blocks have where the sweep was cut short."""
    seconds: float
    """Time it took."""
    read_seconds: float
    """Seconds of it spent waiting for rows and duals."""


@dataclass(frozen=True, kw_only=True)
class SliceProducts:
    """Products of the changes of one slice of W."""

    slice: int
    """Its number."""
    gram: Float64
    """<dW_k, dW_l>, of shape (K, K)."""
    slopes: Float64
    """<W, dW_k>, of shape (K,)."""


@dataclass(frozen=True, kw_only=True)
class SliceNorms:
    """Squared norms of one slice, by what is known of X'A without reading X."""

    slice: int
    """Its number."""
    dual_weights: float
    """|X'A|^2."""
    distance: float
    """|W - X'A|^2."""


@dataclass(frozen=True, kw_only=True)
class ExactNorms:
    """Squared norms of one slice, X'A summed anew."""

    slice: int
    """Its number."""
    weights: float
    """|W|^2."""
    dual_weights: float
    """|X'A|^2."""


@dataclass(frozen=True, kw_only=True)
class PartitionSums:
    """Sums over the rows of one partition."""

    partition: int
    """Its number."""
    blocks: tuple[int, ...]
    """Its blocks."""
    losses: tuple[float, ...]
    """sum_i C_i L_i at W, of each of them."""
    duals: tuple[float, ...]
    """sum_i D_i of each of them."""
    linear: float = 0.0
    """sum_i D_i of all of them without the smoothing's square, of losses that have one."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The duality gap of some rows of one partition."""

    partition: int
    """Its number."""
    gap: float
    """sum_i C_i L_i - D_i + <a_i, W'x_i>, which are none below 0, scaled up to all its rows."""


@dataclass(frozen=True, kw_only=True)
class Fold:
    """A change of the base, one of the atoms that duals are a mixture of."""

    shares: dict[int, float]
    """Of what the base is a mixture from now on, by atom."""
    dropped: tuple[int, ...]
    """Atoms that are forgotten."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a pass over all rows is told."""

    version: str
    """What the pass writes is written under it."""
    seconds_left: float
    """Time after which the pass ends, wherever it is."""
    kind: Literal["gradients", "vertices"]
    """What a row's scores give: minus C times the loss's gradient, or the vertex of the dual's
    domain that the dual's gradient points to."""
    begins: bool = False
    """Whether gradients are those of the convex loss with which one that is not convex begins."""
    atom: int = 0
    """The name of what the pass finds, where rows keep it."""
    mixture: dict[int, float] = field(default_factory=dict)
    """Of what the duals are a mixture, by atom; of a loss without smoothing it is not asked for."""
    atoms: tuple[int, ...] = ()
    """The atoms, but for the base, whose products with the new one are wanted."""
    folds: tuple[Fold, ...] = ()
    """Changes of the base since the last pass."""


@dataclass(kw_only=True)
class PassSums:
    """What one partition's rows come to in a pass."""

    partition: int
    """Its number."""
    member: int
    """The member that it is at."""
    losses: float = 0.0
    """sum_i C_i L_i at W; not where vertices of a loss without smoothing tell it."""
    linear: float = 0.0
    """sum_i D_i at the new rows a_i, without the smoothing's square where they are vertices."""
    products: dict[str, float] = field(default_factory=dict)
    """The smoothing's products of the new rows with themselves ('new') and with atoms, by name."""
    nonzeros: int = 0
    """Entries of the new rows that are kept, and not zero."""
    n_rows: int = 0
    """Rows visited; fewer than there are where the pass was cut short."""
    seconds: float = 0.0
    """Time it took."""
    read_seconds: float = 0.0
    """Seconds of it spent waiting for rows and duals."""

    def add_product(self, name: str, value: float) -> None:
        """Add to a product."""
        self.products[name] = self.products.get(name, 0.0) + value
