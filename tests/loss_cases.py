"""Every registered loss, with every kind of parameter, and labels that it can be asked about."""

from itertools import product

import numpy as np

from dtopk.losses import LabelSets, MaskedLabel, MaskedLabels, available, make_loss

GAMMA = 0.5


def parameter_choices(n_classes):
    """List values of every parameter that a loss may take."""
    ranks = np.arange(n_classes - 1)
    rhos = [[1.0], 2.0**-ranks, np.maximum(3.0 - ranks, 0) / 6, np.ones(n_classes - 1)]
    mistakes = np.random.default_rng(0).integers(0, 4, (n_classes, n_classes)) / 2
    np.fill_diagonal(mistakes, 0)
    return {
        "k": sorted({1, 2, 5, n_classes - 1} & set(range(1, n_classes))),
        "gamma": [0.0, GAMMA],
        "smoothing": ["lapin", "moreau"],
        "rho": rhos,
        "label_cost": [None, mistakes],
    }


def loss_cases(n_classes):
    """Make each loss with every choice of its parameters."""
    choices = parameter_choices(n_classes)
    losses = []
    for info in available():
        for values in product(*(choices[name] for name in info.parameters)):
            given = dict(zip(info.parameters, values, strict=True))
            if given.get("gamma") == 0 and (
                info.smooth == "always" or given.get("smoothing") == "moreau"
            ):
                # A loss that is always smooth has a gamma; without one there is one loss, not two.
                continue
            losses.append(make_loss(info.name, **given))
    return losses


def updated_loss_cases(n_classes):
    """Make those of them whose dual problem of one row has a closed solution."""
    return [loss for loss in loss_cases(n_classes) if loss.has_update]


def loss_id(loss):
    """Name a loss in the list of tests."""
    parts = [loss.name]
    if "k" in loss.parameters:
        parts.append(f"k{loss.k}")
    if "rho" in loss.parameters:
        parts.append("rho" + "_".join(f"{weight:.2g}" for weight in loss.rho))
    if "label_cost" in loss.parameters:
        parts.append("costs" if loss.label_cost.size else "ones")
    if loss.smooth and "gamma" in loss.parameters:
        parts.append(getattr(loss, "smoothing", "smooth"))
    return "-".join(parts)


def random_labels(loss, rng, n_rows, n_classes):
    """Draw labels of the most general kind that the loss takes.

    A loss that is not convex has masks with them, those of some scores: with masks it is convex.
    """
    if "multilabel" not in loss.targets:
        labels = rng.integers(0, n_classes, n_rows).astype(np.int32)
        if loss.convex:
            return labels
        return loss.choose_masks(rng.normal(size=(n_rows, n_classes)), labels)
    # One loss against the rest takes the empty set and the full one; others compare the two sides.
    low, high = (1, n_classes) if loss.compares_classes else (0, n_classes + 1)
    sizes = rng.integers(low, high, n_rows)
    ranks = np.argsort(np.argsort(rng.random((n_rows, n_classes)), axis=1), axis=1)
    return LabelSets.from_indicator(ranks < sizes[:, None])


def fit_labels(loss, y, n_classes):
    """Give a loss class codes as they are, with masks, or sets of class and next but one."""
    if not loss.convex:
        return loss.choose_masks(np.random.default_rng(0).normal(size=(len(y), n_classes)), y)
    if "multiclass" in loss.targets:
        return y
    indicator = np.zeros((len(y), n_classes))
    for shift in (0, 2):
        indicator[np.arange(len(y)), (y + shift) % n_classes] = 1
    return LabelSets.from_indicator(indicator)


def one_label(label):
    """Make the labels of one row: of a class, with or without masks, or of an array of them."""
    if isinstance(label, MaskedLabel):
        return MaskedLabels(np.array([label.label], np.int32), label.masked[None])
    if np.ndim(label) == 0:
        return np.array([label], np.int32)
    return LabelSets(np.array([0, len(label)]), np.asarray(label, np.int32))
