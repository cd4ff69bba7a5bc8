"""Addresses of stores: which carry credentials, which never are to be shown or written."""

import re

import fsspec  # type: ignore[import-untyped]

_CONTAINERS = ("abfs", "abfss", "az")
_EXTRAS = {"s3": "dtopk[s3]", "s3a": "dtopk[s3]"}

# A secret may have a slash in it, or an at sign: up to the last one.
_USER_INFO = re.compile(r"(?<=://)[^\s'\"]*@")
_PASSWORD = re.compile(r"://(?!arn:)[^/@\s'\"]*:[^\s'\"]*@")
_QUERY = re.compile(r"(?<=\w)\?[^\s'\"]*=[^\s'\"]*")


def redact(text: str) -> str:
    """Put `***` in the place of what may be credentials in the addresses of a text.

    Parameters
    ----------
    text : str
    """
    return _QUERY.sub("?***", _USER_INFO.sub("***@", text))


def has_password(url: str) -> bool:
    """Tell whether an address of any kind carries a user and a password.

    Parameters
    ----------
    url : str
    """
    return bool(_PASSWORD.search(url))


def has_credentials(url: str) -> bool:
    """Tell whether an address carries a user, a password or a signature.

    Parameters
    ----------
    url : str
        An Azure container, before an '@', is none.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return False
    host = rest.partition("/")[0]
    is_name = "@" in host and scheme not in _CONTAINERS
    return has_password(url) or is_name or bool(_QUERY.search(url))


def check_address(url: str, *, name: str) -> None:
    """Refuse an address that carries credentials, or whose package is not installed.

    Parameters
    ----------
    url : str
    name : str
        What it is the address of, for the message.

    Raises
    ------
    ValueError
        It does not repeat the credentials.
    """
    scheme = url.partition("://")[0]
    if has_credentials(url):
        raise ValueError(
            f"{name} must be an address without credentials and without a query, got one of "
            f"{scheme}:// with them. Put credentials into the environment instead: "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
        )
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        advice = f'. Run: pip install "{_EXTRAS[scheme]}"' if scheme in _EXTRAS else ""
        raise ValueError(
            f"{name} must be in a store whose package is installed, got {url!r}: {error}{advice}"
        ) from error
