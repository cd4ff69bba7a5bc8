"""Making a store from a source, without holding the data in memory."""

from dtopk_storage.ingest.making import IngestProgress
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.ingest.run import ingest

__all__ = ["IngestOptions", "IngestProgress", "ingest"]
