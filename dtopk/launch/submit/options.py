"""What a batch job, or pods, ask for, and how the run is looked after."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

FORMS = ("nodes", "workers")
DRIVERS = ("job", "here")
_SECRET = re.compile(
    r"\b(AWS_\w*|\w*(?:PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIALS?|API_KEY|ACCESS_KEY)\w*)\s*=",
    re.IGNORECASE,
)
_LINE_END = re.compile(r"[\r\n]")
OF_PODS = ("image", "namespace", "context", "env_from", "claim", "mount_path", "node_selector",
           "tolerations", "pod_extra")  # fmt: skip
"""Options that Kubernetes alone takes."""
OF_BATCH_JOBS = ("form", "driver", "walltime", "queue", "account", "interface",
                 "job_extra_directives", "job_directives_skip", "job_script_prologue")  # fmt: skip
"""Options that pods have nothing like."""


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """What a batch job asks for in the names of dask-jobqueue, or pods in those of Kubernetes.

    Raises
    ------
    ValueError
        If a value is out of its rule, or two do not go together.
    """

    form: str = "nodes"
    """'nodes': one job of several nodes, with scheduler, driver and workers; 'workers': a job for
    the driver and one for each worker."""
    nodes: int = 1
    """Nodes of the job, or jobs of workers."""
    cores: int = 0
    """Processor cores of a node, or of a job of workers; 0: not said."""
    processes: int = 1
    """Worker processes of a node, or of a job, which share its cores and memory."""
    memory_bytes: int = 0
    """Memory of a node, or of a job of workers; 0: not said."""
    driver_memory_bytes: int = 10**9
    """What of it driver and scheduler may take; with form 'workers', the memory of their job."""
    driver: str = "job"
    """Form 'workers': where the driver runs, 'job': in a batch job, 'here': on this machine."""
    walltime: str = ""
    """How long a job may take, as the batch system writes it; empty: what the queue says."""
    queue: str = ""
    """Queue, or partition, to submit to."""
    account: str = ""
    """Account, or project, that pays."""
    interface: str = ""
    """Network interface of the nodes by which their processes reach each other; empty: none but
    those of the same machine can."""
    local_directory: str = ""
    """Folder of the nodes for scratch; empty: the system's temporary one."""
    log_directory: str = ""
    """Folder that the logs are put under; empty: in the run folder."""
    job_extra_directives: tuple[str, ...] = ()
    """More directives, without the '#SBATCH' in front of them."""
    job_directives_skip: tuple[str, ...] = ()
    """Directives that have one of these texts in them are left out."""
    job_script_prologue: tuple[str, ...] = ()
    """Lines of shell that the script begins with."""
    dashboard_port: int = 8787
    """Port of Dask's pages, on 127.0.0.1 of the node of the scheduler."""
    warn_s: int = 120
    """Seconds before the end of the walltime at which the run is asked to commit and stop."""
    retries: int = 3
    """Times that a run is started again which failed, rather than was refused."""
    image: str = ""
    """Container image of all pods."""
    namespace: str = ""
    """Namespace of the pods; empty: that of the context."""
    context: str = ""
    """Context of the kubeconfig; empty: the current one."""
    env_from: tuple[str, ...] = ()
    """Names of Secrets, whose keys are variables of driver and workers."""
    claim: str = ""
    """Persistent volume claim that driver and workers mount; empty: none."""
    mount_path: str = "/data"
    """Where they mount it."""
    node_selector: tuple[str, ...] = ()
    """Labels that a node must have, each 'KEY=VALUE'."""
    tolerations: tuple[str, ...] = ()
    """Taints that pods tolerate, each 'KEY[=VALUE][:EFFECT]'."""
    pod_extra: tuple[str, ...] = ()
    """Lines of TOML that are merged into the spec of every pod."""

    def __post_init__(self) -> None:
        _check_choice("form", self.form, FORMS)
        _check_choice("driver", self.driver, DRIVERS)
        for name, least in (
            ("nodes", 1), ("cores", 0), ("processes", 1), ("memory_bytes", 0), ("retries", 0),
            ("warn_s", 1), ("driver_memory_bytes", 1), ("dashboard_port", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}.")
        if self.dashboard_port >= 2**16:
            raise ValueError(f"dashboard_port must be below 65536, got {self.dashboard_port!r}.")
        if self.cores and self.processes > self.cores:
            raise ValueError(
                f"processes must be at most cores = {self.cores}, got {self.processes}."
            )
        if self.driver == "here" and self.form != "workers":
            raise ValueError(
                f"driver must be 'job' with form {self.form!r}, got {self.driver!r}. With "
                "form 'workers' it can run on this machine."
            )
        self._check_lines()

    def _check_lines(self) -> None:
        """Refuse what would end up in a script and must not."""
        for name in ("walltime", "queue", "account", "interface"):
            value = getattr(self, name)
            if value != value.strip() or re.search(r"\s", value):
                raise ValueError(f"{name} must be one word, got {value!r}.")
        for name in ("job_extra_directives", "job_directives_skip"):
            for line in getattr(self, name):
                if not line.strip() or _LINE_END.search(line):
                    raise ValueError(f"{name} must be lines of text, got {line!r}.")
        for line in (*self.job_script_prologue, *self.job_extra_directives):
            found = _SECRET.search(line)
            if found:
                # Scripts and job files are kept, and read by others.
                raise ValueError(
                    f"job_script_prologue and job_extra_directives must hold no secrets, got one "
                    f"that sets {found[1]!r}. Set it in the environment of `dtopk submit`, which "
                    "the job gets."
                )

    @property
    def n_workers(self) -> int:
        """Worker processes that are asked for."""
        return self.nodes * self.processes

    @property
    def threads_per_worker(self) -> int:
        """Cores of each worker process."""
        return self.cores // self.processes

    @property
    def worker_memory_bytes(self) -> int:
        """What each worker process may take before it is killed."""
        kept = self.driver_memory_bytes if self.form == "nodes" else 0
        return (self.memory_bytes - kept) // self.processes

    def check_batch(self) -> None:
        """Refuse to submit what a batch system must be told and is not, or does not take.

        Raises
        ------
        ValueError
        """
        self.check_unset(OF_PODS, "a batch system: it is an option of 'kubernetes'")
        self.check_size()
        if self.worker_memory_bytes <= 0:
            raise ValueError(
                f"driver_memory must leave some of memory = {self.memory_bytes:,} bytes to the "
                f"workers of the node, got {self.driver_memory_bytes:,}."
            )
        if not self.interface and (self.nodes > 1 or self.form == "workers"):
            raise ValueError(
                "interface must be the network interface by which nodes reach each other, such "
                "as 'ib0', got ''. `ip -brief address` on a node lists them; 'lo' is for nodes "
                "that are one machine."
            )

    def check_size(self) -> None:
        """Refuse nodes, or pods, of which cores or memory are not said.

        Raises
        ------
        ValueError
        """
        if not self.cores:
            raise ValueError("cores must be the processor cores of a node, got 0.")
        if not self.memory_bytes:
            raise ValueError("memory must be that of a node, such as '60GB', got none.")

    def check_unset(self, names: Sequence[str], where: str) -> None:
        """Refuse options that would be of no effect.

        Parameters
        ----------
        names : sequence of str
            Of options.
        where : str
            Where they have none, for the message.

        Raises
        ------
        ValueError
        """
        defaults = SubmitOptions()
        for name in names:
            if getattr(self, name) != getattr(defaults, name):
                raise ValueError(
                    f"{name} must be left out for {where}, got {getattr(self, name)!r}."
                )


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
