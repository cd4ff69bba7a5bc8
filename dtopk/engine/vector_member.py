"""A member that has *vectors* beside W: arrays of its shape, which have names.

The keepers of W's slices have the vectors' slices: they are multiplied, combined and turned into
the next weights there, as the one who leads the run says, which itself sees products alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dtopk.engine.member import Member
from dtopk.engine.messages import ExactNorms, SliceProducts, Wish
from dtopk.kernels.blas import gemm, gram
from dtopk.kernels.vectors import combine, multiply

Array = NDArray[Any]

WEIGHTS = "weights"
"""Name of the vector that is W itself."""
MOVE = "move"
"""Name of the vector that the last pass has made, before it has another name."""
METRIC = "metric"
"""Name of X'X."""
_EXACT = frozenset({"base", METRIC})
"""Vectors that are kept in float64: over the passes many others are added to them."""


class VectorMember(Member):
    """A member that has vectors beside W. See :class:`Member`."""

    def take_place(self, places: Any, peers: Any) -> None:
        """See :meth:`SliceKeeper.take_place`."""
        super().take_place(places, peers)
        self._vectors: dict[str, dict[int, Array]] = {}
        self._inverse: dict[int, Array] = {}

    def collect(self, name: str) -> None:
        """Add up what the partitions have summed in the last pass, as a vector.

        Parameters
        ----------
        name : str
        """
        for number in self._kept:
            pieces = self._collect_moves([number])[number]
            out = self._make_vector(name, number, pieces[0].shape[1])
            combine([1.0] * len(pieces), [piece.ravel() for piece in pieces], out.ravel())

    def _put(self, name: str, number: int, values: Array) -> None:
        self._vectors.setdefault(name, {})[number] = values.astype(self._dtype_of(name))

    def _dtype_of(self, name: str) -> np.dtype[Any]:
        return np.dtype(np.float64) if name in _EXACT else self.W.dtype

    def _make_vector(self, name: str, number: int, n_columns: int) -> Array:
        """Return a slice of a vector to write to: the one that is there, or a new one."""
        if name == WEIGHTS:
            return self._vector(name, number)
        slices = self._vectors.setdefault(name, {})
        if number not in slices:
            first, last = self.layout.slices[number]
            slices[number] = np.zeros((last - first, n_columns), self._dtype_of(name))
        return slices[number]

    def _vector(self, name: str, number: int) -> Array:
        if name == WEIGHTS:
            first, last = self.layout.slices[number]
            return self.W[first:last]
        found = self._vectors.get(name, {}).get(number)
        if found is None:
            first, last = self.layout.slices[number]
            found = np.zeros((last - first, self.W.shape[1]))
        return found

    def give(self, kind: str, *key: int) -> Array:
        """See :meth:`Member.give`; 'vector NAME' is the slice of a vector."""
        if kind.startswith("vector "):
            return self._vector(kind.removeprefix("vector "), key[0])
        return super().give(kind, *key)

    def _gather_vector(self, name: str, out: Array) -> None:
        """Collect all slices of a vector."""
        wishes = [
            Wish(member=keeper, kind=f"vector {name}", key=(number,))
            for number, keeper in enumerate(self.places.keepers)
        ]

        def take(place: int, values: Array) -> None:
            first, last = self.layout.slices[place]
            out[first:last] = values

        self._collect(wishes, take)

    def multiply_vectors(self, left: Sequence[str], right: Sequence[str]) -> list[SliceProducts]:
        """Take the products of vectors with vectors, in the slices kept here.

        Parameters
        ----------
        left, right : sequence of str

        Returns
        -------
        list of SliceProducts
            With a `gram` of shape (n_left, n_right), and no slopes.
        """
        products = []
        for number in self._kept:
            a, b = (
                [self._vector(name, number).ravel() for name in names] for names in (left, right)
            )
            products.append(SliceProducts(slice=number, gram=multiply(a, b), slopes=np.zeros(0)))
        return products

    def combine(self, name: str, terms: Mapping[str, float]) -> None:
        """Make a vector, or W, the sum of multiples of vectors.

        Parameters
        ----------
        name : str
        terms : mapping of str to float
        """
        for number in self._kept:
            vectors = [self._vector(other, number).ravel() for other in terms]
            out = self._make_vector(name, number, self.W.shape[1])
            combine(list(terms.values()), vectors, out.ravel())
        if name == WEIGHTS:
            self._stale = True

    def drop(self, names: Sequence[str]) -> None:
        """Forget vectors.

        Parameters
        ----------
        names : sequence of str
        """
        for name in names:
            self._vectors.pop(name, None)

    def keep_exact(self) -> list[ExactNorms]:
        """Sum the duals' weights that a certificate has made, and keep them as the base.

        Returns
        -------
        list of ExactNorms
        """
        norms = self.sum_exact()
        for number, exact in self._exact.items():
            self._put("base", number, exact)
        # Others may still ask for the moves: those of the next pass take their place.
        self._exact = {}
        return norms

    # The metric of the features.

    def sum_metric(self) -> None:
        """Sum C_i x_i x_i' over the rows of each partition."""
        width = self.conversion.width
        for partition in self._hosted:
            total, G = np.zeros((width, width)), np.zeros((width, width), self.W.dtype)
            for visit in self.feed.visit(self._owned[partition], update=False):
                weights = np.sqrt(self._costs(visit)).astype(self.W.dtype)
                for start in range(0, len(weights), 4096):
                    rows = np.arange(start, min(start + 4096, len(weights)))
                    X = np.empty((len(rows), width), self.W.dtype)
                    self.conversion.gather(visit.piece.X, rows, X)
                    with np.errstate(over="ignore", invalid="ignore"):  # It is looked at whole.
                        X *= weights[rows, None]
                    gram(np.ascontiguousarray(X.T), G)
                    total += G
                    self.pulse()
            self._moves[partition] = np.tril(total) + np.tril(total, -1).T

    def invert_metric(self, curvature: float) -> None:
        """Keep the rows of the inverse of I + curvature X'X that belong to the slices kept here.

        Parameters
        ----------
        curvature : float
        """
        width = self.conversion.width
        metric = np.empty((width, width))
        self._gather_vector(METRIC, metric)
        metric *= curvature
        metric[np.diag_indices(width)] += 1.0
        if not np.isfinite(metric).all():
            raise ValueError(
                "sums of products of the features must stay finite, but one has overflowed: "
                f"{self.options.explain_overflow()}"
            )
        self.pulse()
        factor = scipy.linalg.cho_factor(metric, lower=True, overwrite_a=True)
        for number in self._kept:
            first, last = self.layout.slices[number]
            unit = np.zeros((width, last - first))
            unit[np.arange(first, last), np.arange(last - first)] = 1.0
            inverse = scipy.linalg.cho_solve(factor, unit, overwrite_b=True)
            self._inverse[number] = np.ascontiguousarray(inverse.T).astype(self.W.dtype)
            self.pulse()

    def precondition(self, source: str, name: str) -> None:
        """Multiply a vector by the inverse of the metric.

        Parameters
        ----------
        source : str
        name : str
            Of what comes out.
        """
        whole = np.empty_like(self.W)
        self._gather_vector(source, whole)
        for number in self._kept:
            first, last = self.layout.slices[number]
            out = np.empty((last - first, self.W.shape[1]), self.W.dtype)
            gemm(self._inverse[number], whole, out)
            self._put(name, number, out)

    # On disk.

    def save(self, version: str) -> list[int]:
        """See :meth:`Member.save`; vectors too."""
        written = super().save(version)
        assert self.state is not None
        for name, slices in self._vectors.items():
            for number, values in slices.items():
                written.append(self.state.write_array(version, f"{name}/{number}", values))
        return written

    def _read_vectors(self, version: str, names: Sequence[str]) -> None:
        assert self.state is not None
        self._vectors = {
            name: {
                number: self.state.read_array(version, f"{name}/{number}") for number in self._kept
            }
            for name in names
        }
