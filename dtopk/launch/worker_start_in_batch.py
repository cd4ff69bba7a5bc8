"""What a worker process of a batch job does first: Dask loads this module in it."""

import signal


def dask_setup(worker: object) -> None:
    """Leave signals to the process that trains.

    A batch system sends them to every process of the job. The run commits and stops, for which it
    needs its workers; they end with the scheduler.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
