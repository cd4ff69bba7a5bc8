"""Which split a row belongs to, and where it stands in the store."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.ingest.labels import LabelEncoder
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.manifest import TRAIN, Ranges, check_splits
from dtopk_storage.sources.base import Vector


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Arrangement:
    """The order of the rows in the store."""

    splits: dict[str, Ranges]
    """Row ranges of each split."""
    order: NDArray[np.int64] | None
    """Row of the source of each row of the store; None when they are the same."""


def arrange(
    options: IngestOptions,
    n_samples: int,
    *,
    split_names: Vector | None,
    own: dict[str, Ranges] | None,
    place: str,
) -> Arrangement:
    """Decide the split and the place of every row.

    Fractions and names make each split one range, train first, its rows in the source's order.
    Splits by row stay where they are. Shuffling then permutes the rows within each split.

    Parameters
    ----------
    options : IngestOptions
    n_samples : int
    split_names : Vector or None
        Name of each row's split.
    own : mapping of str to row ranges, or None
        Splits that the source has; they hold when no others are asked for.
    place : str
        Of the source, for messages.

    Returns
    -------
    Arrangement
    """
    rng = np.random.default_rng(options.seed)
    if split_names is not None:
        arrangement = _gather(*_named_members(split_names, n_samples))
    elif options.splits:
        arrangement = _gather(*_drawn_members(options.splits, n_samples, rng))
    elif own is not None and not options.split_rows:
        arrangement = Arrangement(splits=own, order=None)
    else:
        splits = _ranges_by_row(options.split_rows, n_samples, place)
        arrangement = Arrangement(splits=splits, order=None)
    check_splits(arrangement.splits, n_samples, place)
    return _shuffle(arrangement, n_samples, rng) if options.shuffle else arrangement


def _drawn_members(
    fractions: Sequence[tuple[str, float]], n_samples: int, rng: np.random.Generator
) -> tuple[list[str], NDArray[np.int32]]:
    """Draw a split for every row; the numbers of rows are the fractions, rounded."""
    names = [TRAIN, *(name for name, _ in fractions if name != TRAIN)]
    sizes = [round(fraction * n_samples) for name, fraction in fractions if name != TRAIN]
    member = np.zeros(n_samples, np.int32)
    rows = rng.permutation(n_samples)
    for index, stop in enumerate(np.cumsum(sizes), start=1):
        member[rows[stop - sizes[index - 1] : stop]] = index
    return names, member


def _named_members(vector: Vector, n_samples: int) -> tuple[list[str], NDArray[np.int32]]:
    encoder = LabelEncoder(vector.place, is_text=False)
    for block in vector.read_single():
        encoder.add(block)
    member, names, _ = encoder.finish()
    if len(member) != n_samples:
        raise DatasetError(
            f"split names must have as many rows as the labels, {n_samples}, "
            f"got {len(member)} in {vector.place}."
        )
    if TRAIN not in names:
        raise DatasetError(
            f"split names must include 'train', got {list(names)[:10]} in {vector.place}."
        )
    ranked = sorted(range(len(names)), key=lambda index: (names[index] != TRAIN, names[index]))
    rank = np.empty(len(names), np.int32)
    rank[ranked] = np.arange(len(names), dtype=np.int32)
    return [names[index] for index in ranked], rank[member]


def _gather(names: list[str], member: NDArray[np.int32]) -> Arrangement:
    """Put the rows of each split together, in the order of the names."""
    stops = np.cumsum(np.bincount(member, minlength=len(names))).tolist()
    splits: dict[str, Ranges] = {
        name: ((start, stop),) if stop > start else ()
        for name, start, stop in zip(names, [0, *stops], stops, strict=False)
    }
    order = np.argsort(member, kind="stable")
    is_same = bool((order == np.arange(len(order))).all())
    return Arrangement(splits=splits, order=None if is_same else order)


def _ranges_by_row(
    split_rows: Sequence[tuple[str, int, int]], n_samples: int, place: str
) -> dict[str, Ranges]:
    """Collect the ranges of each name; without a train, it gets the rows that are left."""
    splits: dict[str, Ranges] = {}
    for name, start, stop in split_rows:
        if stop > n_samples:
            raise DatasetError(
                f"rows of split {name!r} must lie in 0:{n_samples}, got {start}:{stop} for {place}."
            )
        splits[name] = (*splits.get(name, ()), (start, stop))
    if TRAIN in splits:
        return splits
    taken = sorted(rows for ranges in splits.values() for rows in ranges)
    starts = [0, *(stop for _, stop in taken)]
    stops = [*(start for start, _ in taken), n_samples]
    rest = tuple((a, b) for a, b in zip(starts, stops, strict=True) if a < b)
    return {TRAIN: rest, **splits}


def _shuffle(arrangement: Arrangement, n_samples: int, rng: np.random.Generator) -> Arrangement:
    """Permute the rows within each split."""
    order = np.arange(n_samples) if arrangement.order is None else arrangement.order.copy()
    for ranges in arrangement.splits.values():
        places: NDArray[Any] = np.concatenate([np.arange(start, stop) for start, stop in ranges])
        order[places] = order[rng.permutation(places)]
    return dataclasses.replace(arrangement, order=order)
