"""What a training job is: one frozen dataclass a section of the job file."""

import re
from dataclasses import dataclass, field

from dtopk.evaluation import LABEL_METRICS, check_metric
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
from dtopk.launch.submit import SubmitOptions
from dtopk_storage import open_run_state
from dtopk_storage.objects import has_password
from dtopk_storage.paths import as_path

JOB_VERSION = 1
"""The newest version of the job file that this program reads."""


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """Where the features lie and which rows serve for what."""

    store: str = ""
    """Path of the feature store, or its address, such as 's3://bucket/features.zarr'. A relative
    path in a job file starts at the file's folder."""
    train: str = "train"
    """Split that the model is trained on."""
    validation: str = ""
    """Split whose top-k accuracy is taken after every epoch, and on which the threshold of a
    multilabel model is chosen; empty: none."""
    evaluate: tuple[str, ...] = ("test",)
    """Splits whose top-k accuracy is reported at the end."""
    center: bool = False
    """Subtract each feature's mean, as measured over the training split at ingest."""
    scale: bool = False
    """Divide by each feature's standard deviation, as measured at ingest."""
    threshold_metric: str = ""
    """Metric of a multilabel model that its threshold makes best on the split `validation`:
    'f1_samples', 'f1_macro', 'f1_micro', 'accuracy', 'subset_accuracy' or 'hamming_loss'; empty:
    the threshold is 0."""
    skip_unlabelled: bool = False
    """Leave out rows of a multilabel store that have none of the labels, or all of them, where the
    loss cannot use them; otherwise they are an error."""

    def __post_init__(self) -> None:
        coerce_fields(self, "data")
        _check_path("data.store", self.store)
        if not self.train:
            raise JobValueError("data.train must name a split, got ''.", "data.train")
        if self.threshold_metric:
            check_choice("data.threshold_metric", self.threshold_metric, LABEL_METRICS)
            if not self.validation:
                raise JobValueError(
                    "data.validation must name the split that the threshold is chosen on, got ''.",
                    "data.validation",
                    "data.threshold_metric",
                )


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The problem that is solved: its loss and its regularization."""

    loss: str = "softmax"
    """Name of the loss; `dtopk losses` lists them."""
    k: int = 1
    """The k of a top-k loss, 1 to n_classes - 1."""
    gamma: float = 0.0
    """Smoothing of a hinge loss; 0: not smoothed. 'smooth_hinge_ova' needs one above 0."""
    smoothing: str = "lapin"
    """Form of the smoothing: 'lapin' or 'moreau'. They are two different losses."""
    rho: tuple[float, ...] = ()
    """Weights of the largest, second largest, ... margin, for a loss that takes them; empty: 1
    for the largest."""
    label_cost: str = ""
    """Path of a .npy or .csv file with a square matrix of numbers: what naming class j costs where
    i is true, row i, column j, both in the order of the store's classes, for 'structured_hinge';
    empty: 1 for every mistake."""
    C: float = 1.0
    """Weight of the loss against half the squared norm of W: C = 1/(lambda n_samples)."""
    fit_intercept: bool = False
    """Add a constant feature, whose weights are penalised as all others are."""
    intercept_scaling: float = 1.0
    """Value of the constant feature; larger: the intercept is penalised less."""
    class_weight: str = ""
    """'balanced': weigh rows by the weight of all rows / (n_classes * weight of their class's
    rows), counting the classes that have rows; empty: 1 each."""

    def __post_init__(self) -> None:
        coerce_fields(self, "model")
        check_at_least("model.k", self.k, 1)
        check_not_negative("model.gamma", self.gamma)
        check_choice("model.smoothing", self.smoothing, ("lapin", "moreau"))
        check_above_zero("model.C", self.C)
        check_above_zero("model.intercept_scaling", self.intercept_scaling)
        check_choice("model.class_weight", self.class_weight, ("", "balanced"))


@dataclass(frozen=True, kw_only=True)
class SolverSection:
    """How the problem is solved, and when the solver stops."""

    name: str = "auto"
    """Name of the solver: 'sdca', 'frank_wolfe', 'frank_wolfe_fixed', 'block_frank_wolfe', 'lbfgs',
    'gradient_descent' or 'pegasos', of which `dtopk losses` lists those that serve a loss; 'auto'
    takes the one that suits it."""
    tol: float = 1e-3
    """Relative duality gap, below 1, at which the model counts as optimal and training stops."""
    max_epochs: int = 200
    """Passes over the training split after which training stops all the same."""
    time_limit_s: float = 0.0
    """Seconds after which training stops all the same, to be certified by one more pass; counted
    anew where a run is taken up again; 0: no limit."""
    dtype: str = "float32"
    """Floating-point type of the scores and weights: 'float32' or 'float64'."""
    block_size: int = 0
    """Rows that are solved together; 0: chosen from the sizes of the problem."""
    seed: int = 0
    """Seed of the order in which rows are visited."""
    acceleration: str = "auto"
    """Accelerated outer loop of SDCA: 'auto', as strong as it pays, or 'off'."""
    atoms: int = -1
    """Directions that 'frank_wolfe' keeps apart, to take the best mixture of them: -1 as many as
    pay; 0 none, which leaves the plain method with exact line search."""
    warm_start: str = ""
    """Run folder whose duals, or model file whose weights training starts from, or the address of
    one; empty: start at zero. The rows or features must be the same; loss and C may differ."""

    def __post_init__(self) -> None:
        coerce_fields(self, "solver")
        check_above_zero("solver.tol", self.tol)
        if self.tol >= 1:
            # Zero weights have a relative gap of 1: it would certify anything.
            raise JobValueError(f"solver.tol must be below 1, got {self.tol!r}.", "solver.tol")
        _check_path("solver.warm_start", self.warm_start)
        check_at_least("solver.max_epochs", self.max_epochs, 1)
        check_not_negative("solver.time_limit_s", self.time_limit_s)
        check_choice("solver.dtype", self.dtype, ("float32", "float64"))
        check_at_least("solver.block_size", self.block_size, 0)
        check_at_least("solver.seed", self.seed, 0)
        check_at_least("solver.atoms", self.atoms, -1)
        check_choice("solver.acceleration", self.acceleration, ("auto", "off"))


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingSection:
    """When training stops because a metric of the validation split gets no better."""

    metric: str = ""
    """Metric of the split `data.validation`: 'top_k_accuracy' with a number k from 1 to n_classes -
    1, such as 'top_5_accuracy', or of a multilabel store also 'rank_loss' or
    'mean_average_precision'; empty: training stops at its tolerance alone."""
    patience: int = 5
    """Epochs in a row in which it has not got better than ever before, after which training stops,
    to be certified by one more pass. The model is that of the last epoch."""
    min_delta: float = 0.0
    """By more than which a better value differs."""

    def __post_init__(self) -> None:
        coerce_fields(self, "early_stopping")
        check_at_least("early_stopping.patience", self.patience, 1)
        check_not_negative("early_stopping.min_delta", self.min_delta)
        if self.metric:
            try:
                check_metric("early_stopping.metric", self.metric)
            except ValueError as error:
                raise JobValueError(str(error), "early_stopping.metric") from error
        given = [
            key for key in ("patience", "min_delta")
            if not self.metric and getattr(self, key) != getattr(type(self), key)
        ]  # fmt: skip
        if given:
            raise JobValueError(
                f"early_stopping.{given[0]} must go with early_stopping.metric, got "
                f"{getattr(self, given[0])!r} without.",
                f"early_stopping.{given[0]}",
                "early_stopping.metric",
            )


@dataclass(frozen=True, kw_only=True)
class ResourcesSection:
    """What of the machine training may use."""

    threads: int = 0
    """Processor threads; 0: all. The result's last digits depend on it."""
    memory_limit: str = "auto"
    """Size such as '8GB' above which features and duals are streamed from disk; 'auto':
    what the machine has free."""

    def __post_init__(self) -> None:
        coerce_fields(self, "resources")
        check_at_least("resources.threads", self.threads, 0)
        if self.memory_limit != "auto":
            parse_bytes("resources.memory_limit", self.memory_limit)

    @property
    def memory_limit_bytes(self) -> int:
        """The limit in bytes; 0 for 'auto'."""
        if self.memory_limit == "auto":
            return 0
        return parse_bytes("resources.memory_limit", self.memory_limit)


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
    """Folder under which the logs of each run have a folder; empty: in the run folder, and for
    Kubernetes, or a run folder in an object store, the folder 'runs' of the working directory."""
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


@dataclass(frozen=True, kw_only=True)
class OutputSection:
    """What training leaves on disk."""

    run_dir: str = "runs/{time}"
    """Folder of the run, or address such as 's3://bucket/runs/{time}', which must be new or empty,
    or hold the same job's run before it reached its tolerance: that one goes on. '{time}' stands
    for the time of the start, as in 20260131-235959. A relative path in a job file starts at the
    file's folder."""
    save_dual: bool = True
    """Keep the dual variables: a later run can start from them, and they prove the certificate."""
    state_url: str = ""
    """Folder, or address such as 's3://bucket/states', under which the state of the run is kept
    until its tolerance is reached; empty: in the run folder."""

    def __post_init__(self) -> None:
        coerce_fields(self, "output")
        if not self.run_dir:
            raise JobValueError("output.run_dir must name a folder, got ''.", "output.run_dir")
        _check_path("output.run_dir", self.run_dir)
        if self.state_url:
            _check_state_url(self.state_url)


def _check_path(key: str, path: str) -> None:
    """Refuse what looks like an address and is none of an object store, or has credentials."""
    try:
        as_path(path, name=key)
    except ValueError as error:
        raise JobValueError(str(error), key) from error


def _check_state_url(url: str) -> None:
    try:
        open_run_state(url)
    except ValueError as error:
        raise JobValueError(f"output.state_url: {error}", "output.state_url") from error


_ALIAS = re.compile(r"(?!latest$|v\d+$)[\w-]+", re.IGNORECASE | re.ASCII)
"""What MLflow takes as the alias of a model's version."""


@dataclass(frozen=True, kw_only=True)
class TrackingSection:
    """Where the run is recorded beside its folder."""

    mlflow: bool = True
    """Record the run with MLflow."""
    uri: str = ""
    """MLflow tracking URI; empty: the environment's MLFLOW_TRACKING_URI, or else the SQLite
    file mlflow.db beside the run folder."""
    experiment: str = "dtopk"
    """Name of the MLflow experiment."""
    run_name: str = ""
    """Name of the MLflow run; empty: the name of the run folder."""
    register_as: str = ""
    """Name in MLflow's model registry that the model becomes a new version of, if the run is
    certified; empty: none."""
    alias: str = ""
    """Alias, such as 'champion', that points to that version from then on; empty: none does."""
    wait_s: float = 30.0
    """Seconds that the end of a run waits for MLflow, at most; what it has not taken by then is
    kept in the run folder, and `dtopk track` sends it."""

    def __post_init__(self) -> None:
        coerce_fields(self, "tracking")
        check_not_negative("tracking.wait_s", self.wait_s)
        self._check_registration()
        if has_password(self.uri):
            raise JobValueError(
                "tracking.uri must be an address without credentials, got one with a password. "
                "Leave it out and set MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, in the environment.",
                "tracking.uri",
            )
        if not self.experiment:
            raise JobValueError(
                "tracking.experiment must name an experiment, got ''.", "tracking.experiment"
            )

    def _check_registration(self) -> None:
        if set(self.register_as) & set("/:'"):
            raise JobValueError(
                "tracking.register_as must have no slash, colon or quote in it, got "
                f"{self.register_as!r}.",
                "tracking.register_as",
            )
        if self.alias and not self.register_as:
            raise JobValueError(
                f"tracking.alias must go with tracking.register_as, got {self.alias!r} without.",
                "tracking.alias",
                "tracking.register_as",
            )
        if self.alias and not _ALIAS.fullmatch(self.alias):
            raise JobValueError(
                "tracking.alias must be of letters, digits, '-' and '_', not 'latest' and not such "
                f"as 'v1', got {self.alias!r}.",
                "tracking.alias",
            )


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """A training job, every value in its place."""

    data: DataSection = field(default_factory=DataSection)
    """Where the features lie and which rows serve for what."""
    model: ModelSection = field(default_factory=ModelSection)
    """The problem that is solved."""
    solver: SolverSection = field(default_factory=SolverSection)
    """How it is solved, and when the solver stops."""
    early_stopping: EarlyStoppingSection = field(default_factory=EarlyStoppingSection)
    """When training stops because a metric of the validation split gets no better."""
    resources: ResourcesSection = field(default_factory=ResourcesSection)
    """What of the machine training may use."""
    cluster: ClusterSection = field(default_factory=ClusterSection)
    """Where the workers come from that training is spread over."""
    submit: SubmitSection = field(default_factory=SubmitSection)
    """What `dtopk submit` asks a batch system for."""
    output: OutputSection = field(default_factory=OutputSection)
    """What training leaves on disk."""
    tracking: TrackingSection = field(default_factory=TrackingSection)
    """Where the run is recorded beside its folder."""

    def __post_init__(self) -> None:
        if self.early_stopping.metric and not self.data.validation:
            raise JobValueError(
                "data.validation must name the split that early_stopping.metric is taken on, got "
                "''.",
                "data.validation",
                "early_stopping.metric",
            )
