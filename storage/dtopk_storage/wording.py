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


def format_bytes(size: float) -> str:
    """Write a size in the unit that leaves it below 1024.

    Parameters
    ----------
    size : float
        Bytes.
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def format_count(count: int, noun: str) -> str:
    """Write a number and what it counts.

    Parameters
    ----------
    count : int
    noun : str
        Of one thing.
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
