"""Slow, obvious twins of the kernels, for tests: plain numpy and scipy, in float64.

Nothing here shares code or method with :mod:`dtopk.kernels`. A projection is a bisection on the
sum of its result, Lambert's function is scipy's, a loss is computed from its definition, and
training is one row at a time. A loss's twin is one class here and one line in
:mod:`dtopk.testing.twins`.
"""

from dtopk.testing.domains import (
    Domain,
    fw_gap,
    project,
    smallest_product,
    sum_cap,
)
from dtopk.testing.features import draw_pieces, make_features
from dtopk.testing.softmax import lambert_v
from dtopk.testing.training import dual_value, primal_value, sdca_pass
from dtopk.testing.twins import dual_term, infeasibility, loss_value, row_gap, update_row

__all__ = [
    "Domain",
    "draw_pieces",
    "dual_term",
    "dual_value",
    "fw_gap",
    "infeasibility",
    "lambert_v",
    "loss_value",
    "make_features",
    "primal_value",
    "project",
    "row_gap",
    "sdca_pass",
    "smallest_product",
    "sum_cap",
    "update_row",
]
