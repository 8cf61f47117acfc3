"""Locks on files: who holds one, and the end of a holder whose time is over.

A lock file says who has it: process id and the name the holder gave itself. What counts is the kernel's lock;
the text only helps to tell whose it is. Must not know leases: a caller names the holder that may be ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from anabranch.errors import ConflictError, HeldError

LOCKS = Path("/proc/locks")
LOOK_S = 0.005
WAIT_S = 5.0
"""How long a killed process may take to let go; its memory may be large."""


class Holder(NamedTuple):
    """What a lock file says; process 0 when it says nothing."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.pid or 'unknown'}{f' ({self.name})' if self.name else ''}"


def take(file: Path, name: str = "", *, fence: str | None = None) -> int:
    """Lock the file for this process until the returned descriptor is closed; HeldError when it is held.

    A holder that calls itself `fence` is killed, whatever it is doing or waiting for; one of another name, or
    one that cannot be shown to hold the lock, is left alone.
    """
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        if not _try(fd):
            if fence is None:
                raise _held(file, read_holder(fd), "")
            _evict(file, fd, fence)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {name}".strip().encode() + b"\n", 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_holder(fd: int) -> Holder:
    """Who the lock file names."""
    pid, _, name = os.pread(fd, 256, 0).decode("utf-8", "replace").strip().partition(" ")
    return Holder(int(pid) if pid.isdigit() else 0, name)


def is_held_by_its_taker(file: Path) -> bool:
    """Whether the process that the lock file names has it; else it is gone and others inherited the lock."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not LOCKS.exists() or holds(read_holder(fd).pid, file, "FLOCK")
    finally:
        os.close(fd)


def kernel_holder(file: Path, kind: str, at: int = 0) -> int | None:
    """The process that the kernel lists as having locked the byte `at` of a file; None when it lists none."""
    try:
        listed = [_Lock.parse(line) for line in LOCKS.read_text().splitlines()]
    except OSError:
        return None
    pids = {lock.pid for lock in listed if lock is not None and lock.covers(kind, at)}
    return next((pid for pid in sorted(pids) if holds(pid, file, kind, at)), None)


def holds(pid: int, file: Path, kind: str, at: int = 0) -> bool:
    """Whether the kernel says that a process has the byte `at` of a file locked against all others.

    Asked of the files that the process has open: numbers of devices and files in the list of all locks are
    not those that others see on some file systems.
    """
    try:
        wanted = file.stat()
        for opened in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.path.samestat(opened.stat(), wanted) and _locks(pid, opened.name, kind, at):
                    return True
    except OSError:
        return False
    return False


def _locks(pid: int, fd: str, kind: str, at: int) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
        word, _, rest = line.partition("\t")
        lock = _Lock.parse(rest) if word == "lock:" else None
        if lock is not None and lock.covers(kind, at):
            return True
    return False


class _Lock(NamedTuple):
    """A lock as the kernel writes it down: `1: FLOCK  ADVISORY  WRITE 18659 fe:00:10003425 0 EOF`."""

    kind: str
    mode: str
    pid: int
    start: int
    end: float

    @classmethod
    def parse(cls, line: str) -> _Lock | None:
        match line.split():
            case [_, kind, _, mode, pid, _, start, end]:
                return cls(kind, mode, int(pid), int(start), float("inf") if end == "EOF" else int(end))
        return None

    def covers(self, kind: str, at: int) -> bool:
        return (self.kind, self.mode) == (kind, "WRITE") and self.start <= at <= self.end


def kill_holder(pid: int, holds: Callable[[], bool]) -> bool:
    """Kill a process if `holds` is still true of it; False when it is gone or holds nothing any more.

    The process is pinned before it is looked at: another one that got its number meanwhile is never hit.
    """
    if pid in (0, os.getpid()):
        return False
    try:
        with _pinned(pid) as pinned:
            if not holds():
                return False
            signal.pidfd_send_signal(pinned, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def waits_for_disk(pid: int) -> bool:
    """Whether a thread of the process is inside a call that only the disk can end."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return any((task / "stat").read_text().rpartition(")")[2].split()[0] == "D" for task in tasks)
    except OSError:
        return False


@contextmanager
def _pinned(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _evict(file: Path, fd: int, name: str) -> None:
    """Get the lock from the holder of that name, or as soon as it is free."""
    deadline = time.monotonic() + WAIT_S
    killed = False
    while not _try(fd):
        holder = read_holder(fd)
        if holder.name != name:
            raise _held(file, holder, "")
        if holder.pid == os.getpid():
            raise _held(file, holder, "which is this one")
        if not killed:
            try:
                killed = kill_holder(holder.pid, partial(holds, holder.pid, file, "FLOCK"))
            except (OSError, AttributeError) as error:
                raise _held(file, holder, f"which cannot be ended: {error}") from error
        if time.monotonic() >= deadline:
            why = "which was killed and has not let go" if killed else "which the kernel does not list"
            raise _held(file, holder, why)
        time.sleep(LOOK_S)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held(file: Path, holder: Holder, why: str) -> ConflictError:
    text = f"{file.parent} is in use by process {holder}{f', {why}' if why else ''}"
    return HeldError(f"{text}; stop it, or choose another directory", holder.name)
