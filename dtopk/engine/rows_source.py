"""Where a worker gets the rows of a run from."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

from dtopk.engine.folds import Fold
from dtopk.engine.rows import Rows, StoreRows
from dtopk_storage import open_store


class RowsSource(Protocol):
    """What a worker makes the rows of a run of; small, and can be pickled."""

    def open(self) -> Rows:
        """Make the rows."""

    def fingerprint(self, rows: Rows) -> str:
        """Return something that is the same wherever the rows are the same ones."""


@dataclass(frozen=True, kw_only=True)
class StoreSource:
    """A split of a store that every worker sees under the same path."""

    path: str
    """An absolute path."""
    split: str
    """Name of the split."""
    skip_improper: bool = False
    """Whether rows with none of the labels, or with all, are to weigh nothing."""
    more: tuple[str, ...] = ()
    """Other splits, whose rows come beside those."""
    held_out: Fold | None = None
    """Fold whose rows are to weigh nothing."""

    def open(self) -> StoreRows:
        """See :meth:`RowsSource.open`."""
        return StoreRows(
            open_store(self.path),
            self.split,
            skip_improper=self.skip_improper,
            more=self.more,
            held_out=self.held_out,
        )

    def fingerprint(self, rows: Rows) -> str:
        """See :meth:`RowsSource.fingerprint`."""
        assert isinstance(rows, StoreRows)
        store = rows.store
        digest = hashlib.sha256(repr((store.manifest, rows.pieces)).encode())
        digest.update(store.mean.tobytes())
        digest.update(store.std.tobytes())
        return digest.hexdigest()
