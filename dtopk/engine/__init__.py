"""The engine: passes over rows in one process or on a cluster, streaming and certificates.

Dask is imported when a cluster is used and not before, since that takes most of a second.
"""

from typing import TYPE_CHECKING

from dtopk.engine.candidates import Candidate
from dtopk.engine.fit import fit, plan_rows
from dtopk.engine.folds import Fold, FoldNumbers
from dtopk.engine.joint_fit import fit_many
from dtopk.engine.options import ACCELERATIONS, FLOAT32_TOL, SOLVERS, FitOptions, StartPoint
from dtopk.engine.records import Callback, EpochRecord, FitInfo, FitResult
from dtopk.engine.rows import (
    ArrayRows,
    Rows,
    StoreRows,
    balance_classes,
    class_totals,
    find_improper,
)
from dtopk.engine.solvers import choose_solver, makes_duals

if TYPE_CHECKING:
    from dtopk.engine.cluster_fit import fit_on_cluster

__all__ = [
    "ACCELERATIONS",
    "FLOAT32_TOL",
    "SOLVERS",
    "ArrayRows",
    "Callback",
    "Candidate",
    "EpochRecord",
    "FitInfo",
    "FitOptions",
    "FitResult",
    "Fold",
    "FoldNumbers",
    "Rows",
    "StartPoint",
    "StoreRows",
    "balance_classes",
    "choose_solver",
    "class_totals",
    "find_improper",
    "fit",
    "fit_many",
    "fit_on_cluster",
    "makes_duals",
    "plan_rows",
]


def __getattr__(name: str) -> object:
    """Import what needs Dask on first use (PEP 562)."""
    if name != "fit_on_cluster":
        raise AttributeError(f"module 'dtopk.engine' has no attribute {name!r}.")
    from dtopk.engine.cluster_fit import fit_on_cluster

    return fit_on_cluster
