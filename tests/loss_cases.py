"""Every registered loss, with every kind of parameter."""

from dtopk.losses import available, make_loss

GAMMA = 0.5


def loss_cases(n_classes):
    """Make each loss with k = 1, 2, 5 and n_classes - 1, plain and smoothed both ways."""
    losses = []
    for info in available():
        ks = sorted({1, 2, 5, n_classes - 1} & set(range(1, n_classes)))
        for k in ks if "k" in info.parameters else (1,):
            losses.append(make_loss(info.name, k=k))
            if "gamma" in info.parameters:
                losses += [
                    make_loss(info.name, k=k, gamma=GAMMA, smoothing=smoothing)
                    for smoothing in ("lapin", "moreau")
                ]
    return losses


def loss_id(loss):
    """Name a loss in the list of tests."""
    parts = [loss.name]
    if "k" in loss.parameters:
        parts.append(f"k{loss.k}")
    if loss.smooth and "gamma" in loss.parameters:
        parts.append(loss.smoothing)
    return "-".join(parts)
