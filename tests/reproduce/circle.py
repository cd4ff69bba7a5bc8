"""Top-1 and top-2 accuracy of linear classifiers of points on a circle, where classes overlap.

    python -m tests.reproduce.circle [jobs/reproduce/circle.toml] [--out build/reproduce]

Writes a line for each draw, loss and k to circle.csv, the table of jobs/reproduce/README.md to
circle.md, and what the losses predict along the circle to circle.png. A draw that is in circle.csv
already is not made again.
"""

from functools import partial
from itertools import pairwise

import numpy as np

from dtopk.atomic import replace_when_complete
from tests.reproduce.lines import (
    collect,
    format_mean,
    group_lines,
    parse_arguments,
    read_config,
    write_tables,
)
from tests.reproduce.selection import Split, choose, topk_accuracies

KEYS = ("loss", "seed")
COLORS = ("#0072b2", "#d55e00", "#009e73")


def draw_sample(sample, n_samples, rng):
    """Draw points: an arc, a place on it, and a class with the probabilities of the arc.

    Parameters
    ----------
    sample : dict
        The section [sample].
    n_samples : int
    rng : numpy.random.Generator

    Returns
    -------
    Split
    """
    lengths, class_cdf = np.array(sample["lengths"]), np.cumsum(sample["classes"], axis=1)
    arcs = rng.choice(len(lengths), size=n_samples, p=sample["arcs"])
    starts = np.cumsum(lengths) - lengths
    place = starts[arcs] + lengths[arcs] * rng.random(n_samples)
    # Rounding may leave the last sum below 1: it is not looked at.
    y = (rng.random((n_samples, 1)) >= class_cdf[arcs, :-1]).sum(axis=1)
    return Split(X=put_on_circle(place / lengths.sum()), y=y.astype(np.int32))


def put_on_circle(turns):
    """Return the points of the unit circle at some shares of a full turn."""
    angles = 2 * np.pi * turns
    return np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def draw_splits(sample, seed):
    """Draw rows for training, validation and test."""
    rng = np.random.default_rng(seed)
    return [
        draw_sample(sample, sample[name], rng) for name in ("n_train", "n_validation", "n_test")
    ]


def choose_for_draw(config, loss, seed):
    """Return the choices for each k, and the test rows."""
    training, validation, test = draw_splits(config["sample"], seed)
    n_classes = len(config["sample"]["classes"][0])
    grid = [2.0**exponent for exponent in config["log2_C"]]
    choices = choose(
        training,
        validation,
        n_classes,
        config["losses"][loss],
        grid,
        config["k"],
        config["solver"],
        config["random_starts"],
    )
    return choices, test


def measure_loss(config, task):
    """Choose for one draw, and test."""
    choices, test = choose_for_draw(config, task["loss"], task["seed"])
    return [
        task
        | {
            "k": choice.k,
            "C": choice.C,
            "validation": f"{choice.validation:.6f}",
            "test": f"{topk_accuracies(choice.result, test, [choice.k])[choice.k]:.6f}",
            "gap": f"{choice.result.certificate.relative_gap:.1e}",
        }
        for choice in choices
    ]


def best_accuracies(sample, ks):
    """Return the top-k accuracy of the Bayes rule, which no classifier exceeds."""
    ordered = np.sort(sample["classes"], axis=1)[:, ::-1]
    return {k: float(np.dot(sample["arcs"], ordered[:, :k].sum(axis=1))) for k in ks}


def make_table(lines, config):
    """Return mean and standard deviation over the draws."""
    grouped, ks = group_lines(lines, "loss", "k"), config["k"]
    table = [
        ["loss", *(f"top-{k}" for k in ks), "median C for " + ", ".join(f"top-{k}" for k in ks)]
    ]
    for loss in config["losses"]:
        cells = [grouped[loss, str(k)] for k in ks]
        medians = [np.median([np.log2(float(x["C"])) for x in cell]) for cell in cells]
        table.append(
            [
                loss,
                *(format_mean([x["test"] for x in cell]) for cell in cells),
                ", ".join(f"2^{median:g}" for median in medians),
            ]
        )
    best = best_accuracies(config["sample"], ks)
    table.append(["Bayes rule, not linear", *(f"{100 * best[k]:.1f}" for k in ks), ""])
    return table


def draw_figure(config, path):
    """Draw what is predicted along the circle, for the first draw, C chosen for the last k."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = config["figure"]["losses"]
    n_columns = config["figure"]["columns"]
    n_rows = -(-(len(panels) + 1) // n_columns)
    figure = Figure(figsize=(2.4 * n_columns, 2.6 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
        ax.set_aspect("equal")
    _draw_training(axes[0], config)
    k = max(config["k"])
    for ax, loss in zip(axes[1:], panels, strict=False):
        choices, test = choose_for_draw(config, loss, config["seeds"][0])
        chosen = next(choice for choice in choices if choice.k == k)
        accuracies = topk_accuracies(chosen.result, test, config["k"])
        _draw_prediction(ax, chosen.result)
        shown = ", ".join(f"top-{j} {100 * share:.1f}" for j, share in accuracies.items())
        ax.set_title(f"{loss}\n{shown}", fontsize=8)
    figure.suptitle(
        "Outside in: the class predicted first, second and last. Weights chosen for top-2",
        fontsize=9,
    )
    with replace_when_complete(path) as file:
        figure.savefig(file, format="png", dpi=150)


def _draw_training(ax, config):
    """Draw the rows of the first draw, each class on a circle of its own."""
    training, _, _ = draw_splits(config["sample"], config["seeds"][0])
    for label, color in enumerate(COLORS):
        points = training.X[training.y == label] * (1 - 0.15 * label)
        ax.plot(*points.T, ".", color=color, markersize=3)
    ax.set_title("training rows, by class", fontsize=8)
    ax.set_xlim(-1.1, 1.1)
    ax.set_ylim(-1.1, 1.1)


def _draw_prediction(ax, result):
    from matplotlib.patches import Wedge

    n_pieces = 720
    X = put_on_circle((np.arange(n_pieces) + 0.5) / n_pieces)
    order = np.argsort(-(X @ result.W + result.intercept), axis=1)
    for place, labels in enumerate(order.T):
        # One wedge for neighbours of the same class.
        starts = [0, *(np.flatnonzero(np.diff(labels)) + 1), n_pieces]
        for start, stop in pairwise(starts):
            ax.add_patch(
                Wedge(
                    (0, 0),
                    1 - 0.2 * place,
                    360 * start / n_pieces,
                    360 * stop / n_pieces,
                    width=0.18,
                    color=COLORS[labels[start]],
                    linewidth=0,
                )
            )
    ax.set_xlim(-1.1, 1.1)
    ax.set_ylim(-1.1, 1.1)


def main():
    """Make what is missing, then table and figure."""
    arguments = parse_arguments("circle", __doc__)
    run(read_config(arguments.config, arguments.out), arguments.out, arguments.jobs)


def run(config, out, jobs):
    """Test every loss on every draw.

    Parameters
    ----------
    config : dict
    out : Path
    jobs : int
        Processes.
    """
    tasks = [{"loss": loss, "seed": seed} for seed in config["seeds"] for loss in config["losses"]]
    lines = collect(out / "circle.csv", KEYS, tasks, partial(measure_loss, config), jobs)
    write_tables(out / "circle.md", make_table(lines, config))
    draw_figure(config, out / "circle.png")


if __name__ == "__main__":
    main()
