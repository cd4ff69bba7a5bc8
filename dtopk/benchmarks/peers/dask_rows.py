"""Workers of a local Dask cluster, and rows that they hold."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, wait
from numpy.typing import NDArray

from dtopk.launch import ClusterOptions, open_cluster


def open_workers(threads: int) -> AbstractContextManager[Client]:
    """Start as many workers of one thread as there are threads; they end with the context."""
    options = ClusterOptions(
        kind="local", workers=threads, min_workers=threads, threads_per_worker=1, dashboard=False
    )
    return open_cluster(options)


def persist_rows(
    client: Client, X: NDArray[np.float32], y: NDArray[np.int32], n_chunks: int
) -> tuple[Any, Any]:
    """Put rows into the memory of the workers, in chunks of about the same size.

    Parameters
    ----------
    client : distributed.Client
    X : ndarray of shape (n_samples, n_features), float32
    y : ndarray of shape (n_samples,), int32
    n_chunks : int

    Returns
    -------
    X, y : dask.array.Array
    """
    rows = -(-len(y) // n_chunks)
    from_array: Callable[..., Any] = da.from_array
    held = client.persist((from_array(X, chunks=(rows, X.shape[1])), from_array(y, chunks=rows)))
    with client.as_current():
        wait(held)
    return held[0], held[1]
