"""The section of a job file that says where workers come from."""

from dataclasses import dataclass

from dtopk.job.checks import (
    JobValueError,
    check_above_zero,
    check_at_least,
    check_choice,
    check_not_negative,
    coerce_fields,
    parse_bytes,
)
from dtopk.launch import ClusterOptions
from dtopk.launch.options import KINDS

_BOTH_KEYS = {
    "scheduler": ("scheduler", "kind", "tls_ca", "tls_cert", "tls_key"),
    "tls_ca": ("tls_ca", "tls_cert", "tls_key", "scheduler"),
    "tls_cert": ("tls_ca", "tls_cert", "tls_key"),
    "tls_key": ("tls_ca", "tls_cert", "tls_key"),
    "min_workers": ("min_workers", "workers", "kind"),
}
"""Keys of [cluster] that have to do with an error about one of them."""


@dataclass(frozen=True, kw_only=True)
class ClusterSection:
    """Where the workers come from that training is spread over."""

    kind: str = "none"
    """'none': no workers, this process trains alone; 'local': processes of this machine;
    'scheduler': the workers of a Dask cluster that runs already. See deploy/README.md."""
    workers: int = 2
    """Processes of a local cluster."""
    threads_per_worker: int = 0
    """Processor threads of each of them; 0: its share of the cores, at least 1."""
    memory_per_worker: str = "auto"
    """Size such as '1.5GB' that each of them may take before it is killed; 'auto': its share of
    what is free."""
    scheduler: str = ""
    """Address of the scheduler, 'tcp://HOST:PORT' or 'tls://HOST:PORT', or the path of its
    scheduler file, which ends in .json; for kind 'scheduler'."""
    min_workers: int = 1
    """Workers to wait for."""
    wait_s: float = 300.0
    """Seconds to wait for the scheduler and so many workers, at most."""
    partitions: int = 0
    """Pieces that the rows are dealt to, each solved at the same time as the others; 0: as many as
    there are workers at the start. The result's last digits depend on it."""
    threads_per_partition: int = 0
    """Threads of a piece's matrix products; 0: those that a worker has at the start. The result's
    last digits depend on it."""
    round_timeout_s: float = 0.0
    """Seconds that a round may take before the workers that are missing count as lost; 0: chosen
    from the rounds before."""
    checkpoint_s: float = 60.0
    """Seconds after which the state is saved, at the end of a round; 0: every round."""
    tls_ca: str = ""
    """Path of the certificate of the authority that signed the cluster's certificates; empty: no
    TLS. With it, tls_cert and tls_key are needed, and a scheduler that speaks TLS."""
    tls_cert: str = ""
    """Path of the certificate that this process shows."""
    tls_key: str = ""
    """Path of its private key, which has no password."""
    dashboard: bool = True
    """Serve Dask's pages about a local cluster, to this machine alone; they need bokeh."""

    def __post_init__(self) -> None:
        coerce_fields(self, "cluster")
        check_choice("cluster.kind", self.kind, KINDS)
        check_at_least("cluster.workers", self.workers, 1)
        check_at_least("cluster.threads_per_worker", self.threads_per_worker, 0)
        check_at_least("cluster.min_workers", self.min_workers, 1)
        check_above_zero("cluster.wait_s", self.wait_s)
        check_at_least("cluster.partitions", self.partitions, 0)
        check_at_least("cluster.threads_per_partition", self.threads_per_partition, 0)
        check_not_negative("cluster.round_timeout_s", self.round_timeout_s)
        check_not_negative("cluster.checkpoint_s", self.checkpoint_s)
        try:
            self.make_options()
        except JobValueError:
            raise
        except ValueError as error:
            name = str(error).partition(" ")[0]
            keys = (f"cluster.{key}" for key in _BOTH_KEYS[name])
            raise JobValueError(f"cluster.{error}", *keys) from error

    def make_options(self) -> ClusterOptions:
        """Return what has to do with where the workers come from, for `open_cluster`."""
        memory = 0
        if self.memory_per_worker != "auto":
            memory = parse_bytes("cluster.memory_per_worker", self.memory_per_worker)
        return ClusterOptions(
            kind=self.kind,
            workers=self.workers,
            threads_per_worker=self.threads_per_worker,
            memory_per_worker_bytes=memory,
            scheduler=self.scheduler,
            min_workers=self.min_workers,
            wait_s=self.wait_s,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            dashboard=self.dashboard,
        )
