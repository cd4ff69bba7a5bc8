"""What must hold after whatever has happened, told from the files alone.

Every check returns what is broken, a sentence each; nothing: all is well.
"""

import csv
import io
import json
import re
from dataclasses import dataclass

import numpy as np

from dtopk.job.run_folder import RunFolder
from dtopk_storage import RunState, open_store
from dtopk_storage.paths import AnyPath
from dtopk_storage.replacement import WORK_SUFFIX, find_replaced
from tests.faults.formulas import check_certificate, check_sweep, check_weights_of_state
from tests.faults.operations import RUN, STORE, Operation, Place

Files = dict[str, bytes]
"""All files below `Place.out`, by their names."""

_VERSION = re.compile(r"versions/[^/]+/")
_CHUNK = re.compile(r"chunk \d+ \(rows \d+:\d+\) of '[^']*'")
_HISTORY = ("epoch", "primal", "dual_value", "relative_gap", "exact", "acceleration")
_TIMES = ("seconds", "settings", "mlflow", "resumed_at", "committed", "started", "ended")
"""Fields of results that differ from run to run, and what contains such."""
_NOT_NEEDED = ("convergence.png", "topk_accuracy.png", "history.csv", "sweep.png", "dual/")
"""What a run says, as a warning, that it cannot write, and ends well without."""
_ALARMS = ("Traceback", "Exception in thread", "Exception ignored", "Fatal Python error")


def check_message(log: str, exitcode: int) -> list[str]:
    """Check that a command that failed has said so in one line, and one that did not has not.

    Parameters
    ----------
    log : str
        What it has written.
    exitcode : int
    """
    broken = [f"{alarm!r} in its messages" for alarm in _ALARMS if alarm in log]
    errors = find_errors(log)
    if exitcode == 0 and errors:
        broken.append("it ended well, and spoke of an error")
    if exitcode in (1, 2) and len(errors) != 1:
        broken.append(f"it failed with {len(errors)} lines that begin with 'error:'")
    return broken


def find_errors(log: str) -> list[str]:
    """Return the lines of a log by which a command says what has gone wrong."""
    return [line for line in log.splitlines() if line.startswith("error: ")]


def names_damage(message: str, damaged: dict[str, AnyPath]) -> bool:
    """Tell whether a message names one of the damaged files, a chunk by its array and number.

    Parameters
    ----------
    message : str
    damaged : dict of str to path
    """
    for path in damaged.values():
        # A store that was being made is in its place when its damage is found.
        name = str(path).replace(f"/{STORE}{WORK_SUFFIX}/store/", f"/{STORE}/")
        parts = name.split("/")
        if "c" in parts:
            place = len(parts) - 1 - parts[::-1].index("c")
            if f"chunk {parts[place + 1]} " in message and "/".join(parts[:place]) in message:
                return True
        if str(path) in message or name in message:
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What must not be lost from one start of a command to the next."""

    epochs: int
    """Epochs that a run has committed."""
    models: Files
    """Models that a sweep is done with, by their names."""


def look_at_kept(operation: Operation, place: Place) -> Kept:
    """Look at what must not be lost.

    Parameters
    ----------
    operation : Operation
    place : Place
    """
    epochs, models = 0, {}
    if operation.leaves == "run":
        epochs = count_committed(place)
    if operation.leaves == "sweep":
        files = place.list_files()
        for name, path in files.items():
            folder, _, last = name.rpartition("/")
            if last == "model.npz" and f"{folder}/result.json" in files:
                models[name] = path.read_bytes()
    return Kept(epochs=epochs, models=models)


def count_committed(place: Place) -> int:
    """Return the epochs that the run has committed; 0 without a commit.

    Raises
    ------
    ValueError
        The state is damaged.
    """
    done = RunFolder(path=place.out / RUN).find_checkpoint()
    return 0 if done is None else done.epochs


def check_committed(place: Place, before: int) -> list[str]:
    """Check that no epoch is lost, and that all arrays of the state are whole and agree.

    Parameters
    ----------
    place : Place
    before : int
        Epochs that were committed before.
    """
    folder = RunFolder(path=place.out / RUN)
    epochs = count_committed(place)
    if epochs < before and not _has_come_to_its_end(folder):
        return [f"lost commit: {before} epochs were committed, now {epochs}"]
    if epochs == 0:
        return []
    state = folder.open_state()
    manifest = state.load()
    assert manifest is not None
    names = _list_arrays(place, state, manifest["version"])
    arrays = {name: state.read_array(manifest["version"], name) for name in names}
    return check_weights_of_state(place, manifest["progress"], arrays)


def _has_come_to_its_end(folder: RunFolder) -> bool:
    if not folder.result.is_file():
        return False
    result = json.loads(folder.result.read_text())
    return bool(result["certified"] and result.get("complete", True))


def is_to_be_completed(place: Place) -> bool:
    """Tell whether a run has left a result that it means to write anew, for want of room."""
    result = RunFolder(path=place.out / RUN).result
    return result.is_file() and not json.loads(result.read_text()).get("complete", True)


def _list_arrays(place: Place, state: RunState, version: str) -> list[str]:
    root = f"{state.url.removeprefix(str(place.out)).strip('/')}/versions/{version}/"
    suffix = ".array"
    return [
        name.removeprefix(root).removesuffix(suffix)
        for name in place.list_files()
        if name.startswith(root) and name.endswith(suffix)
    ]


def check_store(path: AnyPath, *, was_damaged: bool) -> list[str]:
    """Check that a store is absent, or opens and is whole.

    Parameters
    ----------
    path : Path or ObjectPath
    was_damaged : bool
        Whether files of it have been changed once they were written. Then it may be refused, with
        the chunk that is not as it was.
    """
    if not (path / "zarr.json").is_file() or (was_damaged and find_damage(path)):
        return []
    try:
        open_store(path).verify()
    except ValueError as error:
        return [f"wrong result: the store is not whole: {error}"]
    return []


def find_damage(path: AnyPath) -> str:
    """Return the words by which a store is refused that name a chunk; empty: it is not."""
    try:
        open_store(path).verify()
    except ValueError as error:
        found = _CHUNK.search(str(error))
        return found[0] if found else ""
    return ""


def check_history(files: Files) -> list[str]:
    """Check that the history has every epoch once, in order."""
    text = files.get(f"{RUN}/history.csv")
    if text is None:
        return []
    epochs = [int(row["epoch"]) for row in csv.DictReader(io.StringIO(text.decode()))]
    if epochs != list(range(1, len(epochs) + 1)):
        return [f"lost commit: the history has the epochs {epochs}"]
    return []


def check_same(files: Files, reference: Files, *, lacks_room: bool, names_alone: bool) -> list[str]:
    """Compare what a command has left with what it leaves unharmed, to the bit.

    Parameters
    ----------
    files, reference : dict of str to bytes
    lacks_room : bool
        Whether it has said that it could not write what a run does without.
    names_alone : bool
        Whether the contents may differ.
    """
    found = {_VERSION.sub("versions/", name): body for name, body in files.items()}
    wanted = {_VERSION.sub("versions/", name): body for name, body in reference.items()}
    strange = sorted(set(found) - set(wanted))
    missing = sorted(set(wanted) - set(found))
    if lacks_room:
        missing = [name for name in missing if not any(part in name for part in _NOT_NEEDED)]
    broken = []
    if strange:
        broken.append(f"left over: {', '.join(strange)}")
    if missing:
        broken.append(f"wrong result: missing is {', '.join(missing)}")
    for name in () if names_alone else sorted(set(found) & set(wanted)):
        if _reduce(name, found[name], lacks_room) != _reduce(name, wanted[name], lacks_room):
            broken.append(f"wrong result: {name!r} differs")
    return broken


def _reduce(name: str, body: bytes, lacks_room: bool) -> object:
    """Reduce a file to what is the same in every run."""
    last = name.rpartition("/")[2]
    if last.endswith(".png") or last in ("run.json", "sweep-run.json", "state.json"):
        return None
    if last == "model.npz":
        with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
            return {key: arrays[key].tobytes() for key in ("W", "intercept")}
    if last.endswith(".csv") and last != "top.csv":
        rows = list(csv.DictReader(io.StringIO(body.decode())))
        keys = _HISTORY if last == "history.csv" else [k for k in rows[0] if k not in _TIMES]
        return [{key: row[key] for key in keys} for row in rows]
    if last.endswith(".json") and not last.startswith("zarr"):
        fields = json.loads(body)
        # Without room for it there are no duals, or the last result is not written.
        left_out = (*_TIMES, "duals_kept", "complete", "topk_accuracy") if lacks_room else _TIMES
        return {key: value for key, value in fields.items() if key not in left_out}
    return body


def check_result(
    operation: Operation, place: Place, reference: Files, *,
    lacks_room: bool = False, in_one_go: bool = True, was_damaged: bool = False,
) -> list[str]:  # fmt: skip
    """Check all that a command leaves when it has come to its end.

    Parameters
    ----------
    operation : Operation
    place : Place
    reference : dict of str to bytes
        What it leaves unharmed.
    lacks_room : bool
        Whether it has said that it could not write what a run does without.
    in_one_go : bool
        Whether it was not broken off before it came to its end.
    was_damaged : bool
        Whether files have been changed once they were written.
    """
    if operation.leaves == "store" and was_damaged and find_damage(place.out / STORE):
        return []
    files = place.read_all()
    differs = operation.leaves == "sweep" and not in_one_go
    broken = check_same(files, reference, lacks_room=lacks_room, names_alone=differs)
    if differs:
        broken += check_sweep(place, reference)
    if operation.leaves == "store":
        broken += check_store(place.out / STORE, was_damaged=False)
    if operation.leaves == "run":
        broken += check_history(files)
        if f"{RUN}/dual/zarr.json" in files and operation.training is not None:
            broken += check_certificate(place, operation.training)
    return broken


def check_meanwhile(
    operation: Operation, place: Place, reference: Files, kept: Kept, *, was_damaged: bool
) -> list[str]:
    """Check what must hold after every end of a command, good or bad.

    Parameters
    ----------
    operation : Operation
    place : Place
    reference : dict of str to bytes
        What it leaves unharmed.
    kept : Kept
        Before it was started.
    was_damaged : bool
        Whether files have been changed once they were written.
    """
    if operation.leaves == "run":
        try:
            return check_committed(place, kept.epochs)
        except ValueError as error:
            return [f"lost commit: {error}"]
    if operation.leaves == "sweep":
        now = look_at_kept(operation, place).models
        return [
            f"lost commit: {name!r} was done, and is not what it was"
            for name, body in kept.models.items()
            if now.get(name) != body
        ]
    if operation.leaves == "store":
        path = place.out / STORE
        if operation.before and not (path / "zarr.json").is_file() and not find_replaced(path):
            return ["lost commit: neither the earlier store nor the new one is there"]
        return check_store(path, was_damaged=was_damaged)
    if operation.leaves == "predictions":
        whole = {name for name in reference if name.partition("/")[0] == operation.target}
        files = place.read_all()
        found = {name for name in files if name.partition("/")[0] == operation.target}
        if found and any(files.get(name) != reference[name] for name in whole):
            return ["wrong result: the predictions are neither whole nor absent"]
    return []
