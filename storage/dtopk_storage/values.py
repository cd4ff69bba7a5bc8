"""Checks and conversions of blocks of features."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError

DTYPES = ("float16", "float32", "float64")

# All exponent bits set is infinity or NaN.
_BITS: dict[int, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    2: (np.uint16, 0x7FFF, 0x7C00),
    4: (np.uint32, 0x7FFFFFFF, 0x7F800000),
    8: (np.uint64, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
}
_CACHE_BYTES = 1 << 18


def as_feature_dtype(dtype: object) -> np.dtype[Any]:
    """Turn a name or dtype into one that features may have at rest.

    Parameters
    ----------
    dtype : str or dtype

    Returns
    -------
    dtype
        float16, float32 or float64, little-endian.

    Raises
    ------
    ValueError
        It is another one. bfloat16 has no numpy dtype and is refused like the others.
    """
    try:
        name = np.dtype(dtype).name  # type: ignore[call-overload]
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype must be float16, float32 or float64, got {name!r}.")
    stored: np.dtype[Any] = np.dtype(name).newbyteorder("<")
    return stored


def first_nonfinite(X: NDArray[Any]) -> tuple[int, int] | None:
    """Find the first NaN or infinity.

    Looks at the exponent bits as integers: numpy's isfinite on float16 is ten times slower.

    Parameters
    ----------
    X : ndarray of shape (rows, n_features), float16, float32 or float64, C-contiguous

    Returns
    -------
    tuple of (row, column), or None when all are finite
    """
    unsigned, magnitude, limit = _BITS[X.dtype.itemsize]
    rows = max(1, _CACHE_BYTES // max(1, X.shape[1] * X.dtype.itemsize))
    for start in range(0, len(X), rows):
        bits = X[start : start + rows].view(unsigned) & unsigned(magnitude)
        if bits.size and bits.max() >= limit:
            row, column = np.argwhere(bits >= limit)[0]
            return start + int(row), int(column)
    return None


def convert_features(
    X: NDArray[Any], dtype: np.dtype[Any], *, divide_by: float, place: str, start: int
) -> NDArray[Any]:
    """Convert rows to the dtype at rest, and refuse what it cannot hold.

    Parameters
    ----------
    X : ndarray of shape (rows, n_features), any real dtype
    dtype : dtype
        float16, float32 or float64.
    divide_by : float
        Divides every value, in float64 when it is not 1.
    place : str
        What to call its file in messages.
    start : int
        Row of that place that X starts with, for messages.

    Returns
    -------
    ndarray of shape (rows, n_features), dtype, C-contiguous
        X itself when there is nothing to do.

    Raises
    ------
    DatasetError
        A value is NaN or infinite, or becomes infinite in `dtype`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = X if divide_by == 1 else np.divide(X, divide_by, dtype=np.float64)
        converted = np.ascontiguousarray(scaled, dtype=dtype)
    found = first_nonfinite(converted)
    if found is None:
        return converted
    where = f"row {start + found[0]}, column {found[1]} of {place}"
    value = X[found]
    if np.isfinite(value):
        raise DatasetError(
            f"features must fit into {dtype.name} (at most {np.finfo(dtype).max:g} in size), "
            f"got {scaled[found]:g} in {where}.",
            advice="Choose a wider {dtype}, or {divide_by}.",
        )
    raise DatasetError(f"features must be finite, got {value} in {where}.")
