"""Files and folders that are whole or absent, and what killed processes leave of them."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtopk.atomic import beside, raise_naming, replace_when_complete, write_text

WRITER = """
import sys
from pathlib import Path
from dtopk.atomic import beside
kind, path = sys.argv[1:]
with beside(Path(path), getattr(Path, kind)):
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["touch", "mkdir"])
def writer(request, tmp_path):
    """Another process, which has begun a file, or a folder, and waits."""
    command = [sys.executable, "-c", WRITER, request.param, str(tmp_path / "made")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        yield process


def write_half(path):
    with replace_when_complete(path) as file:
        file.write(b"half")
        raise KeyError


def list_names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_is_deleted_that_a_killed_process_has_begun(tmp_path, writer):
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert list_names(tmp_path) == [f".made.partial-{writer.pid}"]
    write_text(tmp_path / "made", "whole")
    assert list_names(tmp_path) == ["made"]


def test_file_stays_that_another_process_is_at_work_on(tmp_path, writer):
    write_text(tmp_path / "made", "whole")
    assert list_names(tmp_path) == [f".made.partial-{writer.pid}", "made"]
    writer.communicate()
    assert list_names(tmp_path) == ["made"]


def test_leftovers_of_other_files_stay(tmp_path):
    (tmp_path / ".made.csv.partial-1").touch()
    write_text(tmp_path / "made", "whole")
    assert list_names(tmp_path) == [".made.csv.partial-1", "made"]


def test_file_that_was_there_is_kept_on_an_error(tmp_path):
    (tmp_path / "made").write_text("before")
    with pytest.raises(KeyError):
        write_half(tmp_path / "made")
    assert list_names(tmp_path) == ["made"]
    assert (tmp_path / "made").read_text() == "before"


def test_missing_file_of_the_caller_is_its_own_error(tmp_path):
    """It is not taken for the file that is written, which another process might have deleted."""
    with pytest.raises(FileNotFoundError, match="other"), beside(tmp_path / "made", Path.touch):
        (tmp_path / "other").read_text()
    assert list_names(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "The disk is full: cannot write"), (errno.EIO, os.strerror(errno.EIO))],
)
def test_error_names_the_file_and_not_what_is_beside_it(number, message):
    error = OSError(number, os.strerror(number), ".made.partial-1")
    with pytest.raises(OSError, match=message) as caught:
        raise_naming(error, Path("made"))
    assert caught.value.filename == "made"
