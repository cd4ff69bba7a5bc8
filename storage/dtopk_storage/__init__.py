"""Features, labels and duals on disk, in zarr v3; storage/README.md has the format."""

from dtopk_storage.checks import check_batch, check_finite
from dtopk_storage.dual import DualFile, create_dual, open_dual
from dtopk_storage.errors import CheckpointError, DatasetError
from dtopk_storage.files import drop_page_cache
from dtopk_storage.store import Batch, FeatureStore, open_store
from dtopk_storage.writer import StoreWriter, create_store

__all__ = [
    "Batch",
    "CheckpointError",
    "DatasetError",
    "DualFile",
    "FeatureStore",
    "StoreWriter",
    "check_batch",
    "check_finite",
    "create_dual",
    "create_store",
    "drop_page_cache",
    "open_dual",
    "open_store",
]
