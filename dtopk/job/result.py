"""What a job came to."""

from dataclasses import dataclass
from typing import Any

from dtopk.engine import EpochRecord
from dtopk.model import Model
from dtopk.solvers.certificate import Certificate
from dtopk_storage.paths import AnyPath


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a job came to, and where it lies."""

    run_dir: AnyPath
    """The run folder: a Path, or of an object store an ObjectPath."""
    model: Model
    """The model, as saved in the run folder."""
    certificate: Certificate
    """Primal and dual value of the model and duals as saved."""
    history: tuple[EpochRecord, ...]
    """What every epoch found."""
    solver: str
    """Name of the solver."""
    stop_reason: str
    """'tolerance', 'max_epochs', 'time_limit', 'interrupted', 'early_stopping' or 'callback'."""
    early_stopping: dict[str, Any]
    """'metric', as history.csv names it, 'patience', 'min_delta', 'best_epoch' and 'best_value', of
    which the last is None if it never was a number; empty without early stopping."""
    epochs: int
    """Passes over the training split."""
    seconds: float
    """Time that fitting took, in seconds, in all parts of a run that was taken up again."""
    n_samples: int
    """Rows of the training split."""
    topk_accuracy: dict[str, dict[int, float]]
    """Top-k accuracy by split and k, 0 to 1."""
    label_metrics: dict[str, dict[str, float]]
    """Of a multilabel model: the metrics by split and name; empty for others."""
    n_skipped: int
    """Rows of the training split that were left out for want of labels to rank."""
    duals_kept: bool
    """Whether the duals are in the run folder, for another run to start from."""
    resumable: bool
    """Whether the same job goes on with the run."""
    committed: bool
    """Whether the run has ever had a state to go on from; one that was asked to stop before starts
    again."""
    resumed_at: tuple[int, ...]
    """The epochs after which the run was taken up again."""
    written: tuple[AnyPath, ...]
    """Files and folders in the run folder."""
    mlflow: dict[str, str]
    """Tracking URI, experiment id and run id; empty if the run is not recorded."""

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values, for JSON."""
        return {
            "run_dir": str(self.run_dir),
            "model": str(self.run_dir / "model.npz"),
            "loss": self.model.loss,
            "loss_parameters": dict(self.model.loss_parameters),
            "solver": self.solver,
            "stop_reason": self.stop_reason,
            "early_stopping": self.early_stopping,
            "epochs": self.epochs,
            "seconds": self.seconds,
            "resumable": self.resumable,
            "committed": self.committed,
            "resumed_at": list(self.resumed_at),
            "primal": self.certificate.primal,
            "dual": self.certificate.dual_value,
            "duality_gap": self.certificate.duality_gap,
            "relative_gap": self.certificate.relative_gap,
            "tol": self.certificate.tol,
            "certified": self.certificate.certified,
            "n_samples": self.n_samples,
            "n_features": self.model.n_features,
            "n_classes": self.model.n_classes,
            "top_k_accuracy": self.topk_accuracy,
            **self._multilabel_fields(),
            "mlflow": self.mlflow,
        }

    def _multilabel_fields(self) -> dict[str, Any]:
        if self.model.target == "multiclass":
            return {}
        return {"label_metrics": self.label_metrics, "n_skipped": self.n_skipped}
