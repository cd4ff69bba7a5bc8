"""Objective error and duality gap of solvers of the weighted Usunier loss, pass by pass.

    python -m tests.reproduce.frank_wolfe [jobs/reproduce/frank-wolfe.toml] [--out build/reproduce]

Writes some passes of every solver to frank-wolfe.csv, the table of jobs/reproduce/README.md to
frank-wolfe.md and a figure for each data set to frank-wolfe-SET.png. The solvers are run one after
another, in this process and with one thread; nothing else should run meanwhile, if the seconds are
to mean anything. A solver that is in frank-wolfe.csv already is not run again.
"""

from functools import partial
from itertools import product

import numpy as np

from dtopk.atomic import replace_when_complete
from dtopk.engine import ArrayRows, FitOptions, fit
from dtopk.losses import make_loss
from tests.reproduce.lines import (
    collect,
    format_mean,
    group_lines,
    parse_arguments,
    read_config,
    write_tables,
)

KEYS = ("set", "seed", "gamma", "lambda_n", "solver")
COLORS = {
    "PG": "#999999", "StdFW": "#e69f00", "LSFW": "#0072b2", "bundle": "#d55e00", "SDCA": "#009e73",
}  # fmt: skip
SHOWN = 40
"""Passes of a run that are written, about: as far apart as the run is long, in relative terms."""


def load_set(entry, folder, seed):
    """Draw half of a data set's rows, divided by the largest value."""
    with np.load(folder / entry["archive"]) as archive:
        X, y = archive["X"].astype(float), archive["y"]
    _, codes = np.unique(y, return_inverse=True)
    rows = np.random.default_rng(seed).permutation(len(X))[: len(X) // 2]
    return np.ascontiguousarray(X[rows] / entry["divide_by"]), codes[rows].astype(np.int32)


OPTIMA: dict[tuple[object, ...], float] = {}
"""Values at the optimum, by problem: the solvers of one problem come one after another."""


def trace_solver(config, folder, task):
    """Train once; return the least P and the gap to the greatest D so far, at some passes."""
    X, y = load_set(config["sets"][task["set"]], folder, task["seed"])
    rows = ArrayRows(X, y, int(y.max()) + 1)
    loss = make_loss("weighted_usunier", rho=config["rho"], gamma=task["gamma"], smoothing="moreau")
    common = {"C": 1 / task["lambda_n"], "dtype": "float64", "threads": 1, "seed": 0}
    solver = config["solvers"][task["solver"]]
    problem = tuple(task[key] for key in KEYS if key != "solver")
    if problem not in OPTIMA:
        to_the_end = FitOptions(**common, tol=config["optimum_tol"], max_epochs=20_000)
        OPTIMA[problem] = fit(rows, loss, to_the_end).certificate.primal
    scale = OPTIMA[problem]
    options = FitOptions(
        **common, tol=config["tol"], max_epochs=config["max_passes"], acceleration="auto", **solver
    )
    history = fit(rows, loss, options).history
    primal = np.minimum.accumulate([record.primal for record in history])
    gap = primal - np.maximum.accumulate([record.dual_value for record in history])
    wanted = np.unique(np.geomspace(1, len(history), SHOWN).round().astype(int)) - 1
    return [
        task
        | {
            "epoch": history[place].epoch,
            "seconds": f"{history[place].seconds:.4f}",
            "error": f"{primal[place] / scale - 1:.4e}",
            "gap": f"{gap[place] / primal[place]:.4e}",
        }
        for place in wanted
    ]


def make_table(lines, config):
    """Return what is left after the last pass, as mean and deviation over the seeds."""
    header = ["set", "gamma", "lambda n", *(f"{name}: {what}" for name in config["solvers"]
              for what in ("passes", "error", "gap"))]  # fmt: skip
    table = [header]
    grouped = group_lines(lines, "set", "gamma", "lambda_n", "solver")
    for name, gamma, scale in product(config["sets"], config["gamma"], config["lambda_n"]):
        row = [name, f"{gamma:g}", f"{scale:g}"]
        for solver in config["solvers"]:
            runs = group_lines(grouped[name, str(gamma), str(scale), solver], "seed").values()
            last = [max(run, key=lambda line: int(line["epoch"])) for run in runs]
            row.append(format_mean([line["epoch"] for line in last], scale=1.0, digits=0))
            for what in ("error", "gap"):
                row.append(f"{np.mean([float(line[what]) for line in last]):.1e}")
        table.append(row)
    return table


def draw_figure(lines, config, name, path):
    """Draw error and gap against passes and seconds, the first seed's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = list(product(config["gamma"], config["lambda_n"]))
    figure = Figure(figsize=(3.4 * len(cases), 9.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(cases), squeeze=False)
    grouped = group_lines(lines, *KEYS)
    seed = str(config["sets"][name]["seeds"][0])
    for column, (gamma, scale) in zip(axes.T, cases, strict=True):
        for solver in config["solvers"]:
            run = grouped[name, seed, str(gamma), str(scale), solver]
            points = sorted(run, key=lambda line: int(line["epoch"]))
            for ax, x, what in zip(
                column, ("epoch", "epoch", "seconds"), ("error", "gap", "gap"), strict=True
            ):
                values = np.maximum([float(point[what]) for point in points], 1e-9)
                ax.plot(
                    [float(point[x]) for point in points], values,
                    color=COLORS[solver], label=solver,
                )  # fmt: skip
                ax.set(xscale="log", yscale="log", ylim=(config["tol"] / 3, 3))
                ax.set_xlabel("passes over the rows" if x == "epoch" else "seconds")
                ax.grid(alpha=0.3)
        smooth = f"gamma = {gamma:g}" if gamma else "not smooth"
        column[0].set_title(f"{smooth}, lambda = {scale:g}/n", fontsize=10)
    for ax, label in zip(axes[:, 0], ("relative objective error", "relative gap", "relative gap"),
                         strict=True):  # fmt: skip
        ax.set_ylabel(label)
    axes[0, 0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"{name}, weighted Usunier loss, half of the rows, one thread", fontsize=10)
    with replace_when_complete(path) as file:
        figure.savefig(file, format="png", dpi=130)


def main():
    """Make what is missing, then table and figures."""
    arguments = parse_arguments("frank-wolfe", __doc__)
    config = read_config(arguments.config, arguments.out)
    run(config, arguments.config.parent, arguments.out)


def run(config, folder, out):
    """Trace every solver on every set.

    Parameters
    ----------
    config : dict
    folder : Path
        Where relative paths start.
    out : Path
    """
    tasks = [
        dict(zip(KEYS, (name, *values), strict=True))
        for name, entry in config["sets"].items()
        for values in product(
            entry["seeds"], config["gamma"], config["lambda_n"], config["solvers"]
        )
    ]
    work = partial(trace_solver, config, folder)
    lines = collect(out / "frank-wolfe.csv", KEYS, tasks, work, jobs=1)
    write_tables(out / "frank-wolfe.md", make_table(lines, config))
    for name in config["sets"]:
        draw_figure(lines, config, name, out / f"frank-wolfe-{name}.png")


if __name__ == "__main__":
    main()
