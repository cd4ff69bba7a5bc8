"""Relative gap and top-k accuracy against time, on the Letter data.

    python -m tests.reproduce.convergence [jobs/reproduce/convergence.toml] [--out build/reproduce]

Writes a line for each pass of each loss to convergence.csv, the table of jobs/reproduce/README.md
to convergence.md and the figure to convergence.png. Nothing else should run meanwhile: the losses
are trained one after another, in this process. A loss that is in convergence.csv already is not
trained again.
"""

from dataclasses import replace
from functools import partial

from dtopk.atomic import replace_when_complete
from dtopk.engine import ArrayRows, Callback, FitOptions, fit
from dtopk.evaluation import AccuracyCounts
from dtopk.losses import make_loss
from tests.reproduce.letter import draw_splits
from tests.reproduce.lines import (
    collect,
    group_lines,
    parse_arguments,
    read_config,
    write_tables,
)

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")


class KeepWeights(Callback):
    """Keeps the weights of every pass."""

    reads_weights = True

    def __init__(self):
        self.weights = []

    def on_epoch(self, record, W):
        """See :meth:`Callback.on_epoch`."""
        self.weights.append(W.copy())


def trace_loss(config, folder, task):
    """Train once, and look at the weights of every pass."""
    training, validation, test = draw_splits(config, folder, config["seed"])
    rows = training.join(validation)
    n_classes, constant = config["data"]["n_classes"], config["solver"]["constant"]
    loss, C = make_loss(**config["losses"][task["loss"]]), config["C"]
    options = FitOptions(C=C, threads=1, **config["solver"])
    source = ArrayRows(rows.X, rows.y, n_classes)
    # On a machine's first run kernels may be compiled within the first pass.
    fit(source, loss, replace(options, max_epochs=1))
    keeper = KeepWeights()
    result = fit(source, loss, options, callbacks=[keeper])
    lines = []
    for record, W in zip(result.history, keeper.weights, strict=True):
        # Training estimates P on some of the rows in most passes; here it is that of all.
        W = W.astype(float)
        scores = rows.X @ W[:-1] + constant * W[-1]
        primal = C * loss.values(scores, rows.y).sum() + (W**2).sum() / 2
        counts = AccuracyCounts(n_classes=n_classes)
        counts.update(test.y, test.X @ W[:-1] + constant * W[-1])
        gap = (primal - record.dual_value) / max(abs(primal), abs(record.dual_value))
        lines.append(
            task
            | {"epoch": record.epoch, "seconds": f"{record.seconds:.4f}", "gap": f"{gap:.3e}"}
            | {f"top-{k}": f"{counts.topk_accuracy(k):.4f}" for k in config["k"]}
        )
    return lines


def make_table(lines, config):
    """Return when each gap was reached first, and the accuracies there."""
    table = [["loss", "gap", "passes", "seconds", *(f"top-{k}" for k in config["k"])]]
    grouped = group_lines(lines, "loss")
    for loss in config["losses"]:
        for level in config["levels"]:
            reached = [line for line in grouped[loss,] if float(line["gap"]) <= level]
            if not reached:
                last = grouped[loss,][-1]
                table.append(
                    [loss, f"{level:g}", f"> {last['epoch']}", *[""] * (1 + len(config["k"]))]
                )
                continue
            first = min(reached, key=lambda line: int(line["epoch"]))
            accuracies = (f"{100 * float(first[f'top-{k}']):.1f}" for k in config["k"])
            seconds = f"{float(first['seconds']):.2f}"
            table.append([loss, f"{level:g}", first["epoch"], seconds, *accuracies])
    return table


def draw_figure(lines, config, path):
    """Draw gap and accuracies against seconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ks = config["k"]
    figure = Figure(figsize=(4.2 * (1 + len(ks)), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + len(ks))
    grouped = group_lines(lines, "loss")
    for color, loss in zip(COLORS, config["losses"], strict=False):
        # Tuples of strings are sorted as strings: the order of time is made anew.
        points = sorted(grouped[loss,], key=lambda line: int(line["epoch"]))
        seconds = [float(point["seconds"]) for point in points]
        axes[0].plot(seconds, [float(point["gap"]) for point in points], color=color, label=loss)
        for ax, k in zip(axes[1:], ks, strict=True):
            ax.plot(seconds, [100 * float(point[f"top-{k}"]) for point in points], color=color)
    axes[0].set(yscale="log", ylabel="relative duality gap")
    for ax, k in zip(axes[1:], ks, strict=True):
        ax.set_ylabel(f"top-{k} accuracy on the test rows (%)")
    for ax in axes:
        ax.set(xscale="log", xlabel="seconds")
        ax.grid(alpha=0.3)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"Letter, C = {config['C']:g}, one thread", fontsize=10)
    with replace_when_complete(path) as file:
        figure.savefig(file, format="png", dpi=150)


def main():
    """Make what is missing, then table and figure."""
    arguments = parse_arguments("convergence", __doc__)
    config = read_config(arguments.config, arguments.out)
    run(config, arguments.config.parent, arguments.out)


def run(config, folder, out):
    """Trace every loss.

    Parameters
    ----------
    config : dict
    folder : Path
        Where relative paths start.
    out : Path
    """
    tasks = [{"loss": loss} for loss in config["losses"]]
    work = partial(trace_loss, config, folder)
    lines = collect(out / "convergence.csv", ("loss",), tasks, work, jobs=1)
    write_tables(out / "convergence.md", make_table(lines, config))
    draw_figure(lines, config, out / "convergence.png")


if __name__ == "__main__":
    main()
