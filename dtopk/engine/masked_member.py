"""A member of a run whose loss leaves classes out, which are fixed from one stage to the next.

The masks of a row are those that its loss has at the *mask weights*, the weights at the start of
the stage. Every member has all of those, so that whichever has a block can find its masks again:
they are kept for the blocks that are here, and neither sent nor written.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.duals import Duals
from dtopk.engine.feed import Feed, Visit
from dtopk.engine.member import Member
from dtopk.engine.messages import PartitionSums
from dtopk.engine.options import StartPoint
from dtopk.engine.rows import Piece, PieceRange, Rows
from dtopk.losses import Labels, Loss, MaskedLabels
from dtopk.solvers.certificate import CertificateSums, choose_masks, mask_labels
from dtopk.solvers.sdca import RowConversion

Array = NDArray[Any]

_MASKED_ROWS = 4096
"""Rows whose duals are put onto their masks together."""


class MaskedFeed(Feed):
    """A feed whose rows have their masks, once there are mask weights. See :class:`Feed`.

    Parameters
    ----------
    rows : Rows
    blocks : sequence of PieceRange
    duals : Duals
    keep_features : bool
    loss : Loss
    conversion : RowConversion
    """

    def __init__(
        self,
        rows: Rows,
        blocks: Sequence[PieceRange],
        duals: Duals,
        *,
        keep_features: bool,
        loss: Loss,
        conversion: RowConversion,
    ) -> None:
        super().__init__(rows, blocks, duals, keep_features=keep_features)
        self._loss = loss
        self._conversion = conversion
        self.fix_masks(None, {})

    def fix_masks(self, weights: Array | None, masks: dict[int, Labels]) -> None:
        """Have other mask weights from here on.

        Parameters
        ----------
        weights : ndarray of shape (width, n_classes), or None
            Not to be changed; None: rows have no masks.
        masks : dict of int to MaskedLabels
            The masks of some blocks, where they are known.
        """
        self.mask_weights = weights
        self._masks = masks

    def drop(self, blocks: Any) -> None:
        """See :meth:`Feed.drop`; their masks too."""
        super().drop(blocks)
        for block in self._elsewhere:
            self._masks.pop(block, None)

    def read(self, block: int) -> Piece:
        """See :meth:`Feed.read`; with masks."""
        piece = super().read(block)
        if self.mask_weights is None:
            return piece
        if block not in self._masks:
            self._masks[block] = choose_masks(
                self._loss, self._conversion, self.mask_weights, piece.X, piece.labels
            )
        return replace(piece, labels=self._masks[block])


class MaskedMember(Member):
    """One process's part in a run of a loss that leaves classes out. See :class:`Member`."""

    feed: MaskedFeed

    def _make_feed(self, keep_features: bool) -> Feed:
        return MaskedFeed(
            self.rows, self.layout.blocks, self.duals, keep_features=keep_features,
            loss=self.loss, conversion=self.conversion,
        )  # fmt: skip

    def take_place(self, places: Any, peers: Any) -> None:
        """See :meth:`Member.take_place`; the convex loss is solved, which comes first."""
        super().take_place(places, peers)
        self._start_weights: Array | None = None
        self._next_masks: dict[int, Labels] = {}
        self._fix_masks(None, {})

    def _fix_masks(self, weights: Array | None, masks: dict[int, Labels]) -> None:
        self.feed.fix_masks(weights, masks)
        self.solved = self.loss.convex_start if weights is None else self.loss
        self.updater.loss = self.solved

    def compile(self) -> None:
        """See :meth:`Member.compile`; both losses."""
        super().compile()
        start = self.loss.convex_start
        self._compile(start, start, np.zeros(1, np.int32))

    def example_labels(self) -> Labels:
        """See :meth:`Member.example_labels`."""
        scores = np.zeros((1, self.rows.n_classes))
        return mask_labels(self.loss, scores, np.zeros(1, np.int32))

    # Certificates and what follows them.

    def sum_certificate(self) -> list[PartitionSums]:
        """See :meth:`Member.sum_certificate`; the masks are those of W, and are kept."""
        self.gather()
        self._next_masks = {}

        def add(visit: Visit, parts: CertificateSums) -> None:
            labels = visit.piece.labels
            codes = labels.labels if isinstance(labels, MaskedLabels) else labels
            self._next_masks[visit.block] = parts.add(
                visit.piece.X, codes, self._costs(visit), visit.dual
            )

        return [self._sum_partition(k, self.W, add, update=False) for k in self._hosted]

    def choose_masks(self) -> None:
        """Fix the masks that the last certificate has found, and put the duals onto them."""
        self._fix_masks(self.W.copy(), self._next_masks)
        self._next_masks = {}
        for partition in self._hosted:
            for visit in self.feed.visit(self._owned[partition], update=True):
                labels, costs = visit.piece.labels, self._costs(visit)
                for first in range(0, len(costs), _MASKED_ROWS):
                    part = slice(first, first + _MASKED_ROWS)
                    a = visit.dual[part].astype(np.float64)
                    self.loss.make_feasible(a, labels[part], costs[part])
                    visit.dual[part] = a
                self.pulse()
        self.duals.settle(dict.fromkeys(range(len(self.layout.blocks)), 1.0))

    def swap_weights(self) -> None:
        """Have W and the mask weights change places."""
        assert self.feed.mask_weights is not None
        self.W, self.feed.mask_weights = self.feed.mask_weights, self.W

    # Starting and going on.

    def start(self, start: StartPoint) -> list[PartitionSums]:
        """See :meth:`Member.start`; duals are put onto the domain that all masks leave."""
        sums = super().start(start)
        if start.W is not None:
            self._start_weights = np.zeros_like(self.W)
            self._start_weights[: len(start.W)] = start.W
        return sums

    def begin_from_exact(self) -> None:
        """See :meth:`Member.begin_from_exact`; weights that were given are what W begins at."""
        super().begin_from_exact()
        if self._start_weights is not None:
            self.W[:] = self._start_weights
            self._start_weights, self._stale = None, False

    def save(self, version: str) -> list[int]:
        """See :meth:`Member.save`; the mask weights too."""
        written = super().save(version)
        weights = self.feed.mask_weights
        if weights is None:
            return written
        assert self.state is not None
        for number in self._kept:
            first, last = self.layout.slices[number]
            values = weights[first:last]
            written.append(self.state.write_array(version, f"mask-weights/{number}", values))
        return written

    def restore_masks(self, version: str) -> None:
        """Take over the mask weights of a version of the state.

        Parameters
        ----------
        version : str
        """
        assert self.state is not None
        weights = np.empty_like(self.W)
        for number, (first, last) in enumerate(self.layout.slices):
            weights[first:last] = self.state.read_array(version, f"mask-weights/{number}")
        self._fix_masks(weights, {})
