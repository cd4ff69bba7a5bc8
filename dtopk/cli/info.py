"""`dtopk info`: what a feature store, a run or a model holds."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from dtopk.cli.label_counts import LabelCounts, count_labels
from dtopk.cli.output import answer, answer_json, format_facts, format_table, json_option, tell
from dtopk.cli.progress import RowProgress
from dtopk_storage import FeatureStore, open_store
from dtopk_storage.paths import as_path, size_below
from dtopk_storage.wording import format_bytes, format_count

_NAMES_SHOWN = 5


@click.command()
@click.argument("path")
@click.option(
    "--verify", is_flag=True,
    help="Read everything. Of a store: checksums, finite features, labels, statistics. Of a run: "
    "compute its certificate anew.",
)  # fmt: skip
@json_option
def info(path: str, verify: bool, as_json: bool) -> None:
    """Show what a feature store, the folder of a run or sweep, or a model file holds.

    \b
    Examples:
      dtopk info features.zarr
      dtopk info features.zarr --verify
      dtopk info runs/first --verify
      dtopk info runs/first/model.npz --json
      dtopk info s3://bucket/features.zarr
    """  # noqa: D301 - click wants the character, not its escape
    fields, text = _describe(path, verify)
    if as_json:
        answer_json(fields)
    else:
        answer(text)


def _describe(path: str, verify: bool) -> tuple[dict[str, Any], str]:
    """Collect what there is to say about a path, and lay it out."""
    place = as_path(path, name="PATH")
    # Imported here, as they load the engine, which a store's description does not need.
    if place.is_file():
        from dtopk.cli.run_info import describe_model, format_model

        try:
            fields = describe_model(path, verify=verify)
        except ValueError as error:
            error.add_note("If it holds features, make a store of it with `dtopk ingest`.")
            raise
        return fields, format_model(fields)
    if (place / "sweep-run.json").is_file():
        from dtopk.cli.sweep_info import describe_sweep, format_sweep

        fields = describe_sweep(path, verify=verify)
        return fields, format_sweep(fields)
    if (place / "job.toml").is_file():
        from dtopk.cli.run_info import describe_run, format_run

        fields = describe_run(path, verify=verify)
        return fields, format_run(fields)
    fields = describe_store(path)
    if verify:
        with RowProgress(f"verifying {path}") as progress:
            open_store(path).verify(progress)
        tell(f"{path} is whole: every chunk is as it was written.")
    fields["verified"] = verify
    return fields, format_store(fields)


def describe_store(path: str) -> dict[str, Any]:
    """Collect what there is to say about a store, from its metadata and labels.

    Parameters
    ----------
    path : str
        Folder of the store, or its address.

    Returns
    -------
    dict
        Values that JSON has; ``kind`` is 'store'.
    """
    store = open_store(path)
    features = store.arrays["features"]
    labels_per_row = {}
    if store.kind == "multilabel":
        counts = count_labels(store, ((0, store.n_samples),))
        labels_per_row["labels_per_row"] = _describe_labels_per_row(counts)
    return {
        "kind": "store",
        "path": path,
        "n_samples": store.n_samples,
        "n_features": store.n_features,
        "n_classes": store.n_classes,
        "class_names": list(store.class_names),
        "class_name_type": store.class_name_type,
        "labels": store.kind,
        **labels_per_row,
        "dtype": store.dtype.name,
        "chunk_rows": store.chunk_rows,
        "chunk_bytes": features.chunk_bytes,
        "n_chunks": features.n_chunks,
        "compression": store.compression,
        "bytes_on_disk": size_below(as_path(path, name="store")),
        "has_sample_weight": store.has_sample_weight,
        "has_row_id": store.has_row_id,
        "splits": {split: _describe_split(store, split) for split in store.splits},
        "feature_mean": {"min": float(store.mean.min()), "max": float(store.mean.max())},
        "feature_std": {"min": float(store.std.min()), "max": float(store.std.max())},
        "n_constant_features": int((store.std == 0).sum()),
        "provenance": store.provenance,
    }


def _describe_labels_per_row(counts: LabelCounts) -> dict[str, Any]:
    return {
        "mean": counts.n_labels / counts.n_rows,
        "min": counts.fewest,
        "max": counts.most,
        "n_rows_without": counts.n_rows_without,
    }


def _describe_split(store: FeatureStore, split: str) -> dict[str, Any]:
    labels = count_labels(store, store.split_ranges(split))
    counts = labels.rows_by_class
    is_multilabel = store.kind == "multilabel"
    return {
        "n_samples": store.split_size(split),
        "ranges": store.split_ranges(split),
        "n_classes_present": int((counts > 0).sum()),
        "rows_by_class": {
            "min": int(counts.min()),
            "median": float(np.median(counts)),
            "max": int(counts.max()),
        },
        "rarest_classes": _rarest(store, counts),
        **({"labels_per_row": _describe_labels_per_row(labels)} if is_multilabel else {}),
    }


def _rarest(store: FeatureStore, counts: NDArray[np.int64]) -> dict[str, int]:
    order = np.argsort(counts, kind="stable")[:_NAMES_SHOWN]
    return {store.class_names[code]: int(counts[code]) for code in order.tolist()}


def format_store(fields: dict[str, Any]) -> str:
    """Lay out a store's description for reading.

    Parameters
    ----------
    fields : dict
        As `describe_store` returns it.
    """
    facts = {
        "store": fields["path"],
        "rows": f"{fields['n_samples']:,}",
        "features": f"{fields['n_features']:,} {fields['dtype']}",
        "classes": f"{fields['n_classes']:,}: {_shorten(fields['class_names'])}",
        **_format_kind(fields),
        "sample weights": "yes" if fields["has_sample_weight"] else "no",
        "order of rows": "changed, see row_id" if fields["has_row_id"] else "as in the source",
        "chunks": f"{fields['n_chunks']:,} of {format_count(fields['chunk_rows'], 'row')} "
        f"({format_bytes(fields['chunk_bytes'])}), compression {fields['compression']}",
        "size on disk": format_bytes(fields["bytes_on_disk"]),
        "feature means": _format_range(fields["feature_mean"]),
        "feature deviations": _format_range(fields["feature_std"]),
        "constant features": f"{fields['n_constant_features']:,}",
    }
    splits = [
        [
            split,
            f"{part['n_samples']:,}",
            f"{part['n_classes_present']:,}",
            f"{part['rows_by_class']['min']:,}",
            f"{part['rows_by_class']['median']:,g}",
            f"{part['rows_by_class']['max']:,}",
            next(iter(part["rarest_classes"])),
        ]
        for split, part in fields["splits"].items()
    ]
    header = ("split", "rows", "classes", "fewest", "median", "most", "rarest class")
    parts = [format_facts(facts), format_table(splits, header=header)]
    if fields["labels"] == "multilabel":
        parts.append(_format_labels_per_row(fields["splits"]))
    return "\n\n".join([*parts, *_format_provenance(fields["provenance"])])


def _format_kind(fields: Mapping[str, Any]) -> dict[str, str]:
    """Say so where rows have any number of labels."""
    if fields["labels"] != "multilabel":
        return {}
    part = fields["labels_per_row"]
    return {
        "labels": f"multilabel: {part['min']:,} to {part['max']:,} a row, {part['mean']:.4g} on "
        f"average; {format_count(part['n_rows_without'], 'row')} without"
    }


def _format_labels_per_row(splits: Mapping[str, Any]) -> str:
    """Lay out how many labels the rows of each split have."""
    rows = [
        [
            split,
            f"{part['labels_per_row']['mean']:.4g}",
            f"{part['labels_per_row']['min']:,}",
            f"{part['labels_per_row']['max']:,}",
            f"{part['labels_per_row']['n_rows_without']:,}",
        ]
        for split, part in splits.items()
    ]
    return format_table(rows, header=("split", "labels a row", "fewest", "most", "rows without"))


def _format_provenance(provenance: Mapping[str, Any]) -> list[str]:
    """Lay out where a store is from and, where that is another store, where that one is from."""
    parts: list[str] = []
    while provenance:
        facts = {name: value for name, value in provenance.items() if name != "source_provenance"}
        parts.append(f"{'which was ' if parts else ''}made from\n" + format_facts(facts))
        provenance = provenance.get("source_provenance", {})
    return parts


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"{shown}, ..." if len(names) > _NAMES_SHOWN else shown


def _format_range(limits: dict[str, float]) -> str:
    return f"{limits['min']:.4g} to {limits['max']:.4g}"
