"""The accelerated outer loop: the proximal point method around SDCA.

At large C the dual is ill-conditioned and plain SDCA needs many passes. Adding
``kappa/2 |W - Z|^2`` around a moving centre Z conditions it [1]_ [2]_. With ``r = 1 + kappa`` (in
units of the regularizer) and ``c = 1 - 1/r`` the subproblem is the original one at C/r with all
scores shifted: its weights are ``W = c Z + X'A / r``, where A is kept feasible for the original C,
so that at any time A proves the bound ``D(A) = sum_i D_i(a_i) - 1/2 |X'A|^2`` on the original
problem.

After every pass the centre moves to W, and A stays: W is then a running mean of X'A over the
passes, with the share 1/r for the newest. The papers move the centre beyond W, by momentum, which
is right where each subproblem is solved to the end. With one pass for each it is not: the duals
that are taken along bring a momentum of their own (W moves by ``c (W - Z)`` with its centre), and
the fewest passes were taken without another one.

References
----------
.. [1] Shalev-Shwartz, Zhang. Accelerated Proximal Stochastic Dual Coordinate Ascent for
   Regularized Loss Minimization. ICML 2014.
.. [2] Lin, Mairal, Harchaoui. A Universal Catalyst for First-Order Optimization. NeurIPS 2015.
"""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


class MovingCentre:
    """The centre Z of the outer loop and what moves it.

    Parameters
    ----------
    W : ndarray of shape (width, n_classes)
        The weights X'A that the loop starts from.
    ratio : float, above 1
        r, the strength of the proximal term.
    """

    def __init__(self, W: Array, ratio: float) -> None:
        self.ratio = ratio
        # With the first centre at W itself, c Z + X'A / r is W: nothing jumps at the start.
        self.centre: Array = W.copy()
        """Z."""

    @property
    def _share(self) -> float:
        return 1.0 - 1.0 / self.ratio

    def dual_weights(self, W: Array) -> Array:
        """Return X'A, the weights that the duals stand for, from W.

        Parameters
        ----------
        W : ndarray of shape (width, n_classes)

        Returns
        -------
        ndarray of shape (width, n_classes), the dtype of W
        """
        weights: Array = self.ratio * (W - W.dtype.type(self._share) * self.centre)
        return weights

    def set_ratio(self, W: Array, ratio: float) -> None:
        """Change r with weights and duals as they are: the centre moves to where they agree.

        Parameters
        ----------
        W : ndarray of shape (width, n_classes)
        ratio : float, above 1
        """
        dual_weights = self.dual_weights(W)
        self.ratio = ratio
        self._place_centre(W, dual_weights)

    def refresh(self, W: Array, dual_weights: Array) -> None:
        """Take off the rounding that has built up between weights and duals, by the centre.

        Parameters
        ----------
        W : ndarray of shape (width, n_classes)
        dual_weights : ndarray of shape (width, n_classes)
            X'A, computed anew.
        """
        self._place_centre(W, dual_weights)

    def _place_centre(self, W: Array, dual_weights: Array) -> None:
        """Solve W = c Z + X'A / r for the centre."""
        kind = W.dtype.type
        self.centre = ((W - dual_weights / kind(self.ratio)) / kind(self._share)).astype(W.dtype)

    def advance(self, W: Array) -> None:
        """Move the centre to W, and W with it, in place: the duals stay.

        Parameters
        ----------
        W : ndarray of shape (width, n_classes)
        """
        centre = W.copy()
        W += W.dtype.type(self._share) * (centre - self.centre)
        self.centre = centre
