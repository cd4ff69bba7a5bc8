"""What features, labels and the like are called in a file that has names."""

from collections.abc import Iterable, Sequence
from typing import Literal

from dtopk_storage.errors import DatasetError
from dtopk_storage.wording import format_names

FEATURE_KEYS = ("X", "features")
FEATURES_ADVICE = "Name the right one with {features_key}."

Role = Literal["labels", "weights", "split_names", "class_names"]
"""What values are for; `IngestOptions` has a file and a key of this name for each."""

_USUAL_KEYS: dict[Role, tuple[str, ...]] = {
    "labels": ("y", "label", "labels", "target", "class"),
    "weights": ("sample_weight", "sample_weights", "weight", "weights"),
    "split_names": ("split", "splits"),
    "class_names": ("class_names", "classes", "label_names", "names"),
}
ROLE_NAMES: dict[Role, str] = {
    "labels": "labels",
    "weights": "sample weights",
    "split_names": "split names",
    "class_names": "class names",
}
"""What to call them in messages."""


def choose_vector_key(
    key: str | None,
    names: Iterable[str],
    role: Role,
    place: str,
    usual: Sequence[str] | None = None,
) -> str:
    """Return the name asked for, or the first usual one for the role that is there.

    Parameters
    ----------
    key : str or None
    names : iterable of str
        That are there.
    role : {'labels', 'weights', 'split_names', 'class_names'}
    place : str
        For the message.
    usual : sequence of str or None
        None takes those that are usual for the role.

    Raises
    ------
    DatasetError
        Names those that are there.
    """
    return choose_key(
        key,
        names,
        _USUAL_KEYS[role] if usual is None else usual,
        what=ROLE_NAMES[role],
        place=place,
        advice=f"Name the right one with {{{role}_key}}.",
    )


def refuse_key(key: str | None, role: Role, place: str) -> None:
    """Refuse a key for a file that has one value a row and no more.

    Parameters
    ----------
    key : str or None
    role : {'labels', 'weights', 'split_names', 'class_names'}
    place : str
        For the message.

    Raises
    ------
    DatasetError
    """
    if key is not None:
        raise DatasetError(
            f"{ROLE_NAMES[role]} of {place} must be taken without a key, since nothing in it has "
            f"a name, got {key!r}.",
            advice=f"Leave {{{role}_key}} out.",
        )


def choose_key(
    key: str | None,
    names: Iterable[str],
    usual: Sequence[str],
    *,
    what: str,
    place: str,
    advice: str,
) -> str:
    """Return the name asked for, or the first usual one that is there.

    Parameters
    ----------
    key : str or None
    names : iterable of str
        That are there.
    usual : sequence of str
    what : str
        features or labels, for the message.
    place : str
        For the message.
    advice : str
        Of the error, as `DatasetError` takes it.

    Raises
    ------
    DatasetError
        Names those that are there.
    """
    present = list(names)
    if key is not None and key in present:
        return key
    if key is None:
        for name in usual:
            if name in present:
                return name
    wanted = f"{key!r}" if key is not None else " or ".join(repr(name) for name in usual)
    raise DatasetError(
        f"{what} in {place} must be {wanted}, got only {format_names(present)}.", advice=advice
    )
