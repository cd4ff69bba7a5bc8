"""Fixtures of the clusters' tests: certificates, and processes that end with the test."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificates:
    """Paths of an authority's certificate and of one that it signed, with its key."""

    ca: str
    cert: str
    key: str

    @property
    def options(self) -> dict[str, str]:
        return {"tls_ca": self.ca, "tls_cert": self.cert, "tls_key": self.key}


def make_certificates(folder: Path) -> Certificates:
    """Run the commands that deploy/README.md gives."""
    text = (Path(__file__).parents[2] / "deploy" / "README.md").read_text().replace("\\\n", " ")
    commands = [line.strip() for line in text.splitlines() if line.strip().startswith("openssl ")]
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return Certificates(*(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory):
    """Sign them by another authority."""
    return make_certificates(tmp_path_factory.mktemp("other_tls"))


@pytest.fixture
def start(tmp_path):
    """Start a Python program in an empty folder; it is killed at the end of the test."""
    started = []

    def start(*arguments, **variables):
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
