"""Count the passes over the data that a certificate takes, by scheme, C and number of partitions.

    python tests/benchmarks/passes.py [jobs/passes.toml] [--out build/passes] [--only SET ...]
    python tests/benchmarks/passes.py jobs/solvers.toml --out build/solvers

Writes a line a run to passes.csv, and passes.md and passes.png of all lines there, in the folder
`--out`. A run that is in passes.csv already is not made again: a broken count can be taken up.

A pass is 4 n d m operations. Counted are epochs, certificates (one pass each), the rows on which
the gap is estimated after an epoch (half a pass for all), and what else a solver computes. All
partitions are swept in this process: what is counted does not depend on where they are.
"""

import argparse
import csv
import tomllib
from itertools import product
from pathlib import Path

import numpy as np

from dtopk.atomic import replace_when_complete
from dtopk.engine import SOLVERS, ArrayRows, FitOptions, fit
from dtopk.losses import make_loss
from dtopk.testing import make_features

FIELDS = ("set", "loss", "scheme", "C", "partitions", "passes", "epochs", "certificates", "gap")
KEYS = FIELDS[:5]
PROBE_ROWS = 1024
COLORS = {
    "averaging": "#cc79a7", "adding": "#e69f00", "plain": "#0072b2", "auto": "#d55e00",
    "lbfgs": "#009e73", "frank_wolfe": "#56b4e9", "block_frank_wolfe": "#999999",
}  # fmt: skip


def load_set(entry, folder):
    """Make the rows of one entry of [sets]."""
    if "archive" not in entry:
        X, labels = make_features(
            entry["n_samples"], entry["n_features"], entry["n_classes"], seed=0
        )
        return ArrayRows(X, labels, entry["n_classes"])
    with np.load(folder / entry["archive"]) as archive:
        X, y = archive["X"] / entry["divide_by"], archive["y"]
    classes, codes = np.unique(y, return_inverse=True)
    if "n_components" in entry:
        from sklearn.kernel_approximation import RBFSampler

        sampler = RBFSampler(gamma=1, n_components=entry["n_components"], random_state=0)
        X = sampler.fit_transform(X)
    rows = np.ascontiguousarray(X, dtype=np.float32)
    return ArrayRows(rows, codes.astype(np.int32), len(classes))


def make_options(config, scheme, C, partitions):
    """Say how a scheme is run."""
    options = {
        "C": C,
        "tol": config["tol"],
        "max_epochs": config["max_passes"][scheme],
        "seed": config["seed"],
        "partitions": partitions,
    }
    if scheme in ("adding", "averaging"):
        options |= {"aggregation": scheme, "acceleration": "off", "rounds_per_epoch": 1}
    if scheme == "plain":
        options |= {"acceleration": "off"}
    if scheme in SOLVERS:
        options |= {"solver": scheme}
    return FitOptions(**options)


def count(rows, loss, options):
    """Train, and return what is written of it."""
    result = fit(rows, loss, options)
    certificates = sum(record.exact for record in result.history)
    extra = 0.0
    if result.solver in ("sdca", "block_frank_wolfe"):
        extra = result.epochs * min(PROBE_ROWS / rows.n_stored, 1) / 2
    elif result.solver == "lbfgs":
        extra = rows.n_features / (4 * rows.n_classes)  # X'X, half of which is computed
    return {
        "passes": round(result.epochs + certificates + extra, 2),
        "epochs": result.epochs,
        "certificates": certificates,
        "gap": f"{result.certificate.relative_gap:.2e}",
    }


def runs(config):
    """List the runs, those that get there first."""
    for scheme, name, partitions, C, loss in product(
        reversed(config["schemes"]),
        config["sets"],
        config["partitions"],
        config["C"],
        config["losses"],
    ):
        known = scheme in config["losses"][loss].get("schemes", config["schemes"])
        if known and (partitions > 1 or scheme not in ("averaging", "adding")):
            yield {"set": name, "loss": loss, "scheme": scheme, "C": C, "partitions": partitions}


def read_done(path):
    """Return the lines that are there, by their keys."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {tuple(line[key] for key in KEYS): line for line in csv.DictReader(file)}


def describe(line, tol):
    """Return the passes, or the gap of a run that did not get there."""
    if line is None:
        return ""
    if float(line["gap"]) > tol:
        return f"> {round(float(line['passes']))} ({float(line['gap']):.0e})"
    return f"{float(line['passes']):.1f}"


def write_table(done, config, path):
    """Write a Markdown table: a row for a set, loss, C and K, a column for a scheme."""
    lines = ["| set | loss | C | K | " + " | ".join(config["schemes"]) + " |"]
    lines.append("|---|---|---|---|" + "---|" * len(config["schemes"]))
    for name, loss, C, partitions in product(
        config["sets"], config["losses"], config["C"], config["partitions"]
    ):
        cells = [
            describe(done.get((name, loss, scheme, str(C), str(partitions))), config["tol"])
            for scheme in config["schemes"]
        ]
        lines.append(f"| {name} | {loss} | {C} | {partitions} | " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(done, config, path):
    """Draw passes against partitions, a panel for each set, loss and C."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counted = {line[:2] for line in done}
    panels = [pair for pair in product(config["sets"], config["losses"]) if pair in counted]
    figure = Figure(figsize=(3.2 * len(config["C"]), 2.4 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), len(config["C"]), sharex=True, sharey=True, squeeze=False)
    for row, (name, loss) in zip(axes, panels, strict=True):
        for ax, C in zip(row, config["C"], strict=True):
            for scheme in config["schemes"]:
                _draw_scheme(ax, done, config, (name, loss, scheme, str(C)))
            ax.set_title(f"{name}, {loss}, C = {C:g}", fontsize=8)
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xticks(config["partitions"], [str(k) for k in config["partitions"]])
            ax.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
            ax.minorticks_off()
            ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("partitions")
    for row in axes:
        row[0].set_ylabel("passes")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    figure.suptitle("Passes to a certified gap of 1e-3; hollow: not there yet", fontsize=9)
    with replace_when_complete(path) as file:
        figure.savefig(file, format="png", dpi=150)


def _draw_scheme(ax, done, config, keys):
    points = [(k, done.get((*keys, str(k)))) for k in config["partitions"]]
    there = [(k, line) for k, line in points if line is not None]
    if not there:
        return
    ks = [k for k, _ in there]
    passes = [float(line["passes"]) for _, line in there]
    color = COLORS[keys[2]]
    ax.plot(ks, passes, color=color, label=keys[2], linewidth=1.2)
    for k, n, (_, line) in zip(ks, passes, there, strict=True):
        hollow = float(line["gap"]) > config["tol"]
        ax.plot(k, n, "o", color=color, markerfacecolor="white" if hollow else color, markersize=4)


def main():
    """Make what is missing, then the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", type=Path, default=Path("jobs/passes.toml"))
    parser.add_argument("--out", type=Path, default=Path("build/passes"))
    parser.add_argument("--only", nargs="*", help="names of sets")
    arguments = parser.parse_args()
    config = tomllib.loads(arguments.config.read_text(encoding="utf-8"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "passes.csv"
    done = read_done(path)
    loaded = {}
    for run in runs(config):
        key = tuple(str(run[name]) for name in KEYS)
        if key in done or (arguments.only and run["set"] not in arguments.only):
            continue
        if run["set"] not in loaded:
            loaded[run["set"]] = load_set(config["sets"][run["set"]], arguments.config.parent)
        rows = loaded[run["set"]]
        entry = {k: v for k, v in config["losses"][run["loss"]].items() if k != "schemes"}
        options = make_options(config, run["scheme"], run["C"], run["partitions"])
        line = run | count(rows, make_loss(**entry), options)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(line)
        print(*line.values(), flush=True)
        done = read_done(path)
    write_table(done, config, arguments.out / "passes.md")
    draw(done, config, arguments.out / "passes.png")
    print(f"Wrote {path}, passes.md and passes.png.")


if __name__ == "__main__":
    main()
