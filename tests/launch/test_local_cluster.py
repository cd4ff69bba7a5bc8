"""Local clusters: worker processes of this machine."""

import os

from dtopk.launch import describe_workers


def test_local_workers_own_the_threads_they_were_given(client):
    workers = describe_workers(client)
    assert [worker.threads for worker in workers] == [1, 1]
    for name in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        assert set(client.run(os.getenv, name).values()) == {"1"}
