"""Every reader of files that dtopk has, with small valid inputs for it."""

from tests.fuzz import run_readers, source_readers, storage_readers
from tests.fuzz.reader import Reader


def list_readers() -> dict[str, Reader]:
    """List the readers by name."""
    readers = [*source_readers.READERS, *storage_readers.READERS, *run_readers.READERS]
    return {reader.name: reader for reader in readers}
