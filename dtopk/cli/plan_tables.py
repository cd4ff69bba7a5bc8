"""How `dtopk plan` lays out a plan."""

from dataclasses import asdict, dataclass
from typing import Any

from dtopk.cli.output import format_facts, format_table
from dtopk.engine.forecast import Forecast, Speed
from dtopk.engine.plan import ClusterPlan, least_members, memory_for_all
from dtopk_storage.wording import format_count

_EPOCHS, _CERTIFICATES = 10, 2
"""A run of moderate length."""


def plan_fields(
    plan: ClusterPlan, expected: tuple[Speed, Forecast] | None, partitions: int
) -> dict[str, Any]:
    """Make a dict of JSON values of a plan.

    Parameters
    ----------
    plan : ClusterPlan
    expected : Speed and Forecast, or None
    partitions : int
        As the job has it; 0: as many as workers.
    """
    sizes, layout = plan.sizes, plan.layout
    fields: dict[str, Any] = {
        "n_samples": sizes.n_samples,
        "n_features": sizes.n_features,
        "n_classes": sizes.n_classes,
        "workers": plan.n_members if plan.whole_process else 0,
        "partitions": layout.n_partitions,
        "rounds_per_epoch": layout.n_rounds,
        "blocks": len(layout.blocks),
        "rows_per_worker": plan.member_rows,
        "memory_bytes": plan.limit_bytes,
        "usable_bytes": plan.usable_bytes,
        "needed_bytes": plan.needed_bytes,
        "fits": plan.fits,
        "features_in_memory": plan.memory.features_in_memory,
        "duals_in_memory": plan.memory.duals_in_memory,
        "holdings": [asdict(holding) for holding in plan.holdings],
        "traffic": asdict(plan.traffic),
    }
    if plan.whole_process:
        fields |= _suggestion_fields(plan, partitions)
    if expected is not None:
        speed, forecast = expected
        fields["speed"] = asdict(speed)
        fields["forecast"] = asdict(forecast) | {"epoch_seconds": forecast.epoch_seconds}
    return fields


def _suggestion_fields(plan: ClusterPlan, partitions: int) -> dict[str, Any]:
    memory = plan.limit_bytes
    least, all_held = (
        least_members(plan.sizes, memory_bytes=memory, partitions=partitions, in_memory=in_memory)
        for in_memory in (False, True)
    )
    return {
        "least_workers": least,
        "least_workers_in_memory": all_held,
        "memory_to_hold_all_bytes": memory_for_all(plan.sizes, n_members=plan.n_members),
    }


def format_plan(plan: ClusterPlan) -> str:
    """Lay out sizes, memory and traffic.

    Parameters
    ----------
    plan : ClusterPlan
    """
    parts = [format_facts(_describe_run(plan)), _format_memory(plan)]
    if any(asdict(plan.traffic).values()):
        parts.append(_format_traffic(plan))
    return "\n\n".join(parts)


def _describe_run(plan: ClusterPlan) -> dict[str, str]:
    sizes, layout = plan.sizes, plan.layout
    where = "this process"
    if plan.whole_process:
        where = f"{format_count(plan.n_members, 'worker')} of {_gigabytes(plan.limit_bytes)}"
    cut = format_count(layout.n_partitions, "partition")
    if layout.n_partitions > 1:
        cut += f" of {format_count(len(layout.blocks), 'block')} in all, "
        cut += f"{format_count(layout.n_rounds, 'round')} an epoch"
    return {
        "rows": f"{sizes.n_samples:,}, {sizes.n_features:,} features, {sizes.n_classes:,} classes",
        "where": f"{where}, at most {plan.member_rows:,} rows each",
        "cut": cut,
        "in memory": _describe_way(plan),
    }


def _describe_way(plan: ClusterPlan) -> str:
    if not plan.fits:
        return "does not fit"
    memory = plan.memory
    if memory.all_in_memory:
        return "rows and duals"
    held = "duals; rows are" if memory.duals_in_memory else "rows; duals are"
    if not (memory.duals_in_memory or memory.features_in_memory):
        held = "neither rows nor duals: both are"
    return f"{held} streamed in every epoch"


def _format_memory(plan: ClusterPlan) -> str:
    rows = [
        (holding.name, _megabytes(holding.in_round), _megabytes(holding.at_certificate))
        for holding in plan.holdings
    ]
    rows.append(("all together", _megabytes(plan.round_bytes), _megabytes(plan.certificate_bytes)))
    usable = _megabytes(plan.usable_bytes)
    rows.append(("what may be taken", usable, usable))
    what = "memory of a worker, MB" if plan.whole_process else "features, duals and weights, MB"
    return format_table(rows, header=(what, "in a round", "at a certificate"))


def _format_traffic(plan: ClusterPlan) -> str:
    traffic, rounds = plan.traffic, plan.layout.n_rounds
    rows = [
        ("weights from other workers", traffic.weights, rounds * traffic.weights),
        ("changes of weights from them", traffic.changes, rounds * traffic.changes),
        ("duals from them", 0, traffic.duals),
        ("all together", traffic.weights + traffic.changes, traffic.epoch),
        ("for a certificate", 0, traffic.certificate),
        ("to and from all workers, through the scheduler", traffic.lead, rounds * traffic.lead),
        ("rows read from the store, at first", 0, traffic.first_read),
        ("rows read from the store", 0, traffic.epoch_read),
        ("duals read and written", 0, traffic.duals_streamed),
    ]
    lines = [
        (name, _megabytes(in_round) if in_round else "", _megabytes(in_epoch))
        for name, in_round, in_epoch in rows
        if in_epoch
    ]
    return format_table(lines, header=("traffic of the busiest worker, MB", "a round", "an epoch"))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a forecast was told."""

    gflops_given: bool
    """Whether the rate of the products was given, and not measured."""
    network: int
    """Bytes that a worker gets from others in a second."""
    store: int
    """Bytes that a process reads from its store in a second."""


def format_forecast(plan: ClusterPlan, speed: Speed, forecast: Forecast, rates: Rates) -> str:
    """Lay out how long it will take, and what that rests on.

    Parameters
    ----------
    plan : ClusterPlan
    speed : Speed
    forecast : Forecast
    rates : Rates
    """
    rows = [
        ("sweeps", forecast.sweep_seconds),
        ("reading and writing, beside the sweeps", forecast.read_seconds),
        ("making and joining changes", forecast.join_seconds),
        ("sending", forecast.exchange_seconds),
        ("estimating the gap", forecast.estimate_seconds),
        ("calls", forecast.call_seconds),
        ("an epoch", forecast.epoch_seconds),
        ("a certificate", forecast.certificate_seconds),
        ("the first reading", forecast.first_read_seconds),
        (f"{_EPOCHS} epochs and {_CERTIFICATES} certificates", _whole_run(forecast)),
    ]
    lines = [(name, f"{seconds:,.2f}") for name, seconds in rows if seconds]
    table = format_table(lines, header=("time, seconds", ""))
    return f"{table}\n\n{format_facts(_describe_basis(plan, speed, forecast, rates))}"


def _describe_basis(
    plan: ClusterPlan, speed: Speed, forecast: Forecast, rates: Rates
) -> dict[str, str]:
    """Say what the times rest on, and where that comes from."""
    shape = f"measured here on {speed.n_features:,} features and {speed.n_classes:,} classes"
    facts = {
        "the two products with W": f"{speed.gflops:,.1f} Gflop/s, "
        + ("as given" if rates.gflops_given else shape),
        "a pass": f"{speed.ratio:.2f} times as long as these, {shape}",
        "a certificate": f"{speed.certificate_ratio:.2f} times as long, {shape}",
    }
    if plan.n_members > 1:
        facts["network"] = f"{_gigabytes(rates.network)}/s"
    if forecast.read_seconds or forecast.first_read_seconds:
        facts["store"] = f"{_gigabytes(rates.store)}/s"
    return facts


def _whole_run(forecast: Forecast) -> float:
    return (
        _EPOCHS * forecast.epoch_seconds
        + _CERTIFICATES * forecast.certificate_seconds
        + forecast.first_read_seconds
    )


def format_suggestions(plan: ClusterPlan, partitions: int) -> str:
    """Say which other numbers of workers, or other memory, would do.

    Parameters
    ----------
    plan : ClusterPlan
    partitions : int
        As the job has it; 0: as many as workers.
    """
    fields = _suggestion_fields(plan, partitions)
    memory = _gigabytes(plan.limit_bytes)
    least, held = fields["least_workers"], fields["least_workers_in_memory"]
    lines = {
        f"least workers of {memory}": "none" if least is None else least,
        "  to hold rows and duals": "none" if held is None else held,
        f"memory of {plan.n_members:,} to hold them": _gigabytes(
            fields["memory_to_hold_all_bytes"]
        ),
    }
    return format_facts(lines)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
