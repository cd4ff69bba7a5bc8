"""Losses by name. A new loss is one class in this package and one line in `_CLASSES`."""

import difflib
from dataclasses import dataclass

from dtopk.losses.base import Loss
from dtopk.losses.hinge import TopKHinge, TopKHingeAlpha, TopKHingeAlphaIncl, TopKHingeBeta
from dtopk.losses.softmax import Softmax

__all__ = [
    "Loss",
    "LossInfo",
    "Softmax",
    "TopKHinge",
    "TopKHingeAlpha",
    "TopKHingeAlphaIncl",
    "TopKHingeBeta",
    "available",
    "make_loss",
]

_CLASSES: dict[str, type[Loss]] = {
    cls.name: cls for cls in (Softmax, TopKHingeAlpha, TopKHingeAlphaIncl, TopKHingeBeta)
}
_DEFAULTS = {"k": 1, "gamma": 0.0, "smoothing": "lapin"}


@dataclass(frozen=True, kw_only=True)
class LossInfo:
    """What the registry says of a loss."""

    name: str
    """The name in job files."""
    kind: str
    """'multiclass' or 'multilabel'."""
    parameters: tuple[str, ...]
    """The parameters it takes, of k, gamma and smoothing."""
    convex: bool
    """Whether the certificate proves a global optimum."""
    smooth: str
    """'always', 'never', or the condition on gamma."""
    solvers: tuple[str, ...]
    """The solvers that can train it."""
    summary: str
    """One line on what it is."""


def available() -> tuple[LossInfo, ...]:
    """Return what there is to know of every registered loss, in the order of the registry."""
    return tuple(
        LossInfo(
            name=cls.name,
            kind=cls.kind,
            parameters=cls.parameters,
            convex=cls.convex,
            smooth="gamma > 0" if "gamma" in cls.parameters else "always",
            solvers=cls.solvers,
            summary=cls.summary,
        )
        for cls in _CLASSES.values()
    )


def make_loss(name: str, *, k: int = 1, gamma: float = 0.0, smoothing: str = "lapin") -> Loss:
    """Make the loss of that name.

    Parameters
    ----------
    name : str
        A name that :func:`available` lists.
    k : int, at least 1
    gamma : float, at least 0
    smoothing : str, 'lapin' or 'moreau'

    Returns
    -------
    Loss

    Raises
    ------
    ValueError
        If the name is unknown, a value breaks its rule, or the loss does not take a parameter
        that differs from its default.
    """
    if name not in _CLASSES:
        near = difflib.get_close_matches(str(name), _CLASSES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"loss {name!r} is unknown.{hint} Available: {', '.join(map(repr, _CLASSES))}."
        )
    cls = _CLASSES[name]
    given = {"k": k, "gamma": gamma, "smoothing": smoothing}
    for parameter, value in given.items():
        if parameter not in cls.parameters and value != _DEFAULTS[parameter]:
            raise ValueError(f"{parameter} must be left out for loss {name!r}, got {value!r}.")
    return cls(**{parameter: given[parameter] for parameter in cls.parameters})
