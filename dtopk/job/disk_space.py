"""Whether duals and state of a run will find room on its disk, looked at before it starts."""

import logging
import shutil
from pathlib import Path

import numpy as np

from dtopk.engine import choose_solver, makes_duals
from dtopk.job.problem import Problem
from dtopk_storage.paths import AnyPath

MODEL_OVERHEAD_BYTES = 1 << 16
"""Of a model file, beside its weights: class names, the job, the certificate."""

logger = logging.getLogger(__name__)

_LEAST_SHARE = 0.1
"""Compressed duals take from a few hundredths of their size to all of it."""


def check_disk_space(problem: Problem, run_dir: AnyPath) -> None:
    """Warn, or refuse to train, where the duals of the run may not find room on its disk.

    The state has the duals of the last commit, and while another is made those of both; those that
    are kept at the end come beside it.

    Parameters
    ----------
    problem : Problem
    run_dir : Path or ObjectPath
        Need not exist yet. An object store has room.

    Raises
    ------
    ValueError
        If there is no room for the model; or if the duals are to be streamed to disk, and less than
        a tenth of their size is free.
    """
    if not isinstance(run_dir, Path):
        return
    itemsize = np.dtype(problem.job.solver.dtype).itemsize
    n_features, n_classes = problem.store.n_features, problem.store.n_classes
    folder = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    model_bytes = MODEL_OVERHEAD_BYTES + n_features * n_classes * itemsize
    if free < model_bytes:
        raise _too_little(run_dir, model_bytes, "the model", free, "")
    solver = choose_solver(problem.loss, problem.options.solver).solver
    duals_bytes = problem.rows.n_stored * n_classes * itemsize * makes_duals(problem.loss, solver)
    has_state = not problem.job.output.state_url
    streamed = not problem.duals_in_memory
    if has_state and streamed and free < _LEAST_SHARE * duals_bytes:
        raise _too_little(
            run_dir,
            int(_LEAST_SHARE * duals_bytes),
            "duals that do not fit into memory",
            free,
            ", or raise resources.memory_limit",
        )
    most = _count_copies(problem) * duals_bytes
    if free < most:
        logger.warning(
            "State and duals take up to %s bytes, and the disk of %r has %s free. %s",
            f"{most:,}",
            str(run_dir),
            f"{free:,}",
            "Training stops where the state finds no room, and goes on by the same command once "
            "there is some."
            if has_state
            else "The duals are not kept if they find no room; the model is saved all the same.",
        )


def _count_copies(problem: Problem) -> int:
    """Count how many times the duals lie in the run folder at most."""
    output = problem.job.output
    if output.state_url:
        return int(output.save_dual)
    # Streamed duals are in the state twice whenever an epoch is under way, and at the end too.
    return 2 if problem.duals_in_memory else 2 + output.save_dual


def _too_little(run_dir: Path, least: int, what: str, free: int, remedy: str) -> ValueError:
    return ValueError(
        f"disk of {str(run_dir)!r} must have at least {least:,} bytes free for {what}, got "
        f"{free:,}. Free some, or choose another disk with --run-dir{remedy}."
    )
