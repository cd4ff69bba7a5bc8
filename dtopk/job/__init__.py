"""Jobs: what a job file says, and the training that it asks for."""

from dtopk.job.calibration import CalibrationResult, calibrate_model
from dtopk.job.cluster_config import ClusterSection
from dtopk.job.config import (
    DataSection,
    EarlyStoppingSection,
    ModelSection,
    OutputSection,
    ResourcesSection,
    SolverSection,
    TrackingSection,
    TrainJob,
)
from dtopk.job.files import job_from_dict, job_to_dict, job_to_toml, load_job, load_sweep
from dtopk.job.result import TrainResult
from dtopk.job.sweep_config import Setting, SweepJob, SweepSection
from dtopk.job.sweep_result import BestSetting, SettingResult, SweepResult
from dtopk.job.sweeping import SweepWatcher, sweep
from dtopk.job.training import train

__all__ = [
    "BestSetting",
    "CalibrationResult",
    "ClusterSection",
    "DataSection",
    "EarlyStoppingSection",
    "ModelSection",
    "OutputSection",
    "ResourcesSection",
    "Setting",
    "SettingResult",
    "SolverSection",
    "SweepJob",
    "SweepResult",
    "SweepSection",
    "SweepWatcher",
    "TrackingSection",
    "TrainJob",
    "TrainResult",
    "calibrate_model",
    "job_from_dict",
    "job_to_dict",
    "job_to_toml",
    "load_job",
    "load_sweep",
    "sweep",
    "train",
]
