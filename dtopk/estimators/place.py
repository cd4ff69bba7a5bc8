"""Where an estimator trains: in this process, or on the workers of a client."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtopk.engine import Callback, FitOptions, FitResult, Rows, StartPoint, StoreRows, fit
from dtopk.estimators.dask_arrays import is_dask_array
from dtopk.estimators.spool import open_spool
from dtopk.launch import describe_workers, wait_for_workers
from dtopk.losses import Loss
from dtopk_storage import open_run_state

if TYPE_CHECKING:
    from dtopk.launch import Client

_WAIT_S = 300.0
"""Seconds to wait for the first worker."""
_PARTITION_ROWS = 32
"""Rows of a partition at least, where nobody says how many partitions there are to be."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Place:
    """Where a fit takes place."""

    client: "Client | None"
    """Of the workers that train; None: this process does."""
    n_workers: int
    """How many there were at the start."""
    spool: Path | None
    """A folder that they see, for as long as the fit lasts; None: nothing is to be spooled."""
    scratch: str | os.PathLike[str] | None
    """Where this process puts what does not fit into memory; None: where the system says."""

    def count_partitions(self, wanted: int | None, n_samples: int) -> int:
        """Return the number of partitions: as wanted, or one for each worker.

        Parameters
        ----------
        wanted : int or None
        n_samples : int
            Training rows.
        """
        if wanted is not None:
            return wanted
        return max(min(self.n_workers, n_samples // _PARTITION_ROWS), 1)

    def train(
        self,
        rows: Rows,
        loss: Loss,
        options: FitOptions,
        *,
        callbacks: Sequence[Callback],
        start: StartPoint | None,
    ) -> FitResult:
        """Train here, as of `dtopk.engine.fit` or `dtopk.engine.fit_on_cluster`.

        Parameters
        ----------
        rows : Rows
            Of a store that every worker sees, where there are workers.
        loss : Loss
        options : FitOptions
        callbacks : sequence of Callback
        start : StartPoint or None
        """
        if self.client is None:
            scratch = self.scratch if self.spool is None else self.spool
            return fit(rows, loss, options, callbacks=callbacks, scratch=scratch, start=start)
        # Imported here: Dask takes most of a second.
        from dtopk.engine import fit_on_cluster

        assert self.spool is not None
        assert isinstance(rows, StoreRows)
        return fit_on_cluster(
            self.client,
            rows,
            loss,
            options,
            callbacks=callbacks,
            start=start,
            state=open_run_state(self.spool / "state"),
        )


@contextlib.contextmanager
def open_place(
    client: "Client | None", spool_dir: str | os.PathLike[str] | None, arrays: Sequence[object]
) -> Iterator[Place]:
    """Find out where to train, and have a spool there if one is needed.

    Parameters
    ----------
    client : distributed.Client or None
        As the estimator has it.
    spool_dir : path-like or None
        As the estimator has it.
    arrays : sequence
        What is trained on. Dask arrays among them are trained on by Dask's default client, where
        none is given.

    Yields
    ------
    Place

    Raises
    ------
    TypeError
        If the client is none.
    ValueError
        If workers do not see the spool.
    ClusterError
        If no worker comes.
    """
    from_dask = any(map(is_dask_array, arrays))
    if client is None and not from_dask:
        yield Place(client=None, n_workers=0, spool=None, scratch=spool_dir)
        return
    # Imported here: Dask takes most of a second.
    from dtopk.estimators.clients import use_client

    with use_client(client) as found:
        n_workers = 0
        if found is not None:
            wait_for_workers(found, 1, _WAIT_S)
            n_workers = len(describe_workers(found))
        with open_spool(spool_dir, found) as root:
            yield Place(client=found, n_workers=n_workers, spool=root, scratch=spool_dir)
