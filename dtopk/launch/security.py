"""Certificates of a cluster whose connections are encrypted."""

import asyncio
import contextlib
import logging
import os
import re
import shlex
import ssl
import stat
from functools import partial

from distributed import Security

from dtopk.launch.errors import ClusterError
from dtopk.launch.options import ClusterOptions, split_address
from dtopk.launch.workers import describe_error

logger = logging.getLogger(__name__)

_OF_CERTIFICATE = re.compile(r"ALERT_(\w*CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR)")
"""OpenSSL's names of the alerts by which the other end refuses a certificate, the last of them one
of an authority of the same name; the other alerts are about versions of TLS, ciphers and damage."""


def make_security(options: ClusterOptions) -> Security | None:
    """Read the TLS files of a cluster, whose every process shows the same certificate.

    Returns
    -------
    distributed.Security or None
        None: connections are not encrypted, as far as these options go.

    Raises
    ------
    ValueError
        If a file is missing or is not what it must be.
    """
    if not options.tls:
        return None
    _check_files(options)
    _warn_of_readers(options.tls_key)
    roles = ("client", "scheduler", "worker")
    return Security(
        require_encryption=True,
        tls_ca_file=options.tls_ca,
        **{f"tls_{role}_cert": options.tls_cert for role in roles},
        **{f"tls_{role}_key": options.tls_key for role in roles},
    )


def _check_files(options: ClusterOptions) -> None:
    """Try what a connection would do first; its own errors do not name the file."""
    for name in ("tls_ca", "tls_cert", "tls_key"):
        path = getattr(options, name)
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ValueError(
                f"{name} must be the path of a file in PEM, got {path!r}: {error.strerror}."
            ) from error
    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
    except ssl.SSLError as error:
        raise ValueError(
            f"tls_ca must be a certificate in PEM, got {options.tls_ca!r}: {error}."
        ) from error
    try:
        context.load_cert_chain(
            options.tls_cert, options.tls_key, password=partial(_refuse_password, options.tls_key)
        )
    except ssl.SSLError as error:
        raise ValueError(
            f"tls_cert and tls_key must be a certificate and its private key in PEM, got "
            f"{options.tls_cert!r} and {options.tls_key!r}: {error}."
        ) from error


def _warn_of_readers(path: str) -> None:
    """Warn of a key that everybody on this machine may take."""
    if os.stat(path).st_mode & stat.S_IROTH:
        logger.warning(
            "tls_key %r can be read by every user of this machine, who may then join the cluster. "
            "Run: chmod o-rwx %s", path, shlex.quote(path)
        )  # fmt: skip


def _refuse_password(path: str) -> str:
    # OpenSSL would ask for it at the terminal, in every process.
    raise ValueError(
        f"tls_key must be a private key without a password, got {path!r}, which has one."
    )


async def exchange_certificates(address: str, security: Security) -> None:
    """Exchange certificates with a scheduler once; Dask would try again what cannot become better.

    Parameters
    ----------
    address : str
        Of the scheduler, beginning with ``tls://``.
    security : distributed.Security
        Of `make_security`.

    Raises
    ------
    ClusterError
        If one of the two does not take the other's.
    OSError
        If nobody answers.
    """
    host, port = split_address(address)
    context = security.get_connection_args("client")["ssl_context"]
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            # The scheduler may refuse a certificate once this end takes the connection for made.
            # Otherwise it is the first to speak.
            await reader.read(1)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except ssl.SSLError as error:
        if _OF_CERTIFICATE.search(error.reason or ""):
            shown = security.get_tls_config_for_role("client")["cert"]
            raise ClusterError(
                f"tls_cert must be a certificate that the scheduler at {address!r} takes, got "
                f"{shown!r}, and it answers: {describe_error(error)}."
            ) from error
        raise ClusterError(
            f"scheduler must speak TLS at {address!r}, with a certificate that the authority of "
            f"tls_ca signed, but: {describe_error(error)}."
        ) from error
