"""Certificates of a cluster whose connections are encrypted."""

import ssl
from functools import partial

from distributed import Security

from dtopk.launch.options import ClusterOptions


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


def _refuse_password(path: str) -> str:
    # OpenSSL would ask for it at the terminal, in every process.
    raise ValueError(
        f"tls_key must be a private key without a password, got {path!r}, which has one."
    )
