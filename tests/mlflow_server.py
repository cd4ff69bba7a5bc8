"""A real MLflow server for tests, on this machine alone; and one that never answers."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

_READY_S = 90.0


def find_port() -> int:
    """Find a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_answers(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a server answers a GET; fail with its log if it does not."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    pytest.fail(f"{url} does not answer:\n{log.read_text()[-3000:]}")


def make_server_environment() -> dict[str, str]:
    """Return the environment of a server of MLflow's; its job runner would be eight processes."""
    return os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }


class MlflowServer:
    """A tracking server with SQLite, which can be killed and started again.

    Parameters
    ----------
    folder : Path
        Of its database, artifacts and log.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._port = find_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, unless it is up, and wait until it answers."""
        if self._process is not None:
            return
        command = [
            *(sys.executable, "-m", "mlflow", "server"),
            *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(self._folder / "artifacts")),
            *("--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"),
            *("--allowed-hosts", f"127.0.0.1:{self._port}"),
        ]
        log = self._folder / "log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, cwd=self._folder,
                env=make_server_environment(), start_new_session=True,
            )  # fmt: skip
        wait_until_answers(f"{self.uri}/health", self._process, log)

    def kill(self) -> None:
        """Kill it, with its worker."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """Give a server that all tests share; who kills it starts it again."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


class SilentServer:
    """A server that takes connections and what is sent on them, and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked = threading.Event()
        """Set when somebody has connected."""
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._connections.append(self._socket.accept()[0])
                self.asked.set()

    def close(self) -> None:
        """Break all connections."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self._connections:
            connection.close()


@pytest.fixture
def silent_server() -> Iterator[SilentServer]:
    """Give a server that never answers."""
    server = SilentServer()
    yield server
    server.close()
