"""Compiled kernels of another version of the package, removed before one of them is loaded."""

import contextlib
import hashlib
import os
from pathlib import Path

from numba import njit

_STAMP = "dtopk-kernels.sha256"


@njit(cache=True)
def _any_kernel():
    """Stand for all kernels: numba keeps what it compiles of a folder in one place."""


def remove_stale_kernels():
    """Delete what numba has kept of these kernels if any of their sources has changed since.

    Numba compares the source of the file that a kernel is in, and not of those whose functions are
    inlined into it: after an upgrade that changed a projection alone, the updates that use it would
    still be loaded with the projection of before.
    """
    # Without the compiler, as with NUMBA_DISABLE_JIT=1, there are no statistics.
    folder = _any_kernel.stats.cache_path if hasattr(_any_kernel, "stats") else None
    if folder is None or not os.path.isdir(folder):
        return
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    stamp = Path(folder, _STAMP)
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        for compiled in Path(folder).glob("*.nb[ci]"):
            compiled.unlink(missing_ok=True)
        partial = stamp.with_name(f"{_STAMP}.{os.getpid()}")
        partial.write_text(digest.hexdigest())
        partial.replace(stamp)
