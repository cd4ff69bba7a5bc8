"""How faults come about: what a process does to itself, and what is done to it from outside."""

import contextlib
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from dtopk_storage.paths import AnyPath
from tests.drill.hosts import Cluster
from tests.faults.operations import Place
from tests.faults.schedule import Fault
from tests.s3_server import FailingProxy

_ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES)
_PAGE = 4096
_SHORT_JUMP_S = 10.0


@dataclass(kw_only=True)
class Scene:
    """What is there while a command runs, for faults to act on."""

    place: Place
    seconds: float
    """That the command takes unharmed."""
    steps: int
    """Steps on the disk that it takes unharmed."""
    start_second: Callable[[], None]
    """Starts the same command once more, beside the first."""
    proxy: FailingProxy | None
    """Between the command and the object store."""
    cluster: Cluster | None
    disk: Path | None
    """A small disk of its own, which may be filled; None: there is none."""
    process: BaseProcess | None = None
    """The command."""
    damaged: dict[str, AnyPath] = field(default_factory=dict)
    """Files that are not as they were written, by their names below `Place.out`."""

    def signal(self, number: int) -> None:
        """Send the command a signal, if it is still there."""
        assert self.process is not None
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)


@dataclass(kw_only=True)
class Injection:
    """What a fault comes to in one start of a command."""

    inside: dict[str, Any] = field(default_factory=dict)
    """Fields of `Inside`."""
    actions: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """What is done so many seconds after the start; not after 0 s: before it."""
    healing: list[Callable[[], None]] = field(default_factory=list)
    """What is done when the command has ended."""
    ends_by_signal: int = 0
    """The signal that the command may end by."""
    may_fail: bool = False
    """Whether the command may end by an error of its own."""


def _kill(scene: Scene, fault: Fault) -> Injection:
    act = (fault.moment * scene.seconds, lambda: scene.signal(signal.SIGKILL))
    return Injection(actions=[act], ends_by_signal=signal.SIGKILL)


def _kill_at_step(scene: Scene, fault: Fault) -> Injection:
    step = 1 + int(fault.moment * scene.steps)
    return Injection(inside={"kill_step": step}, ends_by_signal=signal.SIGKILL)


def _stop(scene: Scene, fault: Fault) -> Injection:
    """Stop it for up to two seconds."""
    start = fault.moment * scene.seconds
    actions = [
        (start, lambda: scene.signal(signal.SIGSTOP)),
        (start + 2 * fault.size, lambda: scene.signal(signal.SIGCONT)),
    ]
    return Injection(actions=actions, healing=[lambda: scene.signal(signal.SIGCONT)])


def _terminate(scene: Scene, fault: Fault) -> Injection:
    act = (fault.moment * scene.seconds, lambda: scene.signal(signal.SIGTERM))
    return Injection(actions=[act], ends_by_signal=signal.SIGTERM)


def _start_second(scene: Scene, fault: Fault) -> Injection:
    """Start the same command again while it is at work: the one or the other is refused."""
    act = (fault.moment**2 * scene.seconds, scene.start_second)
    return Injection(actions=[act], may_fail=True)


def _jump_clock(scene: Scene, fault: Fault) -> Injection:
    """Set the clock back or forth, by minutes up to years."""
    jump = 60.0 * 2_000_000 ** abs(2 * fault.size - 1) * (1 if fault.size > 0.5 else -1)
    if scene.cluster is not None:
        # The clients of Dask keep messages back for as long as the clock has been put back.
        jump = max(jump, -_SHORT_JUMP_S)
    after = fault.moment * scene.seconds
    # Forth, a lock in an object store looks as if it had not been renewed for long.
    loses_lock = scene.proxy is not None
    return Injection(inside={"clock_after_s": after, "clock_jump_s": jump}, may_fail=loses_lock)


def _slow_disk(scene: Scene, fault: Fault) -> Injection:
    """Have all steps together take up to two seconds longer."""
    return Injection(inside={"slow_s": 2.0 * fault.size / max(scene.steps, 1)})


def _fill_disk(scene: Scene, fault: Fault) -> Injection:
    """Leave so few pages of the disk that not all fits on it that is to be written."""
    if scene.disk is None:
        return Injection()
    ballast = scene.disk / "ballast"
    pages = int(60 * fault.size)

    def fill() -> None:
        free = os.statvfs(ballast.parent).f_bavail
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            file.write(bytes(max(0, free - pages) * _PAGE))

    start = 0.0 if fault.moment < 0.3 else fault.moment * scene.seconds
    return Injection(
        actions=[(start, fill)],
        healing=[lambda: ballast.unlink(missing_ok=True)],
        may_fail=True,
    )


def _limit_files(scene: Scene, fault: Fault) -> Injection:
    """Have no file grow beyond some kilobytes, of which the log needs a few."""
    return Injection(inside={"file_limit": int(6_000 + 40_000 * fault.size**2)}, may_fail=True)


def _fail_step(scene: Scene, fault: Fault) -> Injection:
    step = 1 + int(fault.moment * scene.steps)
    number = _ERRORS[int(fault.size * len(_ERRORS)) % len(_ERRORS)]
    return Injection(inside={"error_step": step, "error": number}, may_fail=True)


def _flip_bit(body: bytes, size: float) -> bytes:
    changed = bytearray(body)
    changed[int(size * len(body)) % len(body)] ^= 1 << int(size * 997) % 8
    return bytes(changed)


def _cut(body: bytes, size: float) -> bytes:
    return body[: int(size * len(body))]


def _damage(change: Callable[[bytes, float], bytes]) -> Callable[[Scene, Fault], Injection]:
    def inject(scene: Scene, fault: Fault) -> Injection:
        whole: dict[str, tuple[bytes, bytes]] = {}

        def harm() -> None:
            candidates = list_damageable(scene.place)
            if not candidates:
                return
            name = sorted(candidates)[int(fault.moment * 7919 * len(candidates)) % len(candidates)]
            path = candidates[name]
            with contextlib.suppress(FileNotFoundError):
                body = path.read_bytes()
                changed = change(body, fault.size)
                # A file that is gone by now stays so.
                if changed != body and path.exists():
                    path.write_bytes(changed)
                    whole[name] = body, changed
                    scene.damaged[name] = path

        def heal() -> None:
            for name, (body, changed) in whole.items():
                path = scene.damaged.pop(name)
                # What has been written anew since is no longer what was damaged.
                if path.exists() and path.read_bytes() == changed:
                    path.write_bytes(body)

        start = 0.0 if fault.size < 0.6 else fault.moment * scene.seconds
        return Injection(actions=[(start, harm)], healing=[heal], may_fail=True)

    return inject


def list_damageable(place: Place) -> dict[str, AnyPath]:
    """List the files that have a checksum: chunks, arrays of a state, the state and models.

    Parameters
    ----------
    place : Place
    """

    def has_checksum(name: str) -> bool:
        parts = name.split("/")
        is_temporary = parts[-1].startswith(".")
        is_chunk = "c" in parts and parts[-1].isdigit()
        is_state = "state" in parts and (parts[-1].endswith(".array") or parts[-1] == "state.json")
        return not is_temporary and (is_chunk or is_state or parts[-1] == "model.npz")

    return {name: path for name, path in place.list_files().items() if has_checksum(name)}


def _through_proxy(**settings: float) -> Callable[[Scene, Fault], Injection]:
    """Set the proxy to something; its most is what is given here, for a fault of size 1."""

    def inject(scene: Scene, fault: Fault) -> Injection:
        proxy = scene.proxy
        assert proxy is not None

        def harm() -> None:
            for name, most in settings.items():
                setattr(proxy, name, most * fault.size)

        def heal() -> None:
            for name in settings:
                setattr(proxy, name, 0.0)

        return Injection(
            actions=[(fault.moment**2 * scene.seconds, harm)], healing=[heal], may_fail=True
        )

    return inject


def _break_off(scene: Scene, fault: Fault) -> Injection:
    """Have the store away for up to five seconds, which is less than requests are tried."""
    proxy = scene.proxy
    assert proxy is not None

    def set_away(is_away: bool) -> Callable[[], None]:
        return lambda: setattr(proxy, "is_away", is_away)

    start = fault.moment * scene.seconds
    actions = [(start, set_away(True)), (start + 5 * fault.size, set_away(False))]
    return Injection(actions=actions, healing=[set_away(False)])


def _on_worker(act: str) -> Callable[[Scene, Fault], Injection]:
    def inject(scene: Scene, fault: Fault) -> Injection:
        cluster = scene.cluster
        assert cluster is not None
        stopped: list[Any] = []

        def harm() -> None:
            workers = cluster.find_workers()
            if workers:
                chosen = workers[int(fault.size * len(workers)) % len(workers)]
                with contextlib.suppress(psutil.NoSuchProcess):
                    getattr(chosen, act)()
                    stopped.append(chosen)

        def heal() -> None:
            if act == "suspend" and stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    stopped[0].resume()
            cluster.wait()

        # A worker that is stopped when the run begins is waited for, in vain.
        return Injection(
            actions=[(fault.moment * scene.seconds, harm)],
            healing=[heal],
            may_fail=act == "suspend",
        )

    return inject


def _kill_scheduler(scene: Scene, fault: Fault) -> Injection:
    cluster = scene.cluster
    assert cluster is not None
    scheduler = cluster.scheduler
    assert scheduler is not None
    return Injection(
        actions=[(fault.moment * scene.seconds, scheduler.kill)],
        healing=[cluster.restart],
        may_fail=True,
    )


_INJECT: dict[str, Callable[[Scene, Fault], Injection]] = {
    "kill": _kill,
    "kill at step": _kill_at_step,
    "stop": _stop,
    "terminate": _terminate,
    "second": _start_second,
    "clock": _jump_clock,
    "slow disk": _slow_disk,
    "full disk": _fill_disk,
    "file limit": _limit_files,
    "disk error": _fail_step,
    "bit flipped": _damage(_flip_bit),
    "file cut": _damage(_cut),
    "failing requests": _through_proxy(share=0.5),
    "slow requests": _through_proxy(delay_s=0.1),
    "outage": _break_off,
    "worker killed": _on_worker("kill"),
    "worker stopped": _on_worker("suspend"),
    "scheduler killed": _kill_scheduler,
}


def inject(scene: Scene, fault: Fault) -> Injection:
    """Say what a fault comes to.

    Parameters
    ----------
    scene : Scene
    fault : Fault
    """
    return _INJECT[fault.kind](scene, fault)
