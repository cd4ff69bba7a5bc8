"""`dtopk losses`: the losses there are, and what they take."""

import dataclasses

import click

from dtopk.cli.output import answer, answer_json, format_table, json_option
from dtopk.losses import available


@click.command()
@json_option
def losses(as_json: bool) -> None:
    """List the losses and what they take."""
    infos = available()
    if as_json:
        answer_json({"losses": [dataclasses.asdict(info) for info in infos]})
        return
    rows = [
        [
            info.name,
            info.kind,
            ", ".join(info.parameters) or "-",
            "yes" if info.convex else "no",
            str(info.smooth),
            ", ".join(info.solvers),
            info.summary,
        ]
        for info in infos
    ]
    header = ("loss", "kind", "parameters", "convex", "smooth", "solvers", "what it is")
    answer(format_table(rows, header=header))
