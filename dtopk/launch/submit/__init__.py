"""Submit a run or a sweep to a batch system, and find out what has become of it.

A back end is a module of this package with one class, a line in the table below, and nothing else.
"""

import importlib
from collections.abc import Iterable

from dtopk.launch.submit.back_end import BackEnd, JobState, Submission
from dtopk.launch.submit.options import SubmitOptions
from dtopk.launch.submit.record import (
    SUBMISSION,
    Attempt,
    Command,
    SubmissionFolder,
    SubmissionRecord,
    find_submissions,
    writing_for_no_others,
)

__all__ = [
    "BACK_ENDS",
    "SUBMISSION",
    "Attempt",
    "BackEnd",
    "Command",
    "JobState",
    "Submission",
    "SubmissionFolder",
    "SubmissionRecord",
    "SubmitOptions",
    "find_submissions",
    "make_back_end",
    "writing_for_no_others",
]

_CLASSES = {
    "slurm": "dtopk.launch.submit.slurm:Slurm",
    "pbs": "dtopk.launch.submit.pbs:Pbs",
    "lsf": "dtopk.launch.submit.lsf:Lsf",
    "sge": "dtopk.launch.submit.sge:Sge",
    "kubernetes": "dtopk.launch.submit.kubernetes:Kubernetes",
    "local": "dtopk.launch.submit.local:Local",
}
BACK_ENDS: Iterable[str] = tuple(_CLASSES)
"""Names of the back ends, as `dtopk submit --to` takes them."""


def make_back_end(name: str) -> BackEnd:
    """Make the back end of a name.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name not in _CLASSES:
        raise ValueError(
            f"back end {name!r} is unknown. Available: {', '.join(map(repr, _CLASSES))}."
        )
    module, _, class_name = _CLASSES[name].partition(":")
    back_end = getattr(importlib.import_module(module), class_name)()
    assert isinstance(back_end, BackEnd)
    return back_end
