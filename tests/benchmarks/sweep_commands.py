"""Time `dtopk sweep` beside a `dtopk train` of each of its settings.

    python tests/benchmarks/sweep_commands.py JOB.toml FOLDER [--every 1] [--set KEY=VALUE]

JOB is a job with a section [sweep]; FOLDER gets the runs, which are deleted as they end. Every
command is a process of its own, as a user calls it, without MLflow, and finds no page cache of the
store. With --every 4 each fourth setting alone is trained by itself, and the sum of all of them is
estimated from those.

`tests/benchmarks/sweep.py FOLDER` leaves a job of its sweep, sweep-CLASSES.toml. The table of
losses on the Letter data is jobs/letter-losses.toml, whose head says how its store is made.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from dtopk.job import load_sweep
from dtopk.job.files import job_to_toml
from dtopk.job.names import list_settings
from dtopk_storage import drop_page_cache


def run(store: str, command: str, job_path: Path, run_dir: Path) -> tuple[float, dict]:
    """Time a command, and return its answer."""
    drop_page_cache(store)
    arguments = [command, str(job_path), "--run-dir", str(run_dir), "--json"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "dtopk.cli", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - began
    shutil.rmtree(run_dir)
    return seconds, json.loads(done.stdout)


def measure(job, folder: Path, every: int) -> dict[str, object]:
    """Time a sweep, and some or all of its settings by themselves."""
    store = str(job.data.store)
    job = replace(job, tracking=replace(job.tracking, mlflow=False))
    job_path = folder / "sweep.toml"
    job_path.write_text(job_to_toml(job))
    together, answer = run(store, "sweep", job_path, folder / "sweep")
    settings = list_settings(job)[0]
    # What a sweep scores once, `dtopk train` would after every epoch.
    scored = (job.data.validation,) if job.data.validation else job.data.evaluate
    data = replace(job.data, validation="", evaluate=scored)
    alone, certified = [], 0
    for setting in settings[::every]:
        job_path = folder / "alone.toml"
        job_path.write_text(job_to_toml(replace(setting.make_job(job, "alone"), data=data)))
        seconds, result = run(store, "train", job_path, folder / "alone")
        alone.append(seconds)
        certified += result["certified"]
    total = sum(alone) / len(alone) * len(settings)
    return {
        "settings": len(settings),
        "models_trained_together": answer["n_trained"],
        "certified_together": sum(each["certified"] for each in answer["settings"]),
        "seconds_together": round(together, 1),
        "trained_alone": len(alone),
        "certified_alone": certified,
        "seconds_alone": round(total, 1),
        "of_the_sum": round(together / total, 3),
    }


def main():
    """Measure a job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    job = load_sweep(arguments.job, overrides=arguments.overrides)
    print(json.dumps(measure(job, arguments.folder, arguments.every)))


if __name__ == "__main__":
    main()
