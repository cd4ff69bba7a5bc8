"""The file of a model.

It is a zip archive with a .npz name: the arrays `W.npy`, `intercept.npy`, `classes.npy` and
`class_rows.npy` and, for centred or scaled features, `feature_mean.npy` and `feature_scale.npy`,
beside `model.json`. What `dtopk calibrate` adds is one more member, `calibration.npz`, which
programs that do not know it pass over. Nothing in it is pickled.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dtopk.archive import read_array, read_header, read_member
from dtopk.atomic import FilePath, replace_when_complete
from dtopk.calibration import Calibration, read_calibration

MODEL_VERSION = 1
"""The newest version of the model file that this program reads."""

_HEADER = "model.json"
_CALIBRATION = "calibration.npz"
"""Not named .npy, since programs older than it take every array of that name for one of theirs."""
_FORMAT = "dtopk-model"
_TYPES: dict[str, Any] = {
    "loss": str, "loss_parameters": dict, "link": str, "target": str, "threshold": int | float,
    "job": dict, "trained_on": list, "chosen_on": str, "certificate": dict,
}  # fmt: skip
"""What the values of `model.json` must be."""


class NewerVersionError(ValueError):
    """The file is sound, but of a version that this program does not know."""


def write_model_file(
    path: FilePath,
    fields: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    calibration: Calibration | None,
) -> None:
    """Write the file of a model, whole or not at all.

    Parameters
    ----------
    path : path of the file, or ObjectPath
        A file that is there is replaced once the new one is complete.
    fields : mapping
        What else there is to say of it, in values that JSON takes.
    arrays : mapping of str to ndarray
    calibration : Calibration or None
    """
    header = {**fields, "format": _FORMAT, "version": MODEL_VERSION}
    with replace_when_complete(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_HEADER, json.dumps(header, indent=1, sort_keys=True))
        for name, values in arrays.items():
            # force_zip64: W may pass 2 GB, and its size is not known when the entry starts.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
        if calibration is not None:
            archive.writestr(_CALIBRATION, calibration.to_bytes())


def read_model_file(
    file: Path | IO[bytes], path: str
) -> tuple[dict[str, Any], dict[str, Any], Calibration | None]:
    """Read the file of a model.

    Parameters
    ----------
    file : Path or file
    path : str
        Where it lies, for messages.

    Returns
    -------
    fields : dict
    arrays : dict of str to ndarray
    calibration : Calibration or None
        Together the arguments of :class:`dtopk.model.Model`.

    Raises
    ------
    NewerVersionError, NewerCalibrationError
        If a newer program wrote it.
    Exception
        One of `dtopk.archive.DAMAGE`, if it is damaged or none of a model.
    """
    with zipfile.ZipFile(file) as archive:
        header = read_header(archive, _HEADER)
        _check_header(header, path)
        calibration = _read_calibration(archive)
        return _fields(header), _read_arrays(archive), calibration


def _check_header(header: Mapping[str, Any], path: str) -> None:
    if header["format"] != _FORMAT:
        raise ValueError(f"its {_HEADER} says 'format': {header['format']!r}")
    if header["version"] > MODEL_VERSION:
        raise NewerVersionError(
            f"version of the model {path!r} must be at most {MODEL_VERSION}, "
            f"got {header['version']}. A newer dtopk wrote it: upgrade this one."
        )


def _fields(header: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in header.items() if name not in ("format", "version")}
    for name, value in fields.items():
        if name in _TYPES and not isinstance(value, _TYPES[name]):
            raise TypeError(f"its {name!r} is a {type(value).__name__}")
    numbers = fields.get("certificate", {}).values()
    if not all(isinstance(value, int | float) for value in numbers):
        raise TypeError("its certificate has values that are no numbers")
    return fields | {"trained_on": tuple(map(str, fields.get("trained_on", ())))}


def _read_calibration(archive: zipfile.ZipFile) -> Calibration | None:
    """Read the calibration, if there is one."""
    if _CALIBRATION not in archive.namelist():
        return None
    return read_calibration(read_member(archive, _CALIBRATION))


def _read_arrays(archive: zipfile.ZipFile) -> dict[str, Any]:
    names = [name for name in archive.namelist() if name.endswith(".npy")]
    if len(set(names)) < len(names):
        raise ValueError("two of its members have the same name")
    return {name.removesuffix(".npy"): read_array(archive, name) for name in names}
