"""What `ingest` is asked to do."""

import dataclasses
import math
from pathlib import Path

from dtopk_storage.ingest.label_reading import KIND_CHOICES, KindChoice
from dtopk_storage.manifest import TRAIN
from dtopk_storage.publishing import check_compression
from dtopk_storage.sources.base import FeatureTransform, SourceOptions
from dtopk_storage.values import as_feature_dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestOptions:
    """How a store is made from a source."""

    source_format: str | None = None
    """Format of the source, where its name does not tell."""
    reading: SourceOptions = dataclasses.field(default_factory=SourceOptions)
    """How the source is read."""
    labels: Path | None = None
    """Another file with the labels; None takes them from the source."""
    labels_key: str | None = None
    """Member, dataset, array or column with the labels."""
    kind: KindChoice = "auto"
    """Whether a row has one label (multiclass) or any number (multilabel); auto looks."""
    label_separator: str | None = None
    """Between the labels of a row that are in one text, which makes them multilabel."""
    class_names: Path | None = None
    """Another file with the names of the columns of an indicator matrix, in their order."""
    class_names_key: str | None = None
    """Member, dataset, array or column with them, of `class_names` or of the source."""
    weights: Path | None = None
    """Another file with sample weights."""
    weights_key: str | None = None
    """Member, dataset, array or column with sample weights, of `weights` or of the source."""
    split_names: Path | None = None
    """Another file with the name of each row's split."""
    split_names_key: str | None = None
    """Member, dataset, array or column with them, of `split_names` or of the source."""
    splits: tuple[tuple[str, float], ...] = ()
    """Splits drawn at random: name and fraction of the rows. The rest is train."""
    split_rows: tuple[tuple[str, int, int], ...] = ()
    """Splits by row: name, first row and the row after the last, in the source's order. What is
    left is train, unless train is given; then it belongs to no split."""
    shuffle: bool = False
    """Whether the rows of each split are put in random order."""
    seed: int = 0
    """Of the random splits and the shuffling."""
    dtype: str | None = None
    """Of the features at rest. None keeps a float16, float32 or float64, and makes the rest
    float32."""
    divide_by: float = 1.0
    """Divides every feature."""
    transform: FeatureTransform | None = None
    """Makes the features of the store of those of the source."""
    compression: str = "none"
    """Of the features: none, lz4 or zstd."""
    chunk_bytes: int | None = None
    """Most bytes in a chunk of features, uncompressed. None takes 16 MiB, in an object store 4."""
    overwrite: bool = False
    """Replace a store that is there, once the new one is whole; in an object store, as soon as
    features are written."""

    def __post_init__(self) -> None:
        if self.dtype is not None:
            as_feature_dtype(self.dtype)
        check_compression(self.compression)
        if not (math.isfinite(self.divide_by) and self.divide_by != 0):
            raise ValueError(f"divide_by must be finite and not 0, got {self.divide_by}.")
        if self.chunk_bytes is not None and self.chunk_bytes < 1:
            raise ValueError(f"chunk_bytes must be at least 1, got {self.chunk_bytes}.")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}.")
        if self.kind not in KIND_CHOICES:
            raise ValueError(
                f"kind must be 'auto', 'multiclass' or 'multilabel', got {self.kind!r}."
            )
        if self.label_separator is not None and not self.label_separator:
            raise ValueError("label_separator must have a character or more, got ''.")
        if self.label_separator is not None and self.kind == "multiclass":
            raise ValueError(
                f"label_separator must be left out for kind 'multiclass', got "
                f"{self.label_separator!r}."
            )
        self._check_splits()

    @property
    def has_class_names(self) -> bool:
        """Whether the columns of an indicator matrix are given names."""
        return self.class_names is not None or self.class_names_key is not None

    @property
    def has_weights(self) -> bool:
        """Whether sample weights are asked for."""
        return self.weights is not None or self.weights_key is not None

    @property
    def has_split_names(self) -> bool:
        """Whether each row comes with the name of its split."""
        return self.split_names is not None or self.split_names_key is not None

    def _check_splits(self) -> None:
        ways = (bool(self.splits), bool(self.split_rows), self.has_split_names)
        if sum(ways) > 1:
            raise ValueError(
                "splits must be given in one way, got more than one of fractions, rows and names."
            )
        names = [name for name, _ in self.splits]
        for name, fraction in self.splits:
            if not 0 < fraction <= 1:
                raise ValueError(
                    f"fraction of split {name!r} must be above 0 and at most 1, got {fraction}."
                )
            if names.count(name) > 1:
                raise ValueError(f"split {name!r} must be given once, got it twice.")
        total = math.fsum(fraction for _, fraction in self.splits)
        if TRAIN in names and not math.isclose(total, 1, abs_tol=1e-9):
            raise ValueError(
                f"fractions of the splits must sum to 1 when 'train' is among them, got {total:g}."
            )
        if names and TRAIN not in names and total > 1 - 1e-9:
            raise ValueError(
                f"fractions of the splits must leave rows for 'train', got a sum of {total:g}."
            )
        for name, start, stop in self.split_rows:
            if not 0 <= start < stop:
                raise ValueError(
                    f"rows of split {name!r} must be START:STOP with 0 <= START < STOP, "
                    f"got {start}:{stop}."
                )
