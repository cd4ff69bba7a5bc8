"""Which workers a run gets, and what each of them owns."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("none", "local", "scheduler")
SCHEDULER_FILE_ENDING = ".json"
_ADDRESS = re.compile(r"(tcp|tls)://([^:/\[\]\s]+|\[[0-9A-Fa-f:.%\w]+\]):(\d{1,5})")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Which workers a run gets, and what each of them owns.

    Raises
    ------
    ValueError
        If a value is out of its rule, or two do not go together.
    """

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
    """Seconds to wait for the scheduler and so many workers, together."""
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
        for name, least in (
            ("workers", 1),
            ("threads_per_worker", 0),
            ("memory_per_worker_bytes", 0),
            ("min_workers", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}.")
        if not (math.isfinite(self.wait_s) and self.wait_s > 0):
            raise ValueError(f"wait_s must be a finite number above 0, got {self.wait_s!r}.")
        if self.kind == "local" and self.min_workers > self.workers:
            raise ValueError(
                f"min_workers must be at most workers = {self.workers} of a local cluster, got "
                f"{self.min_workers}."
            )
        self._check_scheduler()
        self._check_tls()

    def _check_scheduler(self) -> None:
        if self.kind != "scheduler":
            if self.scheduler:
                raise ValueError(
                    f"scheduler must be empty with kind {self.kind!r}, got {self.scheduler!r}. "
                    "To train on its workers, set kind to 'scheduler'."
                )
            return
        if self.scheduler.endswith(SCHEDULER_FILE_ENDING) and "://" not in self.scheduler:
            return
        if not is_address(self.scheduler):
            raise ValueError(
                "scheduler must be an address such as tcp://HOST:8786 or tls://HOST:8786, or the "
                f"path of a scheduler file, which ends in {SCHEDULER_FILE_ENDING}, got "
                f"{self.scheduler!r}."
            )

    def _check_tls(self) -> None:
        files = {name: getattr(self, name) for name in ("tls_ca", "tls_cert", "tls_key")}
        missing = [name for name, path in files.items() if not path]
        if 0 < len(missing) < len(files):
            raise ValueError(
                f"{missing[0]} must be given with the other two of tls_ca, tls_cert and tls_key, "
                "got none."
            )
        if self.kind == "scheduler" and is_address(self.scheduler):
            self.check_encryption(self.scheduler)

    def check_encryption(self, address: str) -> None:
        """Refuse an encrypted address without TLS files, and the reverse.

        Parameters
        ----------
        address : str
            Of the scheduler, as given or as its file says.
        """
        encrypted = address.startswith("tls://")
        if encrypted and not self.tls:
            raise ValueError(
                f"tls_ca must be given, with tls_cert and tls_key, for the scheduler at "
                f"{address!r}, got none."
            )
        if self.tls and not encrypted:
            raise ValueError(
                f"scheduler must have an address that starts with tls:// where TLS files are "
                f"given, got {address!r}. Start it with --protocol tls, or leave tls_ca, tls_cert "
                "and tls_key out."
            )

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted, and both ends show certificates."""
        return bool(self.tls_ca)


def is_address(text: str) -> bool:
    """Tell whether a text is the address of a scheduler, as Dask writes it."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[3]) < 2**16


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address that `is_address` takes."""
    match = _ADDRESS.fullmatch(address)
    assert match is not None
    return match[2].strip("[]"), int(match[3])


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
