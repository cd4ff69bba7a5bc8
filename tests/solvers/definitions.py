"""Every loss as a convex program, from its definition."""

import cvxpy as cp
import numpy as np

from dtopk.losses import MaskedLabel


def define_loss(loss, u, label):
    """Return the loss of scores u (m,), a cvxpy expression, for one label or an array of them.

    A label may come with masks: a loss that is not convex is so with them.

    A loss that is smoothed, by a square or an entropy, is the infimum of the plain one at u less
    something plus the smoothing's own cost of that something.
    """
    definition = _DEFINITIONS[loss.name]
    gamma = getattr(loss, "gamma", 0.0)
    if gamma == 0:
        return definition(loss, u, label)
    if getattr(loss, "smoothing", "moreau") == "moreau":
        rest = cp.Variable(u.shape[0])
        moved = u - rest
    else:
        # In the margins of the other classes alone.
        rest = cp.Variable(u.shape[0] - 1)
        others = _others(u, label)
        place = np.zeros((u.shape[0], len(others)))
        place[others, np.arange(len(others))] = 1
        moved = u - place @ rest
    return definition(loss, moved, label) + cp.sum_squares(rest) / (2 * gamma)


def _others(u, label):
    own = label.label if isinstance(label, MaskedLabel) else label
    return [j for j in range(u.shape[0]) if j not in np.atleast_1d(own)]


def _margins(u, label):
    return 1 + u[_others(u, label)] - u[int(label)]


def _mean_of_largest(h, k):
    return cp.sum_largest(h, k) / k


def _alpha(loss, u, label):
    return cp.pos(_mean_of_largest(_margins(u, label), loss.k))


def _alpha_incl(loss, u, label):
    if loss.k == 1:
        return _alpha(loss, u, label)
    h, k = _margins(u, label), loss.k
    return cp.maximum(0, _mean_of_largest(h, k), cp.sum_largest(h, k - 1) / k)


def _beta(loss, u, label):
    return _mean_of_largest(cp.pos(_margins(u, label)), loss.k)


def _weighted_usunier(loss, u, label):
    drops = -np.diff([*loss.rho, 0.0])
    hinges = cp.pos(_margins(u, label))
    return sum(drop * cp.sum_largest(hinges, j + 1) for j, drop in enumerate(drops))


def _weighted_topk(loss, u, label):
    drops = -np.diff([*loss.rho, 0.0])
    margins = 1 - np.eye(u.shape[0])[label] + u - u[int(label)]
    return cp.pos(sum(drop * cp.sum_largest(margins, j + 1) for j, drop in enumerate(drops)))


def _structured(loss, u, label):
    others = _others(u, label)
    costs = loss.label_cost[label, others] if loss.label_cost.size else np.ones(len(others))
    return cp.pos(cp.max(costs + u[others] - u[int(label)]))


def _softmax(loss, u, label):
    return cp.log_sum_exp(u) - u[int(label)]


def _truncated(loss, u, label):
    left = [j for j in range(u.shape[0]) if j not in label.masked]
    return cp.log_sum_exp(u[left]) - u[label.label]


def _calibrated(loss, u, label):
    left = [j for j in range(u.shape[0]) if j not in label.masked]
    return cp.pos(1 + cp.max(u[left]) - u[label.label])


def _entropy(support):
    def define(loss, u, label):
        """The entropies are those of softmax, and the domain's support function is the rest."""
        z = cp.Variable(u.shape[0] - 1)
        rest = u[_others(u, label)] - u[int(label)] - z
        return support(z, loss.k) + cp.log_sum_exp(cp.hstack([np.zeros(1), rest]))

    return define


def _sparsemax(loss, u, label):
    z = cp.Variable(u.shape[0])
    return cp.max(u - z) + cp.sum_squares(z) / 2 + 0.5 - u[int(label)]


def _signs(u, label):
    signs = -np.ones(u.shape[0])
    signs[label] = 1
    return signs


def _hinge_ova(loss, u, label):
    return cp.sum(cp.pos(1 - cp.multiply(_signs(u, label), u)))


def _logistic_ova(loss, u, label):
    return cp.sum(cp.logistic(-cp.multiply(_signs(u, label), u)))


def _multilabel_hinge(loss, u, label):
    return cp.pos(1 + cp.max(u[_others(u, label)]) - cp.min(u[label]))


def _multilabel_softmax(loss, u, label):
    return cp.log_sum_exp(u) - cp.sum(u[label]) / len(label)


_DEFINITIONS = {
    "softmax": _softmax,
    "topk_entropy_alpha": _entropy(lambda z, k: cp.pos(_mean_of_largest(z, k))),
    "topk_entropy_beta": _entropy(lambda z, k: _mean_of_largest(cp.pos(z), k)),
    "truncated_topk_entropy": _truncated,
    "topk_hinge_alpha": _alpha,
    "topk_hinge_alpha_incl": _alpha_incl,
    "topk_hinge_beta": _beta,
    "calibrated_topk_hinge": _calibrated,
    "weighted_usunier": _weighted_usunier,
    "weighted_topk_hinge": _weighted_topk,
    "structured_hinge": _structured,
    "sparsemax": _sparsemax,
    "hinge_ova": _hinge_ova,
    "smooth_hinge_ova": _hinge_ova,
    "logistic_ova": _logistic_ova,
    "multilabel_hinge": _multilabel_hinge,
    "multilabel_softmax": _multilabel_softmax,
}
