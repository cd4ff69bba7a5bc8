"""The sum of X' A over many rows, by matrix products or, where A is mostly zero, by its entries."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import sparse as kernels
from dtopk.kernels.blas import gemm

Array = NDArray[Any]

_BATCH_ROWS = 4096
"""Rows that are multiplied with W together: more of them gain nothing."""
_LEAST_ROWS = 256
_BATCH_BYTES = 128 << 20
"""Bytes that a batch may take, where the least rows do."""
BATCH_ARRAYS = 4
"""Arrays of a batch with a column a class, at most."""
_FLUSH_ROWS = 4096
"""Rows that are summed in the precision of the computation before the sum goes to float64: the
longer a sum in float32, the fewer of its digits are right."""
_TILE = 256
"""Features of which the sums of all classes lie together."""
_SPARSE = 12
"""Products with single entries are faster than a matrix product where fewer than one in so many
is not zero."""


def choose_batch_rows(width: int, n_classes: int, itemsize: int) -> int:
    """Choose how many rows are worked on together.

    Parameters
    ----------
    width : int
        Columns of X.
    n_classes : int
    itemsize : int
        Bytes of a number.
    """
    rows = _BATCH_BYTES // (itemsize * (width + BATCH_ARRAYS * n_classes))
    return min(max(rows, _LEAST_ROWS), _BATCH_ROWS)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of which few entries are not zero, in the form of a CSR matrix."""

    indptr: NDArray[np.int64]
    """Where each row's entries begin, and where the last end, of shape (n_rows + 1,)."""
    indices: NDArray[np.int32]
    """The columns of the entries."""
    values: Array
    """The entries."""

    @classmethod
    def from_dense(cls, rows: Array) -> "SparseRows":
        """Find the entries that are not zero.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_columns), float32 or float64
        """
        found = cls.find(rows, int(np.count_nonzero(rows)))
        assert found is not None
        return found

    @classmethod
    def find(cls, rows: Array, most: int) -> "SparseRows | None":
        """Find the entries that are not zero, as long as there are at most so many.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_columns), float32 or float64
        most : int
        """
        indptr = np.empty(len(rows) + 1, np.int64)
        indices = np.empty(most + rows.shape[1], np.int32)
        values = np.empty(len(indices), rows.dtype)
        count = kernels.take_nonzeros(rows, indptr, indices, values)
        if count < 0:
            return None
        if count == most:
            return cls(indptr, indices[:count], values[:count])
        return cls(indptr, indices[:count].copy(), values[:count].copy())

    @classmethod
    def concatenate(cls, parts: "list[SparseRows]") -> "SparseRows":
        """Put rows one after another.

        Parameters
        ----------
        parts : list of SparseRows, not empty
        """
        ends = np.cumsum([0] + [len(part.values) for part in parts])
        starts = [part.indptr[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return cls(
            np.concatenate([*starts, ends[-1:]]),
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    def __getitem__(self, rows: slice) -> "SparseRows":
        """Return some rows, which share their entries."""
        first, last, _ = rows.indices(len(self.indptr) - 1)
        indptr = self.indptr[first : last + 1]
        part = slice(indptr[0], indptr[-1])
        return SparseRows(indptr - indptr[0], self.indices[part], self.values[part])

    def add_to(self, out: Array, factor: float) -> None:
        """Add a multiple of the rows to those of out (n_rows, n_columns)."""
        kind = out.dtype.type
        kernels.add_sparse_rows(self.indptr, self.indices, self.values, kind(factor), out)

    def dot(self, rows: Array) -> float:
        """Return the sum of the products with rows (n_rows, n_columns), in float64."""
        product: float = kernels.dot_sparse_rows(self.indptr, self.indices, self.values, rows)
        return product


class DirectionSum:
    """Collect X' A in float64, some rows at a time.

    Parameters
    ----------
    width : int
        Columns of X.
    n_classes : int
        Columns of A.
    dtype : dtype
        Of both.
    """

    def __init__(self, width: int, n_classes: int, dtype: np.dtype[Any]) -> None:
        self._total = np.empty((width, n_classes))
        self._is_zero = True
        self._dtype = dtype
        self._dense: Array | None = None
        self._sparse: Array | None = None
        self._rows = 0

    def restart(self) -> None:
        """Begin at zero again, in the same memory: what `total` has returned is lost."""
        self._flush()
        self._is_zero = True

    def add(self, X: Array, A: Array) -> SparseRows | None:
        """Add rows.

        Parameters
        ----------
        X : ndarray of shape (n_rows, width)
        A : ndarray of shape (n_rows, n_classes)

        Returns
        -------
        SparseRows or None
            A, where it has few entries that are not zero.
        """
        found = SparseRows.find(A, A.size // _SPARSE)
        if found is not None:
            if self._sparse is None:
                width, n_classes = self._total.shape
                self._sparse = np.zeros((-(-width // _TILE), n_classes, _TILE), self._dtype)
            kernels.add_outer_products(X, found.indptr, found.indices, found.values, self._sparse)
        else:
            if self._dense is None:
                self._dense = np.zeros(self._total.shape, self._dtype)
            gemm(X.T, A, self._dense, beta=1.0)
        self._rows += len(X)
        if self._rows >= _FLUSH_ROWS:
            self._flush()
        return found

    def _flush(self) -> None:
        if self._rows == 0:
            return
        self._rows = 0
        if self._dense is not None:
            np.add(0 if self._is_zero else self._total, self._dense, out=self._total)
            self._is_zero = False
            self._dense[:] = 0
        if self._sparse is not None:
            kernels.add_tiles(self._sparse, not self._is_zero, self._total)
            self._is_zero = False
            self._sparse[:] = 0

    def total(self) -> NDArray[np.float64]:
        """Return the sum, of shape (width, n_classes), float64: the memory that is summed in."""
        self._flush()
        if self._is_zero:
            self._total[:] = 0
            self._is_zero = False
        return self._total
