"""Which workers a run gets, and what each of them owns."""

from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("none", "local", "scheduler")
_TLS_NAMES = ("tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Which workers a run gets, and what each of them owns."""

    kind: str = "none"
    """'none' (no workers: the run's own process does all), 'local' (processes of this machine) or
    'scheduler' (the workers of a Dask scheduler that runs already)."""
    workers: int = 2
    """Processes of a local cluster."""
    threads_per_worker: int = 0
    """Processor threads that each of them owns; 0: its share of the cores, at least 1."""
    memory_per_worker_bytes: int = 0
    """What each of them may take before it is killed, in bytes; 0: its share of what is free."""
    scheduler: str = ""
    """Address of a scheduler, tcp://HOST:PORT or tls://HOST:PORT, or the path of the file, ending
    in .json, that a scheduler wrote its address to."""
    min_workers: int = 1
    """Workers to wait for."""
    wait_s: float = 300.0
    """Seconds to wait for the scheduler and that many workers, together."""
    tls_ca: str = ""
    """Path of the certificate, in PEM, of the authority that signed the cluster's certificates;
    empty: no TLS."""
    tls_cert: str = ""
    """Path of the certificate to show, in PEM."""
    tls_key: str = ""
    """Path of its private key, in PEM."""
    dashboard: bool = True
    """Serve Dask's dashboard of a local cluster, to this machine alone."""

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, KINDS)
        for name, least in (("workers", 1), ("threads_per_worker", 0), ("min_workers", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}.")

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted, and both ends show certificates."""
        return bool(self.tls_ca)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
