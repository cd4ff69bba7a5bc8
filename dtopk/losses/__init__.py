"""Losses by name. A new loss is one class in this package and one line in `_CLASSES`."""

import difflib
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from dtopk.losses.base import Labels, Loss
from dtopk.losses.entropy import TopKEntropy, TopKEntropyAlpha, TopKEntropyBeta
from dtopk.losses.hinge import TopKHinge, TopKHingeAlpha, TopKHingeAlphaIncl, TopKHingeBeta
from dtopk.losses.label_sets import LabelSets, join_labels
from dtopk.losses.masked import CalibratedTopKHinge, MaskedLoss, TruncatedTopKEntropy
from dtopk.losses.masked_labels import MaskedLabel, MaskedLabels
from dtopk.losses.multilabel import MultilabelHinge, MultilabelSoftmax
from dtopk.losses.one_vs_all import HingeOva, LogisticOva, SmoothHingeOva
from dtopk.losses.ordered_hinge import WeightedUsunier
from dtopk.losses.softmax import Softmax
from dtopk.losses.sparsemax import Sparsemax
from dtopk.losses.structured_hinge import StructuredHinge
from dtopk.losses.weighted_topk import WeightedTopKHinge

__all__ = [
    "SOURCES",
    "CalibratedTopKHinge",
    "HingeOva",
    "LabelSets",
    "Labels",
    "LogisticOva",
    "Loss",
    "LossInfo",
    "MaskedLabel",
    "MaskedLabels",
    "MaskedLoss",
    "MultilabelHinge",
    "MultilabelSoftmax",
    "SmoothHingeOva",
    "Softmax",
    "Sparsemax",
    "StructuredHinge",
    "TopKEntropy",
    "TopKEntropyAlpha",
    "TopKEntropyBeta",
    "TopKHinge",
    "TopKHingeAlpha",
    "TopKHingeAlphaIncl",
    "TopKHingeBeta",
    "TruncatedTopKEntropy",
    "WeightedTopKHinge",
    "WeightedUsunier",
    "available",
    "join_labels",
    "make_loss",
    "what_is_certified",
]

_CLASSES: dict[str, type[Loss]] = {
    cls.name: cls
    for cls in (
        Softmax,
        TopKEntropyAlpha,
        TopKEntropyBeta,
        TruncatedTopKEntropy,
        TopKHingeAlpha,
        TopKHingeAlphaIncl,
        TopKHingeBeta,
        CalibratedTopKHinge,
        WeightedUsunier,
        WeightedTopKHinge,
        StructuredHinge,
        Sparsemax,
        HingeOva,
        SmoothHingeOva,
        LogisticOva,
        MultilabelHinge,
        MultilabelSoftmax,
    )
}
SOURCES = {
    "[1]": "Lapin, Hein, Schiele. Loss Functions for Top-k Error. CVPR 2016.",
    "[2]": "Yang, Koyejo. On the Consistency of Top-k Surrogate Losses. ICML 2020.",
    "[3]": "Each class's best score depends on its own probability alone, and rises with it; for "
    "the plain hinge it is 1 above 1/2 and -1 below.",
}
"""Where it is shown which losses are calibrated for the top-k error."""
_NEUTRAL = {"k": 1, "gamma": 0.0, "smoothing": "lapin"}
"""Values that may be given to a loss that does not take the parameter: they ask for nothing."""


@dataclass(frozen=True, kw_only=True)
class LossInfo:
    """What the registry says of a loss."""

    name: str
    """The name in job files."""
    kind: str
    """'multiclass' or 'multilabel'."""
    targets: tuple[str, ...]
    """What it can be trained on: 'multiclass', rows of one class, and 'multilabel', of a set."""
    formula: str
    """L(y, u), in plain text."""
    parameters: tuple[str, ...]
    """The parameters it takes."""
    convex: bool
    """Whether the certificate proves a global optimum; if not, a stationary point."""
    smooth: str
    """'always', 'never', or the condition on gamma."""
    calibrated: str
    """For which top-k error it is calibrated, as far as is known; `SOURCES` has the numbers."""
    solvers: tuple[str, ...]
    """The solvers that can train it, some under a condition: 'lbfgs (gamma > 0)'."""
    cost: str
    """What the exact update of a row costs."""
    summary: str
    """One line on what it is."""


def available() -> tuple[LossInfo, ...]:
    """Return what there is to know of every registered loss, in the order of the registry."""
    return tuple(
        LossInfo(
            name=cls.name,
            kind=cls.targets[0],
            targets=cls.targets,
            formula=cls.formula,
            parameters=cls.parameters,
            convex=cls.convex,
            smooth=cls.smoothness,
            calibrated=cls.calibrated,
            solvers=tuple(
                f"{name} ({condition})" if condition else name
                for name, condition in cls.solver_conditions().items()
            ),
            cost=cls.cost,
            summary=cls.summary,
        )
        for cls in _CLASSES.values()
    )


def what_is_certified(name: str) -> str:
    """Say in two words what the certificate of a loss proves.

    Parameters
    ----------
    name : str
        A name that :func:`available` lists.

    Returns
    -------
    str
        'certified', of the optimum; or 'certified stationary', of the optimum of the convex problem
        that leaves out the classes which each row forgives.
    """
    return "certified" if _CLASSES[name].convex else "certified stationary"


def make_loss(
    name: str,
    *,
    k: int | None = None,
    gamma: float | None = None,
    smoothing: str | None = None,
    rho: ArrayLike | None = None,
    label_cost: ArrayLike | None = None,
) -> Loss:
    """Make the loss of that name. A parameter left out, or None, has the loss's own default.

    Parameters
    ----------
    name : str
        A name that :func:`available` lists.
    k : int, at least 1, optional
    gamma : float, at least 0, optional
    smoothing : str, 'lapin' or 'moreau', optional
    rho : array-like of shape (n_weights,), optional
        Weights of the largest, second largest, ... margin; not negative, and none above the one
        before.
    label_cost : array-like of shape (n_classes, n_classes), optional
        What naming class j costs where i is true: row i, column j; not negative, with a zero
        diagonal.

    Returns
    -------
    Loss

    Raises
    ------
    ValueError
        If the name is unknown, a value breaks its rule, or the loss does not take a parameter.
    """
    if name not in _CLASSES:
        near = difflib.get_close_matches(str(name), _CLASSES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"loss {name!r} is unknown.{hint} Available: {', '.join(map(repr, _CLASSES))}."
        )
    cls = _CLASSES[name]
    given: dict[str, Any] = {
        "k": k,
        "gamma": gamma,
        "smoothing": smoothing,
        "rho": rho,
        "label_cost": label_cost,
    }
    taken = {}
    for parameter, value in given.items():
        if value is None:
            continue
        if parameter in cls.parameters:
            taken[parameter] = value
        elif parameter not in _NEUTRAL or value != _NEUTRAL[parameter]:
            raise ValueError(f"{parameter} must be left out for loss {name!r}, got {value!r}.")
    return cls(**taken)
