"""Arrays in a temporary file, for what is too large to be held in memory."""

import tempfile
import weakref
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64
"""Arrays begin at multiples of so many bytes, so that their elements are aligned."""


class TemporaryArrays:
    """Arrays in a file without a name, in TMPDIR, which is gone when this object is.

    What is read is mapped, not copied: its pages are the system's to drop when memory is short.
    Where TMPDIR is itself held in memory (tmpfs), nothing is saved.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="dtopk-scores-")
        # The file would warn, were it left to the garbage collector to close it. Maps outlast it.
        weakref.finalize(self, self._file.close)
        self._places: list[tuple[int, np.dtype[Any], tuple[int, ...]]] = []
        self._end = 0

    def put(self, array: NDArray[Any]) -> int:
        """Write an array.

        Parameters
        ----------
        array : ndarray of any shape and type, not empty

        Returns
        -------
        int
            Its number, to read it by.

        Raises
        ------
        OSError
            If there is no room for it.
        """
        offset = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        try:
            # Not through a map of the file: to write where the disk is full would end the process.
            self._file.seek(offset)
            self._file.write(np.ascontiguousarray(array).data)
            self._file.flush()
        except OSError as error:
            raise OSError(
                error.errno,
                f"TMPDIR must have room for {offset + array.nbytes:,} bytes of scores, got "
                f"{error.strerror!r}. In {tempfile.gettempdir()!r}. Name a folder on a larger "
                "disk, or allow more memory.",
            ) from error
        self._places.append((offset, array.dtype, array.shape))
        self._end = offset + array.nbytes
        return len(self._places) - 1

    def get(self, number: int) -> NDArray[Any]:
        """Map an array.

        Parameters
        ----------
        number : int
            What `put` returned.

        Returns
        -------
        ndarray, read-only
            Its pages count as this process's memory until it is let go.
        """
        offset, dtype, shape = self._places[number]
        return np.asarray(np.memmap(self._file, dtype, mode="r", offset=offset, shape=shape))
