"""Train several models on the same rows, which are read, converted and multiplied once for all.

A model starts where one with the same loss and a smaller C has ended, if that one is done and near.
How they take turns is in :mod:`dtopk.engine.joint_run`.
"""

import contextlib
from collections.abc import Callable, Sequence

from threadpoolctl import threadpool_limits

from dtopk.engine.candidates import Candidate
from dtopk.engine.fit import check_run, fit
from dtopk.engine.interruption import Interruption
from dtopk.engine.joint_run import JointRun
from dtopk.engine.options import FitOptions
from dtopk.engine.records import Callback, FitResult
from dtopk.engine.rows import Rows


def fit_many(
    rows: Rows,
    candidates: Sequence[Candidate],
    options: FitOptions,
    *,
    take: Callable[[Candidate, FitResult], None] = lambda candidate, result: None,
    callbacks: Callable[[Candidate], Sequence[Callback]] = lambda candidate: (),
    width: int = 0,
    scratch: str | None = None,
) -> dict[str, FitResult]:
    """Train models until the gap of each is at most `options.tol`.

    Parameters
    ----------
    rows : Rows
    candidates : sequence of Candidate
    options : FitOptions
        Of all of them, but for C. There can be one partition only.
    take : callable
        Called with a candidate and its result as soon as it is done.
    callbacks : callable
        Returns the callbacks of a candidate.
    width : int
        Most models that are trained at a time; 0: chosen from what a pass is seen to cost.
    scratch : path-like, optional
        Folder for duals that do not fit into memory; None is the system's temporary folder.

    Returns
    -------
    dict of str to FitResult
        By the candidates' names. An interrupt leaves out those that had not begun.

    Raises
    ------
    ValueError
        As `fit`, with the candidate's name, before anything is trained.
    """
    if options.partitions > 1:
        raise ValueError(f"partitions must be 1 for several models, got {options.partitions}.")
    choices = {
        each.name: check_run(rows, each.loss, each.apply(options), None, each.start)
        for each in candidates
    }
    together = [each for each in candidates if not each.loss.n_masked]
    results: dict[str, FitResult] = {}

    def keep(candidate: Candidate, result: FitResult) -> None:
        results[candidate.name] = result
        take(candidate, result)

    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpool_limits(options.threads or None, user_api="blas"))
        interruption = stack.enter_context(Interruption())
        if together:
            joint = JointRun(rows, together, options, choices, interruption, scratch)
            stack.enter_context(joint)
            joint.run(keep, callbacks, width)
        for each in candidates:
            if each.loss.n_masked and not interruption.requested:
                # Its rows change with the weights: nothing of them could be shared.
                keep(each, _fit_alone(rows, each, options, callbacks(each), scratch))
    return results


def _fit_alone(
    rows: Rows,
    candidate: Candidate,
    options: FitOptions,
    callbacks: Sequence[Callback],
    scratch: str | None,
) -> FitResult:
    return fit(
        rows, candidate.loss, candidate.apply(options),
        callbacks=callbacks, start=candidate.start, scratch=scratch,
    )  # fmt: skip
