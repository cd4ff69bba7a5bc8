"""Clusters with TLS, and those who come to them with another certificate than they should."""

import asyncio
import contextlib
import datetime
import logging
import re
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from distributed import Security

from dtopk.launch import ClusterError, ClusterOptions, open_cluster
from dtopk.launch.security import exchange_certificates, make_security
from tests.launch.conftest import Certificates

ENDS_S = 60.0
"""Seconds in which processes that must end have ended, on a machine with other work."""


@pytest.fixture(scope="module")
def expired(certificates, tmp_path_factory):
    """Sign a certificate by the same authority that was valid last year."""
    authority = Path(certificates.ca)
    key = load_pem_private_key(authority.with_name("ca.key").read_bytes(), None)
    valid = x509.load_pem_x509_certificate(Path(certificates.cert).read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(valid.subject)
        .issuer_name(valid.issuer)
        .public_key(valid.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now - datetime.timedelta(days=35))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("expired") / "cert.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return replace(certificates, cert=str(path))


@pytest.fixture(scope="module")
def shown(certificates, other_certificates, expired):
    """Give what may be shown, by what is wrong with it."""
    return {
        "another authority's": replace(other_certificates, ca=certificates.ca),
        "expired": expired,
        "in another cluster": other_certificates,
    }


def start_scheduler(folder: Path, files: Certificates) -> "tuple[subprocess.Popen[bytes], Path]":
    file = folder / "scheduler.json"
    arguments = ["scheduler", "--scheduler-file", str(file), *as_arguments(files)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dtopk.launch.rank", *arguments], cwd=folder, stderr=log
        )
    return process, file


def as_arguments(files: Certificates) -> list[str]:
    named = {"ca-file": files.ca, "cert": files.cert, "key": files.key}
    return [word for name, path in named.items() for word in (f"--tls-{name}", path)]


@pytest.fixture(scope="module")
def scheduler(certificates, tmp_path_factory):
    """Start a scheduler with TLS, and give its file, which may not be there yet."""
    process, file = start_scheduler(tmp_path_factory.mktemp("scheduler"), certificates)
    try:
        yield file
    finally:
        process.kill()
        process.wait()


MESSAGES = {
    "another authority's": r"tls_cert must be a certificate that the scheduler at 'tls://.*' takes,"
    r" got '.*cert\.pem', and it answers: .*ALERT",
    "expired": r"tls_cert must be a certificate that the scheduler at 'tls://.*' takes, got "
    r"'.*cert\.pem', and it answers: .*certificate expired",
    "in another cluster": r"scheduler must speak TLS at 'tls://.*', with a certificate that the "
    r"authority of tls_ca signed, but: .*CERTIFICATE_VERIFY_FAILED",
}


@pytest.mark.parametrize("what", MESSAGES)
def test_client_with_a_wrong_certificate_is_refused_at_once(scheduler, shown, what):
    """With an hour to wait for a scheduler it would not end here."""
    options = ClusterOptions(
        kind="scheduler", scheduler=str(scheduler), wait_s=3600, **shown[what].options
    )
    with pytest.raises(ClusterError, match=f"^{MESSAGES[what]}"), open_cluster(options):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("what", [*MESSAGES, "none"])
def test_worker_with_a_wrong_certificate_says_so_in_a_line(scheduler, shown, tmp_path, what):
    files = as_arguments(shown[what]) if what in shown else []
    arguments = ["worker", "--scheduler-file", str(scheduler), "--death-timeout", "3600", *files]
    done = subprocess.run(
        [sys.executable, "-m", "dtopk.launch.rank", *arguments],
        cwd=tmp_path, timeout=ENDS_S, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    message = MESSAGES.get(what, "tls_ca must be given, with tls_cert and tls_key, for the sched")
    assert re.search(f" ERROR {message}", line), line


@pytest.mark.slow
def test_scheduler_with_an_expired_certificate_is_refused(certificates, expired, tmp_path):
    process, file = start_scheduler(tmp_path, expired)
    try:
        options = ClusterOptions(
            kind="scheduler", scheduler=str(file), wait_s=ENDS_S, **certificates.options
        )
        message = r"^scheduler must speak TLS at .* signed, but: .*certificate has expired"
        with pytest.raises(ClusterError, match=message), open_cluster(options):
            pass
    finally:
        process.kill()
        process.wait()


def test_scheduler_of_another_version_of_tls_does_not_blame_the_certificate(certificates):
    """It sends an alert too, before it has seen a certificate."""
    newest = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    newest.load_cert_chain(certificates.cert, certificates.key)
    newest.minimum_version = ssl.TLSVersion.TLSv1_3
    security = Security(
        require_encryption=True,
        tls_ca_file=certificates.ca,
        tls_client_cert=certificates.cert,
        tls_client_key=certificates.key,
        tls_max_version=ssl.TLSVersion.TLSv1_2,
    )

    def refuse(listener):
        with contextlib.suppress(ssl.SSLError), listener.accept()[0] as plain:
            newest.wrap_socket(plain, server_side=True)

    message = (
        r"^scheduler must speak TLS at 'tls://.*', with .* signed, but: .*ALERT_PROTOCOL_VERSION"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        refusal = pool.submit(refuse, listener)
        address = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ClusterError, match=message):
            asyncio.run(exchange_certificates(address, security))
        refusal.result()


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_key_that_every_user_can_read_is_warned_of(certificates, tmp_path, caplog, mode, warns):
    key = tmp_path / "key.pem"
    key.write_bytes(Path(certificates.key).read_bytes())
    key.chmod(mode)
    with caplog.at_level(logging.WARNING):
        make_security(ClusterOptions(**certificates.options | {"tls_key": str(key)}))
    told = [f"tls_key '{key}' can be read by every user" in text for text in caplog.messages]
    assert told == [True] * warns
