"""The weights of a run as one member has them: all of W, and the slices that it keeps.

For each slice of W one member gets the changes of all partitions, and forms the slice anew. Sums
over partitions are taken in the partitions' order, whoever has them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.blocks import Layout
from dtopk.engine.messages import ExactNorms, Places, SliceNorms, SliceProducts, Wish
from dtopk.kernels.blas import gemm
from dtopk.solvers.acceleration import MovingCentre
from dtopk_storage import RunState

Array = NDArray[Any]


class Peers(Protocol):
    """The other members, as one of them sees them."""

    def fetch(self, wishes: Sequence[Wish], take: Callable[[int, Array], None]) -> None:
        """Get what :meth:`Member.give` of other members gives, from all of them at a time.

        Parameters
        ----------
        wishes : sequence of Wish
        take : callable
            Called in this thread with the place of a wish in the sequence and with what came,
            which it may keep, in the order in which they come.
        """


class NoPeers:
    """What a member that is alone has."""

    def fetch(self, wishes: Sequence[Wish], take: Callable[[int, Array], None]) -> None:
        """Fail if there is anything to ask for: there is nobody to ask."""
        assert not wishes, f"a member alone asked for {wishes[0]}"


class SliceKeeper:
    """All of W, and the slices of it that are formed here.

    Parameters
    ----------
    layout : Layout
    W : ndarray of shape (width, n_classes)
    """

    places: Places

    def __init__(self, layout: Layout, W: Array) -> None:
        self.layout = layout
        self.W = W
        self._alone = layout.n_partitions == 1

    def take_place(self, places: Places, peers: Peers) -> None:
        """Learn which partitions and slices are at this member, and who has the others."""
        self.places = places
        self._peers = peers
        self._hosted = [k for k, host in enumerate(places.hosts) if host == places.index]
        self._kept = [s for s, keeper in enumerate(places.keepers) if keeper == places.index]
        self._moves: dict[int, Array] = {}
        self._pieces: dict[int, list[Array]] = {}
        self._exact: dict[int, Array] = {}
        self._centres: dict[int, MovingCentre] = {}
        self._stale = False

    # What others have.

    def give(self, kind: str, *key: int) -> Array:
        """Return something that a peer needs.

        Parameters
        ----------
        kind : {'weights', 'move'}
        *key : int
            A slice; a partition and a slice.
        """
        first, last = self.layout.slices[key[-1]]
        if kind == "weights":
            return self.W[first:last]
        assert kind == "move"
        return self._moves[key[0]][first:last]

    def _collect(self, wishes: Sequence[Wish], take: Callable[[int, Array], None]) -> None:
        """Get what is here and what others have; theirs comes after, in any order."""
        theirs = []
        for place, wish in enumerate(wishes):
            if wish.member == self.places.index:
                take(place, self.give(wish.kind, *wish.key))
            else:
                theirs.append(place)
        self._peers.fetch(
            [wishes[place] for place in theirs], lambda place, came: take(theirs[place], came)
        )

    def gather(self) -> None:
        """Bring W up to date with the slices that others keep."""
        if not self._stale:
            return
        others = [
            (number, keeper)
            for number, keeper in enumerate(self.places.keepers)
            if keeper != self.places.index
        ]

        def take(place: int, weights: Array) -> None:
            first, last = self.layout.slices[others[place][0]]
            self.W[first:last] = weights

        self._peers.fetch(
            [Wish(member=keeper, kind="weights", key=(number,)) for number, keeper in others], take
        )
        self._stale = False

    # The end of a round.

    def multiply(self) -> list[SliceProducts]:
        """Collect the changes of the slices kept here, and take their products."""
        n_partitions = self.layout.n_partitions
        products = []
        self._pieces = self._collect_moves(self._kept)
        for number, pieces in self._pieces.items():
            first, last = self.layout.slices[number]
            flat = np.empty((n_partitions + 1, pieces[0].size))
            for row, piece in zip(flat, [*pieces, self.W[first:last]], strict=True):
                row[:] = piece.ravel()
            gram = np.empty((n_partitions + 1, n_partitions + 1))
            gemm(flat, flat.T, gram)
            products.append(SliceProducts(slice=number, gram=gram[:-1, :-1], slopes=gram[-1, :-1]))
        return products

    def _collect_moves(self, slices: Sequence[int]) -> dict[int, list[Array]]:
        """Collect the changes of slices by all partitions, in the partitions' order."""
        wishes = [
            Wish(member=host, kind="move", key=(partition, number))
            for number in slices
            for partition, host in enumerate(self.places.hosts)
        ]
        came: dict[int, Array] = {}
        self._collect(wishes, came.__setitem__)
        n_partitions = self.layout.n_partitions
        return {
            number: [came[n_partitions * place + k] for k in range(n_partitions)]
            for place, number in enumerate(slices)
        }

    def settle_slices(self, theta: Sequence[float]) -> list[SliceNorms]:
        """Go shares of the way of the partitions' changes of W, in the slices kept here.

        Parameters
        ----------
        theta : sequence of float
            Of each partition.

        Returns
        -------
        list of SliceNorms
        """
        for number, pieces in self._pieces.items():
            first, last = self.layout.slices[number]
            total = np.zeros(pieces[0].shape)
            for share, piece in zip(theta, pieces, strict=True):
                if share:
                    total += share * piece
            self.W[first:last] += total.astype(self.W.dtype)
        self._pieces, self._moves = {}, {}
        self._stale = True
        return [self._norms(number) for number in self._kept]

    def _norms(self, number: int) -> SliceNorms:
        first, last = self.layout.slices[number]
        W = self.W[first:last]
        centre = self._centres.get(number)
        dual_weights = W if centre is None else centre.dual_weights(W)
        return SliceNorms(
            slice=number,
            dual_weights=_squared_norm(dual_weights),
            distance=0.0 if centre is None else _squared_norm(W - dual_weights),
        )

    # The weights of the duals, summed anew.

    def sum_exact(self) -> list[ExactNorms]:
        """Sum the duals' weights that certificates have made, in the slices kept here."""
        norms = []
        for number in self._kept:
            first, last = self.layout.slices[number]
            exact = np.zeros((last - first, self.W.shape[1]))
            for piece in self._collect_moves([number])[number]:
                exact += piece
            self._exact[number] = exact
            weights = self.W[first:last].astype(np.float64)
            norms.append(
                ExactNorms(
                    slice=number,
                    weights=_squared_norm(weights),
                    dual_weights=_squared_norm(exact),
                )
            )
        return norms

    def begin_from_exact(self) -> None:
        """Set W to the weights of the duals."""
        for number, exact in self._exact.items():
            first, last = self.layout.slices[number]
            self.W[first:last] = exact
        self._exact, self._moves = {}, {}
        self._stale = True

    def take_off_drift(self) -> None:
        """Make W agree with the duals, whose weights the last certificate has summed anew.

        In float32, W drifts from them.
        """
        for number, exact in self._exact.items():
            first, last = self.layout.slices[number]
            W = self.W[first:last]
            if number in self._centres:
                self._centres[number].refresh(W, exact.astype(W.dtype))
            else:
                W[:] = exact
        self._exact, self._moves = {}, {}
        self._stale = True

    # The accelerated outer loop.

    def move_centre(self, ratio: float, advance: bool) -> None:
        """Start the accelerated outer loop, give it another ratio, or let its centre move.

        Parameters
        ----------
        ratio : float
        advance : bool
            Whether the centre moves to the weights.
        """
        for number in self._kept:
            first, last = self.layout.slices[number]
            W = self.W[first:last]
            centre = self._centres.get(number)
            if centre is None:
                self._centres[number] = MovingCentre(W, ratio)
            else:
                if centre.ratio != ratio:
                    centre.set_ratio(W, ratio)
                if advance:
                    centre.advance(W)
        self._stale = True

    # On disk.

    def save_slices(self, state: RunState, version: str) -> list[int]:
        """Write the slices kept here.

        Parameters
        ----------
        state : RunState
        version : str

        Returns
        -------
        list of int
            Bytes written.
        """
        written = []
        for number in self._kept:
            first, last = self.layout.slices[number]
            arrays = {"W": self.W[first:last]}
            centre = self._centres.get(number)
            if centre is not None:
                arrays["centre"] = centre.centre
            for name, values in arrays.items():
                written.append(state.write_array(version, f"{name}/{number}", values))
        return written

    def restore_slices(self, state: RunState, version: str, ratio: float) -> None:
        """Take over all of W, and the centres of the slices kept here.

        Parameters
        ----------
        state : RunState
        version : str
        ratio : float
            r of the accelerated outer loop.
        """
        for number, (first, last) in enumerate(self.layout.slices):
            self.W[first:last] = state.read_array(version, f"W/{number}")
        for number in self._kept if ratio > 1 else ():
            first, last = self.layout.slices[number]
            centre = MovingCentre(self.W[first:last], ratio)
            centre.centre = state.read_array(version, f"centre/{number}")
            self._centres[number] = centre
        self._stale = False


def _squared_norm(values: Array) -> float:
    """Return |values|^2, summed in float64."""
    return float(np.einsum("ij,ij->", values, values, dtype=np.float64))
