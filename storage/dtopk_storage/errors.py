"""What is wrong with what lies on disk."""


class DatasetError(ValueError):
    """A store, or a source that one is made from, does not hold what it must."""


class CheckpointError(ValueError):
    """A file in which a run keeps its state does not hold what it must."""
