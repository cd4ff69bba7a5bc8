"""What goes wrong with the workers, as opposed to what was asked of them."""


class ClusterError(RuntimeError):
    """Workers did not start, did not come, or cannot be used."""
