"""A few schedules of faults on a disk, by the bench's own command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.faults.bench import choose_operations
from tests.faults.schedule import draw_schedule
from tests.faults.soak import find_trend

ROOT = Path(__file__).parents[2]
SEEDS = (*range(14), 5021, 5110, 5201, 7037)
"""Some drawn, and those that have shown defects."""
BENCH_S = 240.0
"""Seconds for all of them, on a machine with other work, where the kernels are compiled first."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Carry the schedules out in a process of their own, and read what came of them, by seed."""
    folder = tmp_path_factory.mktemp("bench")
    seeds = map(str, SEEDS)
    command = ["tests.faults.bench", "--place", "disk", "--json", folder / "out.json", "--only"]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command), *seeds],
        cwd=ROOT, timeout=BENCH_S, capture_output=True, text=True,
    )  # fmt: skip
    assert (folder / "out.json").is_file(), done.stdout + done.stderr
    found = json.loads((folder / "out.json").read_text())
    assert (done.returncode == 0) == (found["well"] == found["schedules"])
    return {report["schedule"]["seed"]: report for report in found["reports"]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_promises_are_kept_whatever_happens(reports, seed):
    report = reports[seed]
    assert report["broken"] == [], report
    assert len(report["ends"]) >= 1


@pytest.mark.slow
def test_faults_at_a_step_and_of_files_came_about(reports):
    """Schedules that do no harm would find nothing; a signal may come after a command's end."""
    came = {kind for report in reports.values() for kind in report["came"]}
    assert {"bit flipped", "disk error", "file cut", "kill at step", "slow disk"} <= came


def test_schedule_is_that_of_its_seed():
    names = choose_operations(["disk"], None)
    assert draw_schedule(7, names) == draw_schedule(7, names)
    assert draw_schedule(7, names) != draw_schedule(8, names)
    assert all(draw_schedule(seed, names).operation in names for seed in range(50))


@pytest.mark.parametrize(("rise", "is_flat"), [(4.9, True), (5.1, False), (-50.0, True)])
def test_trend_is_flat_up_to_a_twentieth_of_the_mean(rise, is_flat):
    """What comes in the first third, where caches fill, does not count."""
    seconds = np.arange(91.0)
    values = np.where(seconds < 30, 1.0, 100 + rise * (seconds - 60) / 60)
    trend = find_trend(seconds, values, floor=1.0)
    assert trend.rise == pytest.approx(rise)
    assert trend.is_flat == is_flat
