"""Jobs: what a job file says, and the training that it asks for."""

from dtopk.job.config import (
    ClusterSection,
    DataSection,
    ModelSection,
    OutputSection,
    ResourcesSection,
    SolverSection,
    TrackingSection,
    TrainJob,
)
from dtopk.job.files import job_from_dict, job_to_dict, job_to_toml, load_job
from dtopk.job.result import TrainResult
from dtopk.job.training import train

__all__ = [
    "ClusterSection",
    "DataSection",
    "ModelSection",
    "OutputSection",
    "ResourcesSection",
    "SolverSection",
    "TrackingSection",
    "TrainJob",
    "TrainResult",
    "job_from_dict",
    "job_to_dict",
    "job_to_toml",
    "load_job",
    "train",
]
