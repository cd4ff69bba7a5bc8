r"""Projections and proximal maps of the losses, for one vector or for every row of a matrix.

They need nothing of the trainer. Each works in float32 or float64, as its argument has it, and
takes an `out` array. m is the length of a row.

===================================  ================================================  ==========
function                             set, with s = sum x                               cost
===================================  ================================================  ==========
:func:`project_simplex`              ``x >= 0, s = r``                                 O(m)
:func:`project_topk_simplex`         ``x >= 0, s <= r, x_j <= s / k`` [1]_ [2]_        O(m)
:func:`project_topk_simplex_incl`    ``x >= 0, s <= r, x_j <= min(r/k, s/(k-1))``      O(m)
:func:`project_knapsack`             ``x >= 0, s <= r, x_j <= r / k`` [2]_             O(m)
:func:`project_ordered_simplex`      ``x >= 0``, sums of the largest x bounded [3]_    O(m), sort q
:func:`project_bipartite_simplex`    ``p, n >= 0, sum p = sum n <= r`` [2]_            O(m)
:func:`shrink_to_softmax`            distributions, with their entropy [2]_            O(m)
:func:`shrink_to_topk_entropy`       top-k simplex, with its entropies [2]_            O(m + k)
:func:`shrink_to_capped_softmax`     knapsack, with its entropies                      O(m + k)
:func:`lambert_v`                    ``V + log V = t``                                 O(1)
===================================  ================================================  ==========

q is the number of entries near enough to the largest ones to count; nothing else is sorted. The
projections onto the four sets after the simplex minimise ``0.5 |x - b|^2 + 0.5 rho s^2``: rho = 0
is the Euclidean projection, and a bias rho > 0 shrinks the sum.

References
----------
.. [1] Lapin, Hein, Schiele. Top-k Multiclass SVM. NIPS 2015.
.. [2] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
.. [3] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type multi-category
   classifiers.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtopk.kernels import batches
from dtopk.kernels.projections import ALPHA, ALPHA_INCL, BETA

__all__ = [
    "lambert_v",
    "project_bipartite_simplex",
    "project_knapsack",
    "project_ordered_simplex",
    "project_simplex",
    "project_topk_simplex",
    "project_topk_simplex_incl",
    "shrink_to_capped_softmax",
    "shrink_to_softmax",
    "shrink_to_topk_entropy",
]

Array = NDArray[Any]


def project_simplex(b: ArrayLike, *, radius: float = 1.0, out: Array | None = None) -> Array:
    """Project onto the simplex.

    Solves min_x 0.5 |x - b|^2  s.t.  sum x = radius, x >= 0.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    radius : float, > 0
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows; `out` if that is given.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    rows = _Rows(b, out)
    _check_radius(radius)
    batches.project_rows_simplex(rows.given, radius, rows.result)
    return rows.finish()


def project_topk_simplex(
    b: ArrayLike, k: int, *, radius: float = 1.0, rho: float = 0.0, out: Array | None = None
) -> Array:
    """Project onto the top-k simplex.

    Solves min_x 0.5 |x - b|^2 + 0.5 rho (sum x)^2  s.t.  sum x <= radius, 0 <= x_j <= (sum x)/k.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    k : int, 1 <= k <= m
    radius : float, > 0
    rho : float, >= 0
        Strength of the bias.
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows; `out` if that is given.

    Raises
    ------
    ValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> from dtopk.projections import project_topk_simplex
    >>> project_topk_simplex([1.0, 0.25, 0.0], k=2)
    array([0.5  , 0.375, 0.125])
    """
    return _project_top_k(b, ALPHA, k, radius, rho, out)


def project_topk_simplex_incl(
    b: ArrayLike, k: int, *, radius: float = 1.0, rho: float = 0.0, out: Array | None = None
) -> Array:
    """Project onto the top-k simplex of the loss that lets the true label be among the k.

    Solves min_x 0.5 |x - b|^2 + 0.5 rho (sum x)^2  s.t.  sum x <= radius,
    0 <= x_j <= min(radius / k, (sum x) / (k - 1)); for k = 2 it is :func:`project_knapsack`.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    k : int, 1 <= k <= m
    radius : float, > 0
    rho : float, >= 0
        Strength of the bias.
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows; `out` if that is given.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    return _project_top_k(b, ALPHA_INCL, k, radius, rho, out)


def project_knapsack(
    b: ArrayLike, k: int, *, radius: float = 1.0, rho: float = 0.0, out: Array | None = None
) -> Array:
    """Project onto the knapsack polytope.

    Solves min_x 0.5 |x - b|^2 + 0.5 rho (sum x)^2  s.t.  sum x <= radius, 0 <= x_j <= radius / k.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    k : int, 1 <= k <= m
    radius : float, > 0
    rho : float, >= 0
        Strength of the bias.
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows; `out` if that is given.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    return _project_top_k(b, BETA, k, radius, rho, out)


def project_ordered_simplex(
    b: ArrayLike,
    weights: ArrayLike,
    *,
    radius: float = 1.0,
    rho: float = 0.0,
    out: Array | None = None,
) -> Array:
    """Project onto the domain of the ordered weighted hinge.

    Solves min_x 0.5 |x - b|^2 + 0.5 rho (sum x)^2  s.t.  x >= 0 and, for every j, the sum of the j
    largest x is at most radius (weights_1 + ... + weights_j). With k weights of 1/k it is
    :func:`project_knapsack`.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    weights : array-like of shape (n_weights,), n_weights <= m
        Not negative, and none above the one before; further ones are 0.
    radius : float, > 0
    rho : float, >= 0
        Strength of the bias.
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows; `out` if that is given.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    rows = _Rows(b, out)
    ordered = _take_weights(weights, rows.given.shape[1])
    _check_radius(radius)
    _check_bias(rho)
    batches.project_rows_ordered(rows.given, ordered, float(radius), float(rho), rows.result)
    return rows.finish()


def project_bipartite_simplex(
    b: ArrayLike, c: ArrayLike, *, radius: float = 1.0
) -> tuple[Array, Array]:
    """Project a pair of vectors onto the bipartite simplex, by variable fixing.

    Solves min_{p, n} 0.5 |p - b|^2 + 0.5 |n - c|^2  s.t.  p, n >= 0, sum p = sum n <= radius.

    Parameters
    ----------
    b : array-like of shape (m1,) or (n, m1)
        Finite. Both are worked on in float32 if both are, and else in float64.
    c : array-like of shape (m2,) or (n, m2)
        Finite.
    radius : float, > 0

    Returns
    -------
    p : ndarray of the shape of b
    n : ndarray of the shape of c

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    left, right = _Rows(b, None), _Rows(c, None)
    _check_radius(radius)
    if left.shape[:-1] != right.shape[:-1]:
        raise ValueError(
            f"b and c must have as many rows as each other, got shapes {left.shape} and "
            f"{right.shape}."
        )
    dtype = np.result_type(left.given, right.given)
    p, n = (np.empty(side.given.shape, dtype) for side in (left, right))
    batches.project_rows_bipartite(
        left.given.astype(dtype), right.given.astype(dtype), float(radius), p, n
    )
    return p.reshape(left.shape), n.reshape(right.shape)


def shrink_to_softmax(b: ArrayLike, *, alpha: float, out: Array | None = None) -> Array:
    """Find the distribution of highest entropy near scores: the softmax loss's dual update.

    Solves min_p 0.5 alpha |p|^2 - <b, p> + sum_j p_j log p_j  s.t.  sum p = 1, p >= 0; without
    alpha that were softmax(b). The solution is ``V(b - t) / alpha`` for some t.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    alpha : float, > 0
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    rows = _Rows(b, out)
    _check_alpha(alpha)
    batches.shrink_rows_softmax(rows.given, float(alpha), rows.result)
    return rows.finish()


def shrink_to_topk_entropy(
    b: ArrayLike, k: int, *, alpha: float = 0.0, out: Array | None = None
) -> Array:
    """Find the point of the top-k simplex of highest entropy near scores.

    Solves min_x 0.5 alpha (|x|^2 + s^2) - <b, x> + sum_j x_j log x_j + (1 - s) log(1 - s)
    s.t.  s = sum x <= 1, 0 <= x_j <= s / k.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    k : int, 1 <= k <= m
    alpha : float, >= 0
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    return _shrink(b, ALPHA, k, alpha, out)


def shrink_to_capped_softmax(
    b: ArrayLike, k: int, *, alpha: float = 0.0, out: Array | None = None
) -> Array:
    """Find the point of the knapsack polytope of highest entropy near scores.

    Solves min_x 0.5 alpha (|x|^2 + s^2) - <b, x> + sum_j x_j log x_j + (1 - s) log(1 - s)
    s.t.  s = sum x <= 1, 0 <= x_j <= 1 / k.

    Parameters
    ----------
    b : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    k : int, 1 <= k <= m
    alpha : float, >= 0
    out : ndarray of the shape of b, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of b, float32 or float64

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    return _shrink(b, BETA, k, alpha, out)


def lambert_v(t: ArrayLike, *, out: Array | None = None) -> Array:
    """Compute V(t) = W(e^t), the solution of V + log V = t, without overflow.

    Parameters
    ----------
    t : array-like of shape (m,) or (n, m)
        Finite. float32 is worked on as it is, anything else as float64.
    out : ndarray of the shape of t, float32 or float64, optional
        Where to write the result.

    Returns
    -------
    ndarray of the shape of t, float32 or float64
    """
    rows = _Rows(t, out, name="t")
    batches.lambert_rows(rows.given, rows.result)
    return rows.finish()


class _Rows:
    """An argument as a matrix of float32 or float64, and a matrix for its result."""

    def __init__(self, values: ArrayLike, out: Array | None, name: str = "b") -> None:
        given = np.asarray(values)
        if given.ndim not in (1, 2) or given.shape[-1] == 0:
            raise ValueError(
                f"{name} must have shape (m,) or (n, m) with m >= 1, got shape {given.shape}."
            )
        dtype = np.float32 if given.dtype == np.float32 else np.float64
        ordered = np.ascontiguousarray(given, dtype=dtype)
        if not np.isfinite(ordered).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(ordered))[0])
            raise ValueError(f"{name} must be finite, got {ordered[place]} at index {place}.")
        if out is not None and (out.shape != given.shape or out.dtype != dtype):
            raise ValueError(
                f"out must have shape {given.shape} and dtype {np.dtype(dtype).name}, got shape "
                f"{out.shape} and dtype {out.dtype.name}."
            )
        self.shape = given.shape
        self.given: Array = np.atleast_2d(ordered)
        self.result: Array = np.empty_like(self.given)
        self._out = out

    def finish(self) -> Array:
        """Return the result in the shape of the argument."""
        result = self.result.reshape(self.shape)
        if self._out is None:
            return result
        self._out[...] = result
        return self._out


def _project_top_k(
    b: ArrayLike, domain: int, k: int, radius: float, rho: float, out: Array | None
) -> Array:
    rows = _Rows(b, out)
    _check_k(k, rows)
    _check_radius(radius)
    _check_bias(rho)
    batches.project_rows_top_k(rows.given, domain, int(k), float(radius), float(rho), rows.result)
    return rows.finish()


def _shrink(b: ArrayLike, domain: int, k: int, alpha: float, out: Array | None) -> Array:
    rows = _Rows(b, out)
    _check_k(k, rows)
    if not (math.isfinite(alpha) and alpha >= 0):
        raise ValueError(f"alpha must be finite and at least 0, got {alpha!r}.")
    batches.shrink_rows_entropy(rows.given, float(alpha), domain, int(k), rows.result)
    return rows.finish()


def _take_weights(weights: ArrayLike, m: int) -> NDArray[np.float64]:
    """Return the weights without the zeros at their end."""
    ordered = np.asarray(weights, dtype=np.float64)
    if ordered.ndim != 1 or not 1 <= len(ordered) <= m:
        raise ValueError(f"weights must be 1 to m = {m} numbers, got shape {ordered.shape}.")
    falling = np.isfinite(ordered).all() and (np.diff(ordered) <= 0).all()
    if not (falling and ordered[0] > 0 and ordered[-1] >= 0):
        raise ValueError(
            "weights must be finite, nonincreasing and not negative, the first above 0, got "
            f"{weights!r}."
        )
    return np.ascontiguousarray(ordered[ordered > 0])


def _check_k(k: int, rows: _Rows) -> None:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be an integer, got {k!r}.")
    m = rows.given.shape[1]
    if not 1 <= k <= m:
        raise ValueError(f"k must be between 1 and m = {m}, got {k}.")


def _check_radius(radius: float) -> None:
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius must be finite and above 0, got {radius!r}.")


def _check_bias(rho: float) -> None:
    if not (math.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho must be finite and at least 0, got {rho!r}.")


def _check_alpha(alpha: float) -> None:
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be finite and above 0, got {alpha!r}.")
