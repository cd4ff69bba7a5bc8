"""A short fuzz of every reader, the same each time; tests/fuzz/fuzz.py has the long one."""

import argparse
import json
import subprocess
from dataclasses import asdict

import pytest

from tests.fuzz.fuzz import Report, fuzz_in_process
from tests.fuzz.readers import list_readers

INPUTS = 30
READERS = list(list_readers())


@pytest.fixture(scope="module")
def reports():
    """Fuzz all readers in a process of their own, whose memory is limited."""
    options = argparse.Namespace(seconds=600.0, inputs=INPUTS, seed=20, keep="")
    return {report.reader: report for report in fuzz_in_process(READERS, options)}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_reads_or_refuses_whatever_it_is_given(name, reports):
    report = reports[name]
    assert report.findings == []
    assert report.inputs == INPUTS


def test_a_reader_that_ends_the_process_is_found_and_the_others_go_on(monkeypatch):
    """The second of three, in whose place nothing is printed."""

    def run(command, **options):
        names = [each.removeprefix("--reader=") for each in command if "--reader=" in each]
        until = names.index("b") if "b" in names else len(names)
        lines = [json.dumps(asdict(Report(reader=name, inputs=9))) for name in names[:until]]
        return subprocess.CompletedProcess(command, int("b" in names), "\n".join(lines), "died")

    monkeypatch.setattr("tests.fuzz.fuzz.subprocess.run", run)
    options = argparse.Namespace(seconds=1.0, inputs=9, seed=0, keep="")
    reports = fuzz_in_process(["a", "b", "c"], options)
    assert [(each.reader, each.inputs) for each in reports] == [("a", 9), ("b", 0), ("c", 9)]
    assert [each.findings for each in reports] == [[], ["ends with status 1:\ndied"], []]
