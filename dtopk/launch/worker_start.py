"""What a worker process of a local cluster does first: Dask loads this module in it."""

import signal


def dask_setup(worker: object) -> None:
    """Leave interrupts to the process that trains.

    A terminal sends Ctrl-C to every process of the job. The run ends its round and saves what was
    reached, for which it needs its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
