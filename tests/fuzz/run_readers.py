"""Readers of jobs, and of what a run or a sweep leaves in its folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dtopk.cli.run_info import describe_run
from dtopk.job import load_job
from dtopk.job.files import load_sweep
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.job.sweep_folder import SweepFolder
from dtopk.tracking.outbox import read_kept
from tests.fuzz.reader import Files, M, Reader, save_to_bytes
from tests.fuzz.storage_readers import make_models, make_states, repair

_JOB = """version = 1
[data]
store = "x.zarr"
train = "train"
validation = "test"
center = true
[model]
loss = "topk_hinge_alpha"
k = 2
gamma = 1.0
C = 10.0
fit_intercept = true
[solver]
tol = 1e-3
max_epochs = 20
dtype = "float64"
[resources]
memory_limit = "2GB"
[tracking]
mlflow = false
[output]
run_dir = "runs/{time}"
"""
_SWEEP = """[sweep]
loss = ["softmax", "topk_hinge_alpha"]
k = [1, 2]
C = [0.1, 1, 10]
metric = ["top_1"]
folds = 3
"""
_USHER = """[cluster]
kind = "local"
workers = 2
partitions = 2
[submit]
nodes = 2
walltime = "02:00:00"
"""


def _read_job(folder: Path) -> None:
    load_job(folder / "job.toml")


def _read_sweep(folder: Path) -> None:
    load_sweep(folder / "job.toml")


_RESULT = {
    "primal": 1.5, "dual": 1.25, "relative_gap": 0.1, "certified": False, "epochs": 3,
    "resumable": True, "committed": True, "complete": True,
}  # fmt: skip
_HISTORY = (
    "epoch,seconds,primal,dual_value,relative_gap,exact,test/top_1\n"
    "1,0.5,2.0,1.0,0.5,False,\n2,0.7,1.6,1.2,0.2,True,0.75\n"
)


def _run_seeds() -> list[Files]:
    record = json.dumps(asdict(RunRecord(id="a", started=1.0, state="state", version="0")))
    seeds: list[Files] = []
    for state in make_states():
        seeds.append(
            {
                "run/job.toml": _JOB.encode(),
                "run/run.json": record.encode(),
                "run/result.json": json.dumps(_RESULT).encode(),
                "run/history.csv": _HISTORY.encode(),
                "run/state/state.json": state["state/state.json"],
            }
        )
    return seeds


def _read_run(folder: Path) -> None:
    run = RunFolder(path=folder / "run")
    record = run.read_record()
    run.read_history()
    if record.state == "state":
        # A run has the absolute path of its state.
        run.write_record(RunRecord(**(asdict(record) | {"state": str(run.path / "state")})))
    describe_run(str(run.path), verify=False)
    run.has_ended()


def _sweep_seeds() -> list[Files]:
    result = {
        "name": "softmax/C-1", "solver": "sdca", "stop_reason": "tolerance", "epochs": 3,
        "seconds": 1.0, "primal": 1.5, "dual": 1.25, "duality_gap": 0.25, "relative_gap": 0.1,
        "certified": True, "splits": ["train"],
    }  # fmt: skip
    return [
        {
            "sweep/job.toml": (_JOB + _SWEEP).encode(),
            "sweep/sweep-run.json": json.dumps(asdict(RunRecord(id="a", started=1.0))).encode(),
            "sweep/sweep.json": json.dumps({"n_done": 1, "settings": [result]}).encode(),
            "sweep/settings/softmax/result.json": json.dumps(result).encode(),
            "sweep/settings/softmax/model.npz": make_models()[0]["model.npz"],
        }
    ]


@dataclass(frozen=True)
class _Unit:
    name: str = "softmax"


def _read_sweep_folder(folder: Path) -> None:
    sweep = SweepFolder(path=folder / "sweep")
    sweep.read_record()
    sweep.read_result()
    sweep.find_result(_Unit())


def _outbox_seeds() -> list[Files]:
    lines = [{"kind": "start", "version": 1, "run": "r"}, {"kind": "metrics", "values": {"a": 1.0}}]
    return [{"mlflow.jsonl": "".join(json.dumps(line) + "\n" for line in lines).encode()}]


def _cost_seeds() -> list[Files]:
    costs = np.ones((M, M)) - np.eye(M)
    job = '[model]\nloss = "structured_hinge"\nlabel_cost = "costs.{}"\n'
    text = "".join(",".join(map(str, row)) + "\n" for row in costs)
    return [
        {"job.toml": _with_costs(job.format("npy")), "costs.npy": save_to_bytes(np.save, costs)},
        {"job.toml": _with_costs(job.format("csv")), "costs.csv": text.encode()},
    ]


def _with_costs(model: str) -> bytes:
    return f'version = 1\n[data]\nstore = "x.zarr"\n{model}'.encode()


READERS = [
    Reader(
        name="job",
        make_seeds=lambda: [{"job.toml": (_JOB + more).encode()} for more in ("", _USHER)],
        read=_read_job,
    ),
    Reader(
        name="sweep_job",
        make_seeds=lambda: [{"job.toml": (_JOB + _SWEEP).encode()}],
        read=_read_sweep,
    ),
    Reader(name="run", make_seeds=_run_seeds, read=_read_run, repair=repair),
    Reader(name="sweep", make_seeds=_sweep_seeds, read=_read_sweep_folder),
    Reader(
        name="outbox",
        make_seeds=_outbox_seeds,
        read=lambda folder: read_kept(folder / "mlflow.jsonl"),
    ),
    Reader(name="label_cost", make_seeds=_cost_seeds, read=_read_job, fixed=("job.toml",)),
]
