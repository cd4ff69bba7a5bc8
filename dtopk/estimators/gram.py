"""Kernels of the estimator: Gram matrices of the training rows, and products with new ones."""

from collections.abc import Callable
from numbers import Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtopk.engine.memory import free_memory
from dtopk.kernels.blas import gemm
from dtopk.solvers.kernel_sdca import NOT_A_KERNEL

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Kernel = str | Callable[[Array, Array], ArrayLike]

KERNELS = ("rbf", "linear", "precomputed")
_BLOCK_ROWS = 256
_SHARE_OF_FREE = 0.8
"""Share of the free memory that a fit may take; all that it holds is counted."""
_ROUNDING = 1e-5
"""By how much entries of a Gram matrix that was made in float32 may be off, and its eigenvalues,
relative to the largest."""
_KRYLOV_STEPS = 16
_KRYLOV_WIDTH = 8


class Products(Protocol):
    """A kernel with some points: what it makes of them and of other rows."""

    def between(self, X: Array, n_points: int | None = None) -> Float64:
        """Return k(x, z) for rows x and points z.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
        n_points : int or None
            So many of the points, from the first; None: all.

        Returns
        -------
        ndarray of shape (n_rows, n_points), float64
        """


class RbfProducts:
    """exp(-gamma |x - z|^2).

    The mean of the points is taken off first: where it is large beside the distances, the squared
    norms that these are made of would have lost their digits.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
    gamma : float, > 0
    """

    def __init__(self, points: Array, gamma: float) -> None:
        self._gamma = gamma
        self._mean = points.mean(axis=0, dtype=np.float64)
        self._points = points - self._mean
        self._norms = np.einsum("ij,ij->i", self._points, self._points)

    def between(self, X: Array, n_points: int | None = None) -> Float64:
        """See :meth:`Products.between`."""
        rows, points = np.ascontiguousarray(X - self._mean), self._points[:n_points]
        values = np.empty((len(rows), len(points)))
        gemm(rows, points.T, values, alpha=2.0)
        values -= np.einsum("ij,ij->i", rows, rows)[:, None]
        values -= self._norms[:n_points]
        np.minimum(values, 0.0, out=values)
        values *= self._gamma
        return np.exp(values, out=values)


class LinearProducts:
    """<x, z>.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
    """

    def __init__(self, points: Array) -> None:
        self._points = np.ascontiguousarray(points, dtype=np.float64)

    def between(self, X: Array, n_points: int | None = None) -> Float64:
        """See :meth:`Products.between`."""
        points = self._points[:n_points]
        values = np.empty((len(X), len(points)))
        gemm(np.ascontiguousarray(X, dtype=np.float64), points.T, values)
        return values


class CalledProducts:
    """What a function of the caller's returns.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
    kernel : callable
    """

    def __init__(self, points: Array, kernel: Callable[[Array, Array], ArrayLike]) -> None:
        self._points = points
        self._kernel = kernel

    def between(self, X: Array, n_points: int | None = None) -> Float64:
        """See :meth:`Products.between`.

        Raises
        ------
        ValueError
            If the function returns another shape, or values that are not finite.
        """
        points = self._points[:n_points]
        values = np.ascontiguousarray(self._kernel(X, points), dtype=np.float64)
        shape = len(X), len(points)
        if values.shape != shape:
            raise ValueError(
                f"kernel must return an array of shape {shape} for {shape[0]} rows and {shape[1]} "
                f"others, got shape {values.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError("kernel must return finite values, got NaN or infinity.")
        return values


class GivenProducts:
    """Columns of a matrix that holds the products already.

    Parameters
    ----------
    columns : ndarray of shape (n_points,), intp
    """

    def __init__(self, columns: NDArray[np.intp]) -> None:
        self._columns = columns

    def between(self, X: Array, n_points: int | None = None) -> Float64:
        """See :meth:`Products.between`."""
        return np.ascontiguousarray(X[:, self._columns[:n_points]], dtype=np.float64)


def make_products(kernel: Kernel, points: Array, gamma: float) -> Products:
    """Make the products of a kernel with points, for any but 'precomputed'.

    Parameters
    ----------
    kernel : {'rbf', 'linear'} or callable
    points : ndarray of shape (n_points, n_features)
    gamma : float, > 0
        Of the kernel 'rbf'.
    """
    if callable(kernel):
        return CalledProducts(points, kernel)
    return RbfProducts(points, gamma) if kernel == "rbf" else LinearProducts(points)


def check_kernel(kernel: Any, kernel_gamma: Any) -> None:
    """Refuse what names no kernel, and a width that is none.

    Raises
    ------
    ValueError, TypeError
        If one of them breaks its rule.
    """
    if not (callable(kernel) or (isinstance(kernel, str) and kernel in KERNELS)):
        raise ValueError(
            f"kernel must be one of {', '.join(map(repr, KERNELS))} or a callable, got {kernel!r}."
        )
    if isinstance(kernel_gamma, str):
        if kernel_gamma not in ("scale", "auto"):
            raise ValueError(
                f"kernel_gamma must be 'scale', 'auto' or a number, got {kernel_gamma!r}."
            )
    elif isinstance(kernel_gamma, bool) or not isinstance(kernel_gamma, Real):
        raise TypeError(f"kernel_gamma must be 'scale', 'auto' or a number, got {kernel_gamma!r}.")
    elif not 0 < float(kernel_gamma) < np.inf:
        raise ValueError(f"kernel_gamma must be finite and above 0, got {kernel_gamma!r}.")


def choose_gamma(kernel_gamma: float | str, X: Array) -> float:
    """Return the width of an RBF kernel, as `sklearn.svm.SVC` takes it.

    Parameters
    ----------
    kernel_gamma : {'scale', 'auto'} or float
        1 / (n_features * X.var()), 1 / n_features, or the number itself.
    X : ndarray of shape (n_samples, n_features)
    """
    if kernel_gamma == "auto":
        return 1.0 / int(X.shape[1])
    if kernel_gamma == "scale":
        variance = float(X.var(dtype=np.float64))
        return 1.0 / (int(X.shape[1]) * variance) if variance > 0 else 1.0
    return float(kernel_gamma)


class Gram:
    """The Gram matrix of the training rows, and its rows in float64.

    Parameters
    ----------
    kernel : {'rbf', 'linear', 'precomputed'} or callable
    X : ndarray of shape (n_samples, n_features), or (n_samples, n_samples) for 'precomputed'
    gamma : float, > 0
        Of the kernel 'rbf'.
    """

    def __init__(self, kernel: Kernel, X: Array, gamma: float) -> None:
        self._X = X
        # Nothing has to be shown of kernels that are products of features by their formula.
        self._is_trusted = isinstance(kernel, str) and kernel != "precomputed"
        self._products: Products | None = None
        if kernel != "precomputed":
            self._products = make_products(kernel, X, gamma)
        elif X.shape[0] != X.shape[1]:
            raise ValueError(
                f"X must be a square matrix with kernel='precomputed', got shape {X.shape}."
            )

    def read_rows(self, start: int, stop: int) -> Float64:
        """Return rows `start` to `stop`, of shape (stop - start, n_samples), in float64."""
        rows = self._X[start:stop]
        if self._products is None:
            return np.ascontiguousarray(rows, dtype=np.float64)
        return self._products.between(rows)

    def make_matrix(self, dtype: str) -> Array:
        """Return the whole matrix; a given one that has the type already is not copied.

        Parameters
        ----------
        dtype : {'float32', 'float64'}

        Raises
        ------
        ValueError
            If it is not symmetric, or seen not to be positive semidefinite.
        """
        if self._products is None:
            K: Array = self._X.astype(dtype, copy=False)
        elif self._is_trusted:
            K = self._fill(np.dtype(dtype))
        else:
            K = np.empty((len(self._X), len(self._X)), dtype)
            for start in range(0, len(K), _BLOCK_ROWS):
                K[start : start + _BLOCK_ROWS] = self.read_rows(start, start + _BLOCK_ROWS)
        if not self._is_trusted:
            check_gram(K)
        return K

    def _fill(self, dtype: np.dtype[Any]) -> Array:
        """Compute the lower triangle, and reflect it: no rounding makes the halves differ."""
        assert self._products is not None
        n = len(self._X)
        K = np.empty((n, n), dtype)
        for start in range(0, n, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, n)
            values = self._products.between(self._X[start:stop], stop)
            corner = np.tril(values[:, start:])
            K[start:stop, start:stop] = corner + np.tril(corner, -1).T
            K[start:stop, :start] = values[:, :start]
            K[:start, start:stop] = values[:, :start].T
        return K


def check_gram(K: Array) -> None:
    """Refuse a matrix that cannot be one of products.

    Parameters
    ----------
    K : ndarray of shape (n_samples, n_samples), float32 or float64, finite

    Raises
    ------
    ValueError
        If it is not symmetric, has a negative entry on its diagonal, or is seen to have a negative
        eigenvalue. One that is small beside the largest may remain unseen.
    """
    largest = 0.0
    for start in range(0, len(K), _BLOCK_ROWS):
        largest = max(largest, float(np.abs(K[start : start + _BLOCK_ROWS]).max()))
    for start in range(0, len(K), _BLOCK_ROWS):
        _check_symmetry(K, start, start + _BLOCK_ROWS, _ROUNDING * largest)
    row = int(K.diagonal().argmin())
    if K[row, row] < -_ROUNDING * largest:
        raise ValueError(
            "the diagonal of the Gram matrix must not be negative, got "
            f"{float(K[row, row]):.6g} in row {row}. {NOT_A_KERNEL}"
        )
    least, most = _bound_spectrum(K)
    if least < -_ROUNDING * max(most, -least):
        raise ValueError(
            f"the Gram matrix must be positive semidefinite, got an eigenvalue of {least:.6g} or "
            f"below, with the largest about {most:.6g}. {NOT_A_KERNEL}"
        )


def _check_symmetry(K: Array, start: int, stop: int, most: float) -> None:
    difference = np.abs(K[start:stop, :stop] - K[:stop, start:stop].T)
    i, j = np.unravel_index(int(difference.argmax()), difference.shape)
    if difference[i, j] > most:
        i += start
        raise ValueError(
            f"the Gram matrix must be symmetric, got {float(K[i, j]):.9g} in row {i}, column {j}, "
            f"and {float(K[j, i]):.9g} in row {j}, column {i}."
        )


def _bound_spectrum(K: Array) -> tuple[float, float]:
    """Return a value that the least eigenvalue is not above, and one that the largest is not below.

    They are Rayleigh quotients, the extreme ones in a block Krylov space of a random start: close
    where an eigenvalue stands out.
    """
    n = len(K)
    if n <= _KRYLOV_STEPS * _KRYLOV_WIDTH:
        values = np.linalg.eigvalsh(K.astype(np.float64))
        return float(values[0]), float(values[-1])
    rng = np.random.default_rng(0)
    basis = np.empty((n, _KRYLOV_STEPS * _KRYLOV_WIDTH), K.dtype)
    image = np.empty_like(basis)
    block: Array = rng.standard_normal((n, _KRYLOV_WIDTH))
    for first in range(0, basis.shape[1], _KRYLOV_WIDTH):
        done, part = basis[:, :first], slice(first, first + _KRYLOV_WIDTH)
        # Twice is enough: what one projection leaves of rounding, the next takes off.
        for _ in range(2):
            block = np.linalg.qr(block - done @ (done.T @ block))[0]
        basis[:, part] = block
        gemm(K, np.ascontiguousarray(basis[:, part]), image[:, part])
        block = image[:, part].astype(np.float64)
    products = basis.T.astype(np.float64) @ image.astype(np.float64)
    quotients = np.linalg.eigvalsh(0.5 * (products + products.T))
    return float(quotients[0]), float(quotients[-1])


def check_memory(
    n_samples: int, n_features: int, n_classes: int, itemsize: int, *, is_given: bool
) -> None:
    """Refuse a fit that does not fit into memory, before it begins.

    Parameters
    ----------
    n_samples, n_features, n_classes : int
    itemsize : int
        Bytes of a number of the computation.
    is_given : bool
        Whether the Gram matrix is there already, and used as it is.

    Raises
    ------
    ValueError
        If it does not, with the arithmetic.
    """
    parts = {
        "Gram matrix": 0 if is_given else n_samples**2 * itemsize,
        "coefficients, duals and scores": n_samples * n_classes * (9 * itemsize + 5 * 8),
        "rows in float64": n_samples * (n_features + 3 * _BLOCK_ROWS) * 8,
    }
    needed, limit = sum(parts.values()), int(_SHARE_OF_FREE * free_memory())
    if needed <= limit:
        return
    listed = "; ".join(f"{name} {size:,}" for name, size in parts.items() if size)
    raise ValueError(
        f"memory that is free must be at least {needed:,} bytes for a kernel of {n_samples:,} "
        f"rows, got {limit:,}: {listed}. Train on fewer rows, or lift the features with "
        "`dtopk features` (random Fourier features or Nystroem's) and train TopKClassifier on "
        "them: that takes no Gram matrix."
    )
