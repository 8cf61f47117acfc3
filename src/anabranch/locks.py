"""Locks on files: finding the process that holds a lock, and killing a holder that a caller names.

A lock file contains the process id of its holder and the name that the holder gave itself. The kernel's lock
is decisive; the text only tells which process to look at. This module must not know leases.
"""

from __future__ import annotations

import errno
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
POLL_S = 0.005
WAIT_S = 5.0
"""How long a killed process may take to release its lock: the kernel frees its memory first."""


class Holder(NamedTuple):
    """The content of a lock file; process 0 if it does not name one."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.pid or 'unknown'}{f' ({self.name})' if self.name else ''}"


def take(file: Path, name: str = "", *, fence: str | None = None) -> int:
    """Lock the file until the returned descriptor is closed; a holder with the name `fence` is killed.

    HeldError if the lock has another holder, or one that the kernel does not confirm. The lock file is never
    a symbolic link, because taking the lock writes into the file.
    """
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConflictError(f"{file} is a symbolic link; remove it, a lock is a plain file") from error
    try:
        if not _try(fd):
            if fence is None:
                raise _held(file, read_holder(fd), "")
            _evict(file, fd, fence)
        # Write before cutting: on a full disk, a file that is cut first may lose its space.
        os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()} {name}".strip().encode() + b"\n", 0))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_holder(fd: int) -> Holder:
    line, _, _ = os.pread(fd, 256, 0).decode("utf-8", "replace").partition("\n")
    pid, _, name = line.strip().partition(" ")
    return Holder(int(pid) if pid.isdigit() else 0, name)


def is_held_by_named_process(file: Path) -> bool:
    """Return whether the process that the lock file names holds the lock.

    If it does not, its children have inherited the lock.
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not LOCKS.exists() or holds(read_holder(fd).pid, file, "FLOCK")
    finally:
        os.close(fd)


def kernel_holder(file: Path, kind: str, at: int = 0) -> int | None:
    """Return the process that has locked the byte `at` of a file; None when the kernel lists none."""
    try:
        listed = [_Lock.parse(line) for line in LOCKS.read_text().splitlines()]
    except OSError:
        return None
    pids = {lock.pid for lock in listed if lock is not None and lock.covers(kind, at)}
    return next((pid for pid in sorted(pids) if holds(pid, file, kind, at)), None)


def holds(pid: int, file: Path, kind: str, at: int = 0) -> bool:
    """Return whether a process has locked the byte `at` of a file exclusively, according to the kernel."""
    # On some file systems the inode numbers in the kernel's list of all locks differ from those of `stat`.
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
    """A line of the kernel's list of locks: `1: FLOCK  ADVISORY  WRITE 18659 fe:00:10003425 0 EOF`."""

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
    """Kill a process if `holds` returns true; False if it has ended or no longer holds a lock."""
    if pid in (0, os.getpid()):
        return False
    try:
        # A pidfd never refers to a later process with the same number.
        with _pinned(pid) as pinned:
            if not holds():
                return False
            signal.pidfd_send_signal(pinned, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def waits_for_disk(pid: int) -> bool:
    """Return whether a thread of the process is in an uninterruptible call, which only the disk can end."""
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
    """Take the lock as soon as it is free, and kill the holder if it has this name."""
    deadline = time.monotonic() + WAIT_S
    killed = False
    while not _try(fd):
        holder = read_holder(fd)
        if holder.name != name:
            raise _held(file, holder, "")
        if holder.pid == os.getpid():
            raise _held(file, holder, "which is this process")
        if not killed:
            try:
                killed = kill_holder(holder.pid, partial(holds, holder.pid, file, "FLOCK"))
            except (OSError, AttributeError) as error:
                raise _held(file, holder, f"which cannot be killed: {error}") from error
        if time.monotonic() >= deadline:
            why = "which was killed but still holds it" if killed else "which the kernel does not list"
            raise _held(file, holder, why)
        time.sleep(POLL_S)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held(file: Path, holder: Holder, why: str) -> ConflictError:
    text = f"{file.parent} is in use by process {holder}{f', {why}' if why else ''}"
    return HeldError(f"{text}; stop it, or choose another directory", holder.name)
