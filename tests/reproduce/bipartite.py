"""Time of the projection onto the bipartite simplex, by variable fixing and by sorting.

    python -m tests.reproduce.bipartite [jobs/reproduce/bipartite.toml] [--out build/reproduce]

Writes a line for each size to bipartite.csv, and the table of jobs/reproduce/README.md to
bipartite.md. Nothing else should run meanwhile.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numba import njit

from dtopk.kernels.bipartite import project_bipartite, project_bipartite_by_sorting
from tests.reproduce.lines import collect, parse_arguments, read_config, write_tables

KEYS = ("m", "k", "radius")


@njit(cache=True)
def project_by_fixing(b, c, heights, radius, p, n):
    """Project the rows, without a call from Python for each."""
    for i in range(len(b)):
        project_bipartite(b[i], c[i], heights[i], radius, p[i], n[i])


@njit(cache=True)
def project_by_sorting(b, c, heights, radius, p, n):
    """Project the rows, without a call from Python for each."""
    for i in range(len(b)):
        project_bipartite_by_sorting(b[i], c[i], heights[i], radius, p[i], n[i])


def sort_only(b, c, heights, radius, p, n):
    """Sort both sides with numpy, the fastest sort at hand: no projection by sorting takes less."""
    p[:], n[:] = b, c
    p.sort(axis=1)
    n.sort(axis=1)


WAYS: dict[str, Callable[..., None]] = {
    "fixing": project_by_fixing,
    "sorting": project_by_sorting,
    "numpy_sort": sort_only,
}


def draw_problems(m, k, n_problems, seed):
    """Draw standard normal rows, each side less its largest entry, as the kernels take them.

    Returns
    -------
    b : ndarray of shape (n_problems, k), float64
    c : ndarray of shape (n_problems, m - k), float64
    heights : ndarray of shape (n_problems,), float64
        The sum of the entries that were subtracted.
    """
    rng = np.random.default_rng(seed)
    b, c = rng.standard_normal((n_problems, k)), rng.standard_normal((n_problems, m - k))
    tops = b.max(axis=1, keepdims=True), c.max(axis=1, keepdims=True)
    return b - tops[0], c - tops[1], (tops[0] + tops[1])[:, 0]


def time_size(config, task):
    """Time all ways on the same problems, turn about; check that the projections agree."""
    m, k, radius = task["m"], task["k"], task["radius"]
    n_problems = max(config["least"], config["entries"] // m)
    problems = (*draw_problems(m, k, n_problems, config["seed"]), radius)
    answers = {name: (np.empty((n_problems, k)), np.empty((n_problems, m - k))) for name in WAYS}
    for name, way in WAYS.items():
        way(*problems, *answers[name])
    pairs = zip(answers["fixing"], answers["sorting"], strict=True)
    difference = max(float(np.abs(x - y).max()) for x, y in pairs)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(config["turns"]):
        for name, way in WAYS.items():
            began = time.perf_counter()
            way(*problems, *answers[name])
            seconds[name].append((time.perf_counter() - began) / n_problems)
    # The least: whatever else the machine does makes a turn longer, never shorter.
    least = {name: f"{1e6 * min(values):.2f}" for name, values in seconds.items()}
    return [task | least | {"difference": f"{difference:.1e}"}]


def make_table(lines):
    """Return microseconds a projection, and how many times longer sorting takes."""
    table = [
        ["m", "labels", "radius", "fixing, µs", "sorting, µs", "numpy's sort alone, µs", "ratios"]
    ]
    for line in lines:
        times = [line[name] for name in WAYS]
        ratios = [f"{float(line[name]) / float(line['fixing']):.1f}" for name in list(WAYS)[1:]]
        table.append([line["m"], line["k"], line["radius"], *times, ", ".join(ratios)])
    return table


def main():
    """Make what is missing, then the table."""
    arguments = parse_arguments("bipartite", __doc__)
    run(read_config(arguments.config, arguments.out), arguments.out)


def run(config, out):
    """Time every size, in this process.

    Parameters
    ----------
    config : dict
    out : Path
    """
    tasks = [
        {"m": m, "k": k, "radius": radius}
        for radius in config["radius"]
        for m in config["m"]
        for k in (config["labels"], m // 2)
    ]
    lines = collect(out / "bipartite.csv", KEYS, tasks, partial(time_size, config), jobs=1)
    write_tables(out / "bipartite.md", make_table(lines))


if __name__ == "__main__":
    main()
