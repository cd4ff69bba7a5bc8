"""A short fuzz of every reader, the same each time; tests/fuzz/fuzz.py has the long one."""

import argparse

import pytest

from tests.fuzz.fuzz import fuzz_in_process
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
