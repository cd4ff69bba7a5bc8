"""The engine: passes over rows on one machine, with read-ahead, streaming and certificates."""

from dtopk.engine.fit import fit, plan_rows
from dtopk.engine.options import ACCELERATIONS, FLOAT32_TOL, SOLVERS, FitOptions, StartPoint
from dtopk.engine.records import Callback, EpochRecord, FitInfo, FitResult
from dtopk.engine.rows import (
    ArrayRows,
    Rows,
    StoreRows,
    balance_classes,
    class_totals,
)

__all__ = [
    "ACCELERATIONS",
    "FLOAT32_TOL",
    "SOLVERS",
    "ArrayRows",
    "Callback",
    "EpochRecord",
    "FitInfo",
    "FitOptions",
    "FitResult",
    "Rows",
    "StartPoint",
    "StoreRows",
    "balance_classes",
    "class_totals",
    "fit",
    "plan_rows",
]
