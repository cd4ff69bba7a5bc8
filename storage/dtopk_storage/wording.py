"""Numbers and lists as messages have them."""

from collections.abc import Sequence

_NAMES_SHOWN = 20


def format_names(names: Sequence[str]) -> str:
    """Quote names, and of many the first and the last: labels tend to stand at an end.

    Parameters
    ----------
    names : sequence of str
    """
    quoted = [repr(name) for name in names]
    if len(quoted) > _NAMES_SHOWN:
        half = _NAMES_SHOWN // 2
        quoted = [*quoted[:half], "...", *quoted[-half:]]
    return ", ".join(quoted) or "nothing"
