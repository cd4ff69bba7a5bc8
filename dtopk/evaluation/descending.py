"""Scores from the highest to the lowest, however many there are."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.evaluation.temporary_arrays import TemporaryArrays

Piece = tuple[NDArray[Any], NDArray[Any]]
"""Scores, and what goes with each, both of shape (n,)."""

_SORT_BYTES = 96
"""Memory that sorting takes for a score, with all that is then computed from it."""


def iter_descending(pieces: Iterable[Piece], n_scores: int, memory_bytes: int) -> Iterator[Piece]:
    """Put scores in descending order.

    One sort where all of them fit in memory. Where not, each piece is sorted and written to a
    temporary file; ranges of scores that do fit are then collected from all pieces. The ranges are
    cut at a regular sample of the pieces, which bounds how many scores lie in each.

    Parameters
    ----------
    pieces : iterable of (scores, values)
        Two arrays of shape (n,) each; all together not empty.
    n_scores : int
        Scores in all pieces.
    memory_bytes : int
        Memory to work in, in bytes; exceeded where more scores than fit in it are equal.

    Yields
    ------
    scores : ndarray of shape (n,)
        The highest, the next, and so on. Equal ones come together, not in any order.
    values : ndarray of shape (n,)
        What went with each.
    """
    if n_scores * _SORT_BYTES <= memory_bytes:
        yield _sort_descending(list(pieces))
        return
    files = TemporaryArrays()
    runs = [_write_run(files, piece) for piece in pieces]
    cuts = _choose_cuts(files, runs, max(1, memory_bytes // _SORT_BYTES))
    edges = [_find_edges(files.get(scores), cuts) for scores, _ in runs]
    for i in reversed(range(len(cuts) + 1)):
        parts = [
            (
                files.get(scores)[run_edges[i] : run_edges[i + 1]],
                files.get(values)[run_edges[i] : run_edges[i + 1]],
            )
            for (scores, values), run_edges in zip(runs, edges, strict=True)
            if run_edges[i] < run_edges[i + 1]
        ]
        if parts:
            yield _sort_descending(parts)


def _sort_descending(pieces: list[Piece]) -> Piece:
    scores = np.concatenate([scores for scores, _ in pieces])
    values = np.concatenate([values for _, values in pieces])
    order = np.argsort(scores)[::-1]
    return scores[order], values[order]


def _write_run(files: TemporaryArrays, piece: Piece) -> tuple[int, int]:
    scores, values = piece
    order = np.argsort(scores)
    return files.put(scores[order]), files.put(values[order])


def _choose_cuts(
    files: TemporaryArrays, runs: list[tuple[int, int]], n_at_most: int
) -> NDArray[Any]:
    """Choose scores between which there are at most so many, but for those equal to one another.

    Every `step`-th score of a run is sampled, and every `n_samples`-th sample is a cut. So between
    two cuts lie at most `n_samples * step` scores, and `step` more of each run.
    """
    step = max(1, n_at_most // (2 * len(runs)))
    n_samples = max(1, n_at_most // (2 * step))
    samples = [files.get(scores)[step - 1 :: step] for scores, _ in runs]
    return np.unique(np.sort(np.concatenate(samples))[::n_samples])


def _find_edges(scores: NDArray[Any], cuts: NDArray[Any]) -> list[int]:
    """Find where the ranges begin in an ascending run, and the last one ends.

    A score that equals a cut is in the range below it, in every run.
    """
    return [0, *np.searchsorted(scores, cuts, side="right").tolist(), len(scores)]
