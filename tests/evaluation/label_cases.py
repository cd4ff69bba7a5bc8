"""Rows with sets of labels, and their scores, that the tests of multilabel metrics share."""

import numpy as np

from dtopk.evaluation import MultilabelCounts

N_CLASSES = 6


def make_case(name):
    """Return an indicator of shape (n_rows, 6), uint8, and scores of that shape, float32."""
    rng = np.random.default_rng(1)
    indicator = (rng.random((40, N_CLASSES)) < 0.35).astype(np.uint8)
    scores = (rng.normal(size=indicator.shape) + indicator).astype(np.float32)
    if name == "tied":
        scores = np.round(scores)
    elif name == "equal":
        scores = np.zeros_like(scores)
    elif name == "no and all labels":
        indicator[::3] = 0
        indicator[1::3] = 1
    elif name == "classes of no and all rows":
        indicator[:, 0] = 0
        indicator[:, 1] = 1
    elif name == "no label anywhere":
        indicator[:] = 0
    elif name == "all labels":
        indicator[:] = 1
    elif name == "one row":
        indicator, scores = indicator[:1], scores[:1]
    else:
        assert name == "random"
    return indicator, scores


CASES = (
    "random",
    "tied",
    "equal",
    "no and all labels",
    "classes of no and all rows",
    "no label anywhere",
    "all labels",
    "one row",
)


def count_labels(indicator, scores, *, batch_rows=None, **options):
    """Count the rows, in batches of so many."""
    counts = MultilabelCounts(n_classes=scores.shape[1], **options)
    for start in range(0, len(scores), batch_rows or max(1, len(scores))):
        rows = slice(start, start + (batch_rows or len(scores)))
        counts.update(indicator[rows], scores[rows])
    return counts
