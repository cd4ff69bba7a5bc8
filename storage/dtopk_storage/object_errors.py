"""What a store of objects fails with: whether it passes, and what to say if it does not."""

import errno
from collections.abc import Iterator

from dtopk_storage.addresses import redact

_PASSING_NUMBERS = frozenset(
    {
        errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET,
        errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE, errno.ETIMEDOUT,
    }
)  # fmt: skip
_PASSING_CODES = frozenset(
    {
        "429", "OperationAborted", "RequestTimeout", "SlowDown", "Throttling",
        "ThrottlingException", "TooManyRequests", "XAmzContentSHA256Mismatch",
    }
)  # fmt: skip
# By name: the packages that raise them need not be installed.
_PASSING_KINDS = frozenset(
    {
        "ClientPayloadError", "ConnectTimeoutError", "ConnectionClosedError",
        "EndpointConnectionError", "HTTPClientError", "HttpError", "IncompleteRead",
        "IncompleteReadError", "ReadTimeoutError", "ResponseParserError", "ResponseStreamingError",
        "ServerDisconnectedError",
    }
)  # fmt: skip
_SERVER_AT_FAULT = 500
_NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"}
)
_CONDITION_FAILED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})


def is_passing(error: BaseException) -> bool:
    """Tell whether a request that failed so may succeed when it is made again.

    Parameters
    ----------
    error : exception
        As fsspec or a package below it raised it.
    """
    code, status = _answer_of(error)
    if code in _PASSING_CODES or status >= _SERVER_AT_FAULT:
        return True
    for each in _chain(error):
        if isinstance(each, FileNotFoundError | PermissionError | FileExistsError):
            return False
        if isinstance(each, TimeoutError | ConnectionError):
            return True
        if isinstance(each, OSError) and each.errno in _PASSING_NUMBERS:
            return True
        if type(each).__name__ in _PASSING_KINDS:
            return True
    return False


def explain(error: Exception, done: str, url: str) -> OSError:
    """Make the error that says what could not be done, where, and what to do about it.

    Parameters
    ----------
    error : Exception
        As fsspec or a package below it raised it.
    done : str
        Such as 'read' or 'written'.
    url : str
        Of the object.

    Returns
    -------
    OSError
        Of the kind that pathlib's methods raise. A bucket that is not there is no
        FileNotFoundError, since everything that reads takes that as 'not written yet'.
    """
    code, kinds = _answer_of(error)[0], {type(each).__name__ for each in _chain(error)}
    start = f"It could not be {done}"
    if kinds & _NO_CREDENTIALS:
        return OSError(
            errno.EACCES,
            f"{start}: credentials must be in the environment (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) or be given by the machine, got none",
            url,
        )
    if code == "NoSuchBucket" or "bucket does not exist" in str(error):
        return OSError(
            errno.ENXIO,
            f"{start}: its bucket must exist, but there is no {_bucket_of(url)!r}. Create it, or "
            "correct the address or AWS_ENDPOINT_URL",
            url,
        )
    if isinstance(error, PermissionError):
        return OSError(
            errno.EACCES,
            f"{start}: the store refuses access{f' ({code})' if code else ''}. Check the "
            "credentials in the environment, and that they may list, read, write and delete there",
            url,
        )
    if code in _CONDITION_FAILED:
        return OSError(errno.EEXIST, f"{start}: another version is there", url)
    number = getattr(error, "errno", None) or _errno_of(error)
    return OSError(number, f"{start}: {redact(str(error))}", url)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _answer_of(error: BaseException) -> tuple[str, int]:
    """Return the code and the HTTP status with which S3 answered; empty and 0 if it did not."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response.get("Error", {}).get("Code", "")), int(status)
    return "", 0


def _bucket_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def _errno_of(error: Exception) -> int:
    """Give the number that makes an OSError of the same kind: stores tend to leave it out."""
    kinds = {
        FileNotFoundError: errno.ENOENT,
        FileExistsError: errno.EEXIST,
        PermissionError: errno.EACCES,
        TimeoutError: errno.ETIMEDOUT,
    }
    return next((number for kind, number in kinds.items() if isinstance(error, kind)), errno.EIO)
