"""The command line as a whole: help, answers, errors and exit statuses."""

import errno
import subprocess
import sys

import click
import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import answer_json, format_table, run_and_report
from dtopk_storage import CheckpointError


def test_help_lists_every_command(call):
    result = call("--help")
    assert result.status == 0
    for name in dtopk.list_commands(click.Context(dtopk)):
        assert f"\n  {name} " in result.out


def test_help_imports_no_command():
    script = (
        "import sys\n"
        "from dtopk.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'numba', 'zarr', 'mlflow', 'matplotlib', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_no_command_shows_help_on_standard_error(call):
    result = call()
    assert (result.status, result.out) == (2, "")
    assert "Commands:" in result.err


def test_version_is_printed(call):
    result = call("--version")
    assert result.status == 0
    assert result.out.startswith("dtopk ")


def test_unknown_command_names_the_nearest(call):
    result = call("trian")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: command 'trian' is unknown. Did you mean 'train'?")
    assert result.err.count("\n") == 1


def test_unknown_option_is_one_line(call):
    result = call("losses", "--jsn")
    assert result.status == 2
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ValueError("C must be\nabove 0."), 2, "error: C must be above 0.\n"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), 2, "error: No such file: 'x'.\n"),
        (OSError(errno.ENOSPC, "The disk is full: cannot write", "x"), 1,
         "error: The disk is full: cannot write: 'x'.\n"),
        (KeyboardInterrupt(), 130, "error: interrupted.\n"),
        (click.Abort(), 130, "error: interrupted.\n"),
    ],
)  # fmt: skip
def test_error_is_one_line_and_a_status(capsys, error, status, message):
    @click.command()
    def fail():
        raise error

    assert run_and_report(fail, []) == status
    # click ends the line of the terminal's ^C first.
    assert capsys.readouterr().err.removeprefix("\n") == message


def test_disk_that_is_full_under_a_checkpoint_is_a_failure(capsys):
    @click.command()
    def fail():
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise CheckpointError("chunk 3 could not be written.") from error

    assert run_and_report(fail, []) == 1
    assert capsys.readouterr().err == "error: chunk 3 could not be written.\n"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ValueError("C must be above 0."), 2, "C must be above 0."),
        (KeyboardInterrupt(), 130, "interrupted."),
    ],
)
def test_notes_of_an_error_are_on_its_line(capsys, error, status, message):
    error.add_note("The duals are kept.")

    @click.command()
    def fail():
        raise error

    assert run_and_report(fail, []) == status
    said = capsys.readouterr().err.removeprefix("\n")
    assert said == f"error: {message} The duals are kept.\n"


def test_bug_keeps_its_traceback():
    @click.command()
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_and_report(fail, [])


def test_json_has_null_for_numbers_it_lacks(capsys):
    answer_json({"a": float("nan"), "b": [1.0, float("inf")], "c": {1: 0.5}})
    assert capsys.readouterr().out == '{"a": null, "b": [1.0, null], "c": {"1": 0.5}}\n'


def test_table_puts_numbers_to_the_right():
    text = format_table([["ant", "1.5%"], ["beetle", "10.0%"]], header=("class", "share"))
    assert text == "class   share\nant      1.5%\nbeetle  10.0%"


def test_losses_lists_every_loss(call, call_json):
    from dtopk.losses import available

    names = [info.name for info in available()]
    listed = call_json("losses")["losses"]
    assert [loss["name"] for loss in listed] == names
    for key in ("kind", "parameters", "convex", "smooth", "solvers"):
        assert all(key in loss for loss in listed)
    assert all(name in call("losses").out for name in names)
