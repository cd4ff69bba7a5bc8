"""`dtopk losses`: the losses there are, and what they take."""

import dataclasses

import click

from dtopk.cli.output import answer, answer_json, format_table, json_option
from dtopk.losses import SOURCES, available


@click.command()
@json_option
def losses(as_json: bool) -> None:
    """List the losses, what they take and what is known of them."""
    infos = available()
    if as_json:
        answer_json({"losses": [dataclasses.asdict(info) for info in infos], "sources": SOURCES})
        return
    rows = [
        [
            info.name,
            " or ".join(info.targets),
            ", ".join(info.parameters) or "-",
            "yes" if info.convex else "no",
            info.smooth,
            info.calibrated,
        ]
        for info in infos
    ]
    header = ("loss", "rows are", "parameters", "convex", "smooth", "top-k calibrated")
    solvers = [[info.name, ", ".join(info.solvers)] for info in infos]
    formulas = [[info.name, info.formula, info.cost] for info in infos]
    titles = ("loss", "L(y, u) with h_j = 1 + u_j - u_y", "exact update of a row")
    parts = [
        format_table(rows, header=header),
        format_table(formulas, header=titles),
        format_table(solvers, header=("loss", "solvers, the default first")),
        "\n".join(f"{number} {source}" for number, source in SOURCES.items()),
    ]
    answer("\n\n".join(parts))
