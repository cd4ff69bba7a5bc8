"""What training wants of Dask and of processes, whoever starts scheduler and workers."""

from typing import Any

DASK_SETTINGS: dict[str, Any] = {
    # A peer whose host or network is gone counts as dead after so long; Dask takes 30 s. It is
    # the least possible: all processes fail with less.
    "distributed.comm.timeouts.tcp": "11s",
    # The same, after once to twice this, for a process that is there and does nothing. Dask takes
    # 5 minutes. Much less would drop workers for a machine's short fits of swapping, and their
    # duals with them.
    "distributed.scheduler.worker-ttl": "30s",
    # So long after the end of a client or a worker the scheduler keeps what it has noted of it, up
    # to 1,000 events. Dask takes an hour, in which many short runs would fill its memory.
    "distributed.scheduler.events-cleanup-delay": "1m",
    # What a worker holds is planned before the start and is none of Dask's data. Dask could not
    # spill it; and a worker paused for it would stay so for ever, since it is not given back.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}
"""Values by Dask's names; deploy/dask.yaml has the same for scheduler and workers started by
hand."""
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Read by the libraries when they are loaded, which in a worker is before any code of ours."""
