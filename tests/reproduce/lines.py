"""Results as lines of a CSV file, each kept as soon as it is there, and tables made of them."""

import argparse
import csv
import multiprocessing
import os
import platform
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np


def parse_arguments(name, doc):
    """Read the command line that all of these scripts have."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("config", nargs="?", type=Path, default=Path(f"jobs/reproduce/{name}.toml"))
    parser.add_argument("--out", type=Path, default=Path("build/reproduce"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    return parser.parse_args()


def read_config(path, out):
    """Read a TOML file, and make sure that what lies in `out` was made from the same one."""
    text = path.read_text(encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    copy = out / path.name
    if copy.exists() and copy.read_text(encoding="utf-8") != text:
        raise SystemExit(
            f"{copy} must be the same as {path}: the results beside it are those of another file. "
            "Remove them, or name another folder with --out."
        )
    copy.write_text(text, encoding="utf-8")
    return tomllib.loads(text)


def collect(path, keys, tasks, work, jobs):
    """Do the tasks that have no lines in the file yet, and return all of its lines.

    Parameters
    ----------
    path : Path
        Of the CSV file.
    keys : sequence of str
        What names a task: its own keys, and columns of its lines.
    tasks : list of dict
        The longest first, so that all processes end at about the same time.
    work : callable
        Takes a task and returns its lines, dicts with the same keys throughout, to which the
        seconds of processor time are added that the task took.
    jobs : int
        Processes; with 1 the work is done in this one.
    """
    done = {tuple(line[key] for key in keys) for line in read_lines(path)}
    missing = [task for task in tasks if tuple(str(task[key]) for key in keys) not in done]
    began = time.perf_counter()
    for lines in _do(missing, partial(_time, work), jobs):
        _append(path, lines)
        print(*(lines[0][key] for key in keys), flush=True)
    if missing:
        print(f"{len(missing)} tasks in {time.perf_counter() - began:.0f} s.")
    lines = read_lines(path)
    print(f"{path}: {sum(float(line['cpu_s']) for line in lines):.0f} s of processor time.")
    return lines


def _time(work, task):
    began = time.process_time()
    lines = work(task)
    # Spread over the lines, so that their sum is right.
    seconds = (time.process_time() - began) / len(lines)
    return [line | {"cpu_s": f"{seconds:.3f}"} for line in lines]


def _do(tasks, work, jobs):
    if jobs == 1:
        yield from map(work, tasks)
        return
    # Read by the libraries as a process starts: its matrix products are to take one core.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            for future in as_completed([pool.submit(work, task) for task in tasks]):
                yield future.result()
        finally:
            # After an error the others would be done first, and what they find be lost.
            pool.shutdown(cancel_futures=True)


def _append(path, lines):
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        if new:
            writer.writeheader()
        writer.writerows(lines)


def read_lines(path):
    """Return the lines of a CSV file as dicts of strings; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def group_lines(lines, *keys):
    """Return the lines by the values of some columns."""

    def key_of(line):
        return tuple(line[key] for key in keys)

    return {key: list(group) for key, group in groupby(sorted(lines, key=key_of), key_of)}


def format_mean(values, scale=100.0, digits=1):
    """Return the mean, and where there are several values their standard deviation."""
    values = scale * np.array(values, dtype=float)
    mean = f"{values.mean():.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std(ddof=1):.{digits}f}"


def write_tables(path, *tables):
    """Write Markdown tables, lists of rows of which the first is the header."""
    blocks = []
    for header, *rows in tables:
        lines = ["| " + " | ".join(map(str, row)) + " |" for row in (header, *rows)]
        lines.insert(1, "|" + "---|" * len(header))
        blocks.append("\n".join(lines))
    text = "\n\n".join([*blocks, f"Measured on {describe_machine()}."])
    path.write_text(text + "\n", encoding="utf-8")


def describe_machine():
    """Name the processor, its cores and the versions that matter."""
    info = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.machine()
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{processor}, {os.cpu_count()} cores, {versions}"
