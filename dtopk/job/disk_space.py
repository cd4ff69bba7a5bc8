"""Whether the duals of a run will find room on its disk, looked at before it starts."""

import logging
import shutil
from pathlib import Path

import numpy as np

from dtopk.job.problem import Problem

logger = logging.getLogger(__name__)

_LEAST_SHARE = 0.1
"""Compressed duals take from a few hundredths of their size to all of it."""


def check_disk_space(problem: Problem, run_dir: Path) -> None:
    """Warn, or refuse to train, where the duals of the run may not find room.

    Parameters
    ----------
    problem : Problem
    run_dir : Path
        Need not exist yet.

    Raises
    ------
    ValueError
        If they are to be streamed to disk, and less than a tenth of their size is free.
    """
    streamed = not problem.duals_in_memory
    if not (streamed or problem.job.output.save_dual):
        return
    itemsize = np.dtype(problem.job.solver.dtype).itemsize
    most = problem.rows.n_stored * problem.store.n_classes * itemsize
    folder = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if streamed and free < _LEAST_SHARE * most:
        raise ValueError(
            f"disk of {str(run_dir)!r} must have at least {int(_LEAST_SHARE * most):,} bytes free "
            f"for duals that do not fit into memory, got {free:,}. Free some, choose another disk "
            "with --run-dir, or raise resources.memory_limit."
        )
    if free < most:
        logger.warning(
            "The duals take up to %s bytes, and the disk of %r has %s free. %s",
            f"{most:,}",
            str(run_dir),
            f"{free:,}",
            "Training fails if they find no room."
            if streamed
            else "They are not kept if they find no room; the model is saved all the same.",
        )
