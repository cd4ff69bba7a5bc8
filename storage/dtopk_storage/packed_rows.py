"""Rows that are mostly zeros, held in memory without them."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_NARROW_COLUMNS = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PackedRows:
    """A matrix as compressed sparse rows, or dense where that is smaller; made by `pack_rows`.

    Lossless to the bit: a zero of negative sign is kept as a value.
    """

    shape: tuple[int, int]
    """(rows, columns)."""
    values: NDArray[Any]
    """The values that are not zero, row after row; or all of them, of shape `shape`."""
    columns: NDArray[np.unsignedinteger[Any] | np.signedinteger[Any]] | None
    """Column of each value, uint16 or int32; None where the values are all there."""
    counts: NDArray[np.int32] | None
    """Values in each row; None where they are all there."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        parts = (self.values, self.columns, self.counts)
        return sum(part.nbytes for part in parts if part is not None)

    def take(self, rows: NDArray[np.int64]) -> "PackedRows":
        """Pick some rows.

        Parameters
        ----------
        rows : ndarray of shape (n_rows,), int64
            Their numbers, from 0.

        Returns
        -------
        PackedRows
        """
        shape = len(rows), self.shape[1]
        if self.columns is None or self.counts is None:
            return PackedRows(shape=shape, values=self.values[rows], columns=None, counts=None)
        counts = self.counts[rows]
        # A value's place is the start of its row, and how many of the row are before it.
        shifts = (np.cumsum(self.counts, dtype=np.int64) - self.counts)[rows]
        shifts -= np.cumsum(counts, dtype=np.int64) - counts
        places = np.arange(counts.sum()) + np.repeat(shifts, counts)
        return PackedRows(
            shape=shape, values=self.values[places], columns=self.columns[places], counts=counts
        )

    def unpack(self, out: NDArray[Any]) -> None:
        """Write the rows, zeros included.

        Parameters
        ----------
        out : ndarray of the same shape, float32 or float64, C-contiguous
            Overwritten.
        """
        if out.shape != self.shape or not out.flags.c_contiguous:
            raise ValueError(
                f"out must be C-contiguous and of shape {self.shape}, got shape {out.shape} and "
                f"strides {out.strides}."
            )
        if self.columns is None or self.counts is None:
            out[...] = self.values
            return
        out[...] = 0
        out.reshape(-1)[self.columns + _repeat_starts(self.counts, self.shape[1])] = self.values


def pack_rows(a: NDArray[Any], out_dtype: DTypeLike) -> PackedRows:
    """Pack a matrix, sparse where that takes less memory than dense.

    Parameters
    ----------
    a : ndarray of shape (rows, columns), float32 or float64
        Not kept, and not changed.
    out_dtype : float32 or float64
        Dtype of the values held. Values are rounded if it is narrower than that of `a`; what
        `unpack` gives equals ``a.astype(out_dtype)``.

    Returns
    -------
    PackedRows
    """
    dtype = np.dtype(out_dtype)
    a = np.ascontiguousarray(a)
    n_rows, n_columns = a.shape
    # The bits: -0.0 is a value of its own, and integers compare faster.
    not_zero = a.view(f"u{a.itemsize}") != 0
    column_dtype = np.dtype(np.uint16 if n_columns <= _NARROW_COLUMNS else np.int32)
    sparse_bytes = np.count_nonzero(not_zero) * (dtype.itemsize + column_dtype.itemsize)
    if sparse_bytes + 4 * n_rows >= a.size * dtype.itemsize:
        return PackedRows(
            shape=(n_rows, n_columns), values=a.astype(dtype), columns=None, counts=None
        )
    positions = np.flatnonzero(not_zero)
    # Ten times as fast as numpy's count_nonzero of each row.
    ends = np.searchsorted(positions, np.arange(n_rows + 1) * n_columns)
    counts = np.diff(ends).astype(np.int32)
    values = a.reshape(-1)[positions].astype(dtype, copy=False)
    columns = (positions - _repeat_starts(counts, n_columns)).astype(column_dtype)
    return PackedRows(shape=(n_rows, n_columns), values=values, columns=columns, counts=counts)


def _repeat_starts(counts: NDArray[np.int32], n_columns: int) -> NDArray[np.int64]:
    """Give for each value the position, in the flat matrix, at which its row starts."""
    return np.repeat(np.arange(len(counts), dtype=np.int64) * n_columns, counts)
