"""Top-k accuracy on the Letter data, a C chosen for each loss and k on validation rows.

    python -m tests.reproduce.letter [jobs/reproduce/letter.toml] [--out build/reproduce]

Writes a line for each seed, loss and k to letter.csv, and the tables of jobs/reproduce/README.md to
letter.md. A loss that is in letter.csv already is not trained again.
"""

from functools import partial

import numpy as np

from tests.reproduce.lines import (
    collect,
    format_mean,
    group_lines,
    parse_arguments,
    read_config,
    write_tables,
)
from tests.reproduce.selection import Split, choose, topk_accuracies, train

KEYS = ("loss", "seed")


def draw_splits(config, folder, seed):
    """Deal the rows to training, validation and test, in a random order."""
    data = config["data"]
    with np.load(folder / data["archive"]) as archive:
        X, y = archive["X"], archive["y"]
    X = (X * np.float32(data["scale"]) + np.float32(data["offset"])).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(y))
    ends = np.cumsum([data["n_train"], data["n_validation"], data["n_test"]])
    starts = [0, *ends[:-1]]
    return [
        Split(X=X[order[a:b]], y=y[order[a:b]].astype(np.int32))
        for a, b in zip(starts, ends, strict=True)
    ]


def measure_loss(config, folder, task):
    """Choose, train again on all rows but those of the test, and test."""
    training, validation, test = draw_splits(config, folder, task["seed"])
    n_classes = config["data"]["n_classes"]
    loss, solver, ks = config["losses"][task["loss"]], config["solver"], config["k"]
    choices = choose(training, validation, n_classes, loss, config["C"], ks, solver)
    both = training.join(validation)
    finals = {C: train(both.X, both.y, n_classes, loss, C, solver) for C in {c.C for c in choices}}
    return [
        task
        | {
            "k": choice.k,
            "C": choice.C,
            "validation": f"{choice.validation:.6f}",
            "test": f"{topk_accuracies(finals[choice.C], test, ks)[choice.k]:.6f}",
            "epochs": finals[choice.C].epochs,
            "gap": f"{finals[choice.C].certificate.relative_gap:.1e}",
        }
        for choice in choices
    ]


def make_tables(lines, config):
    """Return the accuracies, and the C chosen."""
    grouped = group_lines(lines, "loss", "k")
    ks = config["k"]
    accuracies = [["loss", *(f"top-{k}" for k in ks)]]
    chosen = [["loss", *(f"C for top-{k}" for k in ks), "gap at most"]]
    for loss in config["losses"]:
        cells = [grouped[loss, str(k)] for k in ks]
        accuracies.append([loss, *(format_mean([x["test"] for x in cell]) for cell in cells)])
        values = [sorted({float(x["C"]) for x in cell}) for cell in cells]
        worst = max(float(x["gap"]) for cell in cells for x in cell)
        chosen.append([loss, *(", ".join(f"{C:g}" for C in v) for v in values), f"{worst:.0e}"])
    return accuracies, chosen


def main():
    """Make what is missing, then the tables."""
    arguments = parse_arguments("letter", __doc__)
    config = read_config(arguments.config, arguments.out)
    run(config, arguments.config.parent, arguments.out, arguments.jobs)


def run(config, folder, out, jobs):
    """Test every loss with every seed.

    Parameters
    ----------
    config : dict
    folder : Path
        Where relative paths start.
    out : Path
    jobs : int
        Processes.
    """
    tasks = [
        {"loss": loss, "seed": seed}
        for loss, entry in sorted(
            config["losses"].items(), key=lambda item: item[1].get("gamma", 0.0)
        )
        for seed in config["seeds"]
    ]
    work = partial(measure_loss, config, folder)
    lines = collect(out / "letter.csv", KEYS, tasks, work, jobs)
    write_tables(out / "letter.md", *make_tables(lines, config))


if __name__ == "__main__":
    main()
