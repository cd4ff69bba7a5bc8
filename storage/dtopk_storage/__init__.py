"""Features, labels, duals and a run's state on disk; storage/README.md has the formats."""

from dtopk_storage.checks import check_batch, check_finite
from dtopk_storage.dual import DualFile, create_dual, open_dual
from dtopk_storage.errors import CheckpointError, DatasetError
from dtopk_storage.files import drop_page_cache
from dtopk_storage.label_rows import LabelRows
from dtopk_storage.packed_rows import PackedRows, pack_rows
from dtopk_storage.run_lock import RunLock
from dtopk_storage.run_state import RunState, open_run_state
from dtopk_storage.store import Batch, FeatureStore
from dtopk_storage.store_opening import open_store
from dtopk_storage.writer import StoreWriter, create_store

__all__ = [
    "Batch",
    "CheckpointError",
    "DatasetError",
    "DualFile",
    "FeatureStore",
    "LabelRows",
    "PackedRows",
    "RunLock",
    "RunState",
    "StoreWriter",
    "check_batch",
    "check_finite",
    "create_dual",
    "create_store",
    "drop_page_cache",
    "open_dual",
    "open_run_state",
    "open_store",
    "pack_rows",
]
