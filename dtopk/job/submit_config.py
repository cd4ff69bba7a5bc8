"""The section of a job file that says what is asked of a batch system, or of Kubernetes."""

from dataclasses import dataclass

from dtopk.job.checks import JobValueError, coerce_fields, parse_bytes
from dtopk.launch.submit import SubmitOptions

_SUBMIT_KEYS = {
    "processes": ("processes", "cores"),
    "driver": ("driver", "form"),
    "driver_memory": ("driver_memory", "memory", "processes"),
    "interface": ("interface", "nodes", "form"),
    "job_script_prologue": ("job_script_prologue", "job_extra_directives"),
}
"""Keys of [submit] that have to do with an error about one of them, where it is not that alone."""


@dataclass(frozen=True, kw_only=True)
class SubmitSection:
    """What `dtopk submit` asks a batch system for, in the names of dask-jobqueue, or Kubernetes."""

    form: str = "nodes"
    """'nodes': one job of several nodes, with scheduler, driver and workers (SLURM alone);
    'workers': a job for the driver, and one for each group of workers. See deploy/README.md."""
    nodes: int = 1
    """Nodes of the job, or jobs of workers, or their pods."""
    cores: int = 0
    """Processor cores of a node, or of a job or pod of workers; all but 'local' must be told."""
    processes: int = 1
    """Worker processes of a node, or of a job or pod, which share its cores and memory."""
    memory: str = ""
    """Size such as '60GB': the memory of a node, or of a job or pod of workers; all but 'local'
    must be told."""
    driver_memory: str = "1GB"
    """What of it driver and scheduler may take, which run on the first node; with form 'workers',
    the memory of their own job; on Kubernetes that of the driver's pod, and of the scheduler's."""
    driver: str = "job"
    """Form 'workers': where the driver runs, 'job': in a batch job; 'here': on the machine of
    `dtopk submit`, in the background."""
    walltime: str = ""
    """How long a job may take, as the batch system writes it, such as '04:00:00'; empty: what the
    queue says."""
    queue: str = ""
    """Queue, which SLURM calls a partition; empty: the default one."""
    account: str = ""
    """Account, or project, that pays; empty: the default one."""
    interface: str = ""
    """Network interface, such as 'ib0', by which the processes of different nodes reach each
    other; empty: they listen to their own machine alone."""
    local_directory: str = ""
    """Folder of the nodes for scratch; empty: the system's temporary one."""
    log_directory: str = ""
    """Folder under which the logs of each run have a folder, with the script where the run folder
    is not on a disk of this machine; empty: in the run folder, and for Kubernetes, or a run folder
    in an object store, the folder 'runs' of the working directory."""
    job_extra_directives: tuple[str, ...] = ()
    """More directives for the batch system, such as ['--constraint=avx512']."""
    job_directives_skip: tuple[str, ...] = ()
    """Texts; a directive of dtopk's with one of them in it is left out."""
    job_script_prologue: tuple[str, ...] = ()
    """Lines of shell to begin with, such as ['module load python']. They must hold no secrets."""
    dashboard_port: int = 8787
    """Port of Dask's pages, on 127.0.0.1 of the node of the scheduler; another one if it is
    taken. On Kubernetes that of your own machine."""
    warn_s: int = 120
    """Seconds before the end of the walltime at which the run commits, stops, and is put in the
    queue again (SLURM), or that it has to commit before its pod is killed (Kubernetes)."""
    retries: int = 3
    """Times that a run which failed is started again: in a row (SLURM), in all (Kubernetes)."""
    image: str = ""
    """Container image of all pods, such as 'registry.example/dtopk:1'; this key and those below are
    for Kubernetes alone."""
    namespace: str = ""
    """Namespace of the pods; empty: that of the context."""
    context: str = ""
    """Context of the kubeconfig, which names the cluster; empty: the current one."""
    env_from: tuple[str, ...] = ()
    """Names of Secrets of the namespace, whose keys are environment variables of driver and
    workers."""
    claim: str = ""
    """Persistent volume claim, with store and run folder, that driver and workers mount; empty:
    both are in an object store."""
    mount_path: str = "/data"
    """Where the claim is mounted, which the paths of the job begin with."""
    node_selector: tuple[str, ...] = ()
    """Labels that the nodes must have, such as ['kubernetes.io/arch=amd64']."""
    tolerations: tuple[str, ...] = ()
    """Taints of nodes that the pods tolerate, each 'KEY', 'KEY:EFFECT' or 'KEY=VALUE:EFFECT', such
    as ['dedicated=training:NoSchedule']."""
    pod_extra: tuple[str, ...] = ()
    """Lines of TOML that are merged into the spec of every pod, such as ["serviceAccountName =
    'dtopk'"]."""

    def __post_init__(self) -> None:
        coerce_fields(self, "submit")
        try:
            self.make_options()
        except JobValueError:
            raise
        except ValueError as error:
            raise self.blame(error) from error

    def blame(self, error: ValueError) -> JobValueError:
        """Say of an error about options which keys of the section it is about."""
        name = str(error).partition(" ")[0].replace("_bytes", "")
        keys = (f"submit.{key}" for key in _SUBMIT_KEYS.get(name, (name,)))
        return JobValueError(f"submit.{error}", *keys)

    def make_options(self) -> SubmitOptions:
        """Return what a back end of `dtopk submit` takes."""
        memory = parse_bytes("submit.memory", self.memory) if self.memory else 0
        return SubmitOptions(
            form=self.form,
            nodes=self.nodes,
            cores=self.cores,
            processes=self.processes,
            memory_bytes=memory,
            driver_memory_bytes=parse_bytes("submit.driver_memory", self.driver_memory),
            driver=self.driver,
            walltime=self.walltime,
            queue=self.queue,
            account=self.account,
            interface=self.interface,
            local_directory=self.local_directory,
            log_directory=self.log_directory,
            job_extra_directives=self.job_extra_directives,
            job_directives_skip=self.job_directives_skip,
            job_script_prologue=self.job_script_prologue,
            dashboard_port=self.dashboard_port,
            warn_s=self.warn_s,
            retries=self.retries,
            image=self.image,
            namespace=self.namespace,
            context=self.context,
            env_from=self.env_from,
            claim=self.claim,
            mount_path=self.mount_path,
            node_selector=self.node_selector,
            tolerations=self.tolerations,
            pod_extra=self.pod_extra,
        )
