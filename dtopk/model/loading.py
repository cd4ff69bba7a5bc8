"""Load a model from where it lies."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dtopk.archive import DAMAGE
from dtopk.calibration import NewerCalibrationError
from dtopk.model.file import NewerVersionError, read_model_file
from dtopk.model.linear import Model

if TYPE_CHECKING:
    from dtopk_storage.paths import AnyPath, PathLike

_FILE = "model.npz"
"""In a run folder."""


def load_model(path: "PathLike") -> Model:
    """Read a model.

    Parameters
    ----------
    path : path of a model file, or of a run folder that holds a 'model.npz'
        Or the address of one in an object store, such as 's3://bucket/runs/7'; the credentials and
        the endpoint are those of the environment.

    Returns
    -------
    Model

    Raises
    ------
    ValueError
        If there is no model, or the file is damaged, is none of dtopk's or is of a newer version.
    PermissionError
        If it may not be read.
    OSError
        If the object store cannot be reached.
    """
    path, file = _open_model(path)
    try:
        fields, arrays, calibration = read_model_file(file, path)
        return Model(**fields, **arrays, calibration=calibration)
    except NewerCalibrationError as error:
        raise ValueError(f"{error} In {path!r}.") from error
    except NewerVersionError:
        raise
    except PermissionError:
        raise
    except DAMAGE as error:
        raise ValueError(
            f"{path!r} must be a dtopk model, but is damaged or another kind of file: {error}."
        ) from error


def find_model_file(path: "PathLike") -> "AnyPath":
    """Return where the file of a model lies.

    Parameters
    ----------
    path : path of a model file, or of a run folder that holds a 'model.npz'
        Or the address of one in an object store.

    Returns
    -------
    Path or ObjectPath
        On a disk that of a file that is there.

    Raises
    ------
    ValueError
        If there is none on the disk.
    """
    if not isinstance(path, str | os.PathLike) or "://" in str(path):
        # Imported here: what is on a disk is read without it.
        from dtopk_storage.paths import as_path

        place = as_path(path, name="model")
        if not isinstance(place, Path):
            return place if place.is_file() else place / _FILE
        path = place
    path = Path(path)
    if path.is_dir():
        path = path / _FILE
    if not path.is_file():
        raise ValueError(f"model {str(path)!r} does not exist.")
    return path


def _open_model(path: "PathLike") -> tuple[str, Path | io.BytesIO]:
    """Return the path of a model's file, and the file, which from an object store has been read."""
    place = find_model_file(path)
    if isinstance(place, Path):
        return str(place), place
    try:
        return str(place), io.BytesIO(place.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"model {str(place)!r} does not exist.") from error
