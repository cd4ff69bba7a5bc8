r"""Projections onto the top-k simplex and its relatives, for one vector or for every row of many.

Each minimises ``0.5 |x - b|^2 + 0.5 rho (sum x)^2`` over its domain of radius r; rho = 0 is the
Euclidean projection, and a bias rho > 0 shrinks the sum. They are the domains of the duals of the
three top-k hinge losses, nested in the order of the functions here:

* :func:`project_topk_simplex`: ``x >= 0, sum x <= r, x_j <= (sum x) / k`` [1]_ [2]_,
* :func:`project_topk_simplex_incl`: ``x >= 0, sum x <= r, x_j <= min(r / k, (sum x) / (k - 1))``,
* :func:`project_knapsack`: ``x >= 0, sum x <= r, x_j <= r / k`` [2]_.

For k = 1 all three are the set ``x >= 0, sum x <= r``.

References
----------
.. [1] Lapin, Hein, Schiele. Top-k Multiclass SVM. NIPS 2015.
.. [2] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtopk.kernels.projections import ALPHA, ALPHA_INCL, BETA, project_top_k

__all__ = ["project_knapsack", "project_topk_simplex", "project_topk_simplex_incl"]


def project_topk_simplex(
    b: ArrayLike, k: int, *, radius: float = 1.0, rho: float = 0.0
) -> NDArray[Any]:
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

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows.

    Raises
    ------
    ValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> from dtopk.projections import project_topk_simplex
    >>> project_topk_simplex([1.0, 0.2, 0.0], k=2)
    array([0.5, 0.2, 0.3])
    """
    return _project(b, ALPHA, k, radius, rho)


def project_topk_simplex_incl(
    b: ArrayLike, k: int, *, radius: float = 1.0, rho: float = 0.0
) -> NDArray[Any]:
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

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    return _project(b, ALPHA_INCL, k, radius, rho)


def project_knapsack(
    b: ArrayLike, k: int, *, radius: float = 1.0, rho: float = 0.0
) -> NDArray[Any]:
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

    Returns
    -------
    ndarray of the shape of b, float32 or float64
        The projection, of every row where there are rows.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    return _project(b, BETA, k, radius, rho)


def _project(b: ArrayLike, domain: int, k: int, radius: float, rho: float) -> NDArray[Any]:
    given = np.asarray(b)
    if given.ndim not in (1, 2) or given.shape[-1] == 0:
        raise ValueError(f"b must have shape (m,) or (n, m) with m >= 1, got shape {given.shape}.")
    values = given.astype(np.float32 if given.dtype == np.float32 else np.float64, order="C")
    _check_arguments(values, k, radius, rho)
    rows = np.atleast_2d(values)
    out = np.empty_like(rows)
    top = np.empty(k + 1, rows.dtype)
    for row, projection in zip(rows, out, strict=True):
        project_top_k(row, domain, int(k), float(radius), row.dtype.type(rho), top, projection)
    return out.reshape(values.shape)


def _check_arguments(values: NDArray[Any], k: int, radius: float, rho: float) -> None:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be an integer, got {k!r}.")
    if not 1 <= k <= values.shape[-1]:
        raise ValueError(f"k must be between 1 and m = {values.shape[-1]}, got {k}.")
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius must be finite and above 0, got {radius!r}.")
    if not (math.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho must be finite and at least 0, got {rho!r}.")
    if not np.isfinite(values).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"b must be finite, got {values[place]} at index {place}.")
