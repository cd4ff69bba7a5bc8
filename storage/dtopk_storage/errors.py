"""What is wrong with what lies on disk."""

from collections.abc import Mapping

_MOST_CHARACTERS = 500


class DatasetError(ValueError):
    """A store, or a source that one is made from, does not hold what it must.

    Parameters
    ----------
    message : str
        What is wrong, as a sentence.
    advice : str
        What to do, with the options of `ingest` that it names in braces: Choose {labels_key}.
    """

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return self.describe({})

    def describe(self, option_names: Mapping[str, str]) -> str:
        """Return message and advice, as someone reads them who calls the options by other names.

        Parameters
        ----------
        option_names : mapping of str to str
            What an option is called, by its name here; one that is not in it keeps its name.
        """
        advice = self.advice.format_map(_Names(option_names))
        return f"{self.message} {advice}" if advice else self.message


def describe_error(error: BaseException) -> str:
    """Put what a library raised into one line of moderate length, with its kind if that is all.

    Parameters
    ----------
    error : Exception
    """
    text = " ".join(str(error).split())[:_MOST_CHARACTERS]
    # A KeyError is no more than the key.
    return text if text and not isinstance(error, LookupError) else f"{type(error).__name__} {text}"


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


class CheckpointError(ValueError):
    """A file in which a run keeps its state does not hold what it must."""
