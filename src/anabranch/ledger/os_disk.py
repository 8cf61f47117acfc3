"""The disk of the operating system.

This module knows files and what makes them durable; knows nothing of logs, journals or records.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from anabranch import locks
from anabranch.descriptors import patiently
from anabranch.errors import AlreadyClosedError
from anabranch.ledger.disk import Write

T = TypeVar("T")

LOCK_FILE = "LOCK"


class OsDisk:
    """Files of the operating system; commits, other changes and reads do not wait for each other."""

    def __init__(self, root: str | os.PathLike[str], *, open_files_max: int = 256) -> None:
        self._root = Path(root).absolute()
        self._lock_fd = -1
        self._closed = False
        # Commits use one file at a time, so the journal file before it is closed when the next one starts.
        self._commits = _DiskThread("commit", self._root, 1)
        self._changes = _DiskThread("change", self._root, open_files_max)
        self._reads = ThreadPoolExecutor(2, "anabranch-disk-read")

    async def lock(self, name: str = "", fence: str | None = None) -> None:
        self._lock_fd = await self._changes.run(lambda: _take_lock(self._root, name, fence))

    async def sizes(self) -> dict[str, int]:
        return await self._changes.run(lambda: _sizes(self._root))

    async def read(self, file: str, offset: int, length: int) -> bytes:
        path = _path(self._root, file)
        return await asyncio.get_running_loop().run_in_executor(self._reads, _read, path, offset, length)

    async def append(self, writes: Sequence[Write], *, sync: bool = False) -> None:
        thread = self._commits if sync else self._changes
        await thread.run(lambda: thread.append(writes, sync))

    async def sync(self, files: Sequence[str]) -> None:
        await self._changes.run(lambda: self._changes.sync(files))

    async def truncate(self, file: str, size: int) -> None:
        await self._changes.run(lambda: self._changes.truncate(file, size))

    async def replace(self, file: str, data: bytes) -> None:
        await self._changes.run(lambda: self._changes.replace(file, data))

    async def delete(self, files: Sequence[str]) -> None:
        await self._changes.run(lambda: self._changes.delete(files))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._commits.close()
        await self._changes.close()
        self._reads.shutdown()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


class _DiskThread:
    """One thread with its open files; it carries out changes one after the other."""

    def __init__(self, name: str, root: Path, open_files_max: int) -> None:
        self._root = root
        self._thread = ThreadPoolExecutor(1, f"anabranch-disk-{name}")
        self._open_files_max = open_files_max
        self._fds: OrderedDict[str, int] = OrderedDict()
        # Files whose names this process synced; an earlier process may have died before it synced them.
        self._named: set[str] = set()
        self._synced_bytes = 0

    async def run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as error:
            if "after shutdown" not in str(error):
                raise
            raise AlreadyClosedError("the disk is closed") from error

    async def close(self) -> None:
        await self.run(self._forget_all)
        self._thread.shutdown()

    def append(self, writes: Sequence[Write], sync: bool) -> None:
        for file, buffers in writes:
            written = _write_all(self._fd(file), buffers)
            if sync:
                self._synced_bytes += written
        if sync:
            self.sync([file for file, _ in writes])
            if self._synced_bytes >= _FORGET_BYTES:
                self._synced_bytes = 0
                self._forget_pages([file for file, _ in writes])

    def _forget_pages(self, files: Sequence[str]) -> None:
        """Let the kernel reuse the pages of synced bytes: fresh pages make appends up to ten times slower."""
        for file in files:
            os.posix_fadvise(self._fd(file), 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, files: Sequence[str]) -> None:
        if len(files) <= _SYNCED_IN_TURN_MAX:
            for file in files:
                os.fdatasync(self._fd(file))
        else:
            _side_by_side(_sync_file, [_path(self._root, file) for file in files])
        unnamed = [file for file in files if file not in self._named]
        if unnamed:
            _sync_folders(self._root, unnamed)
            self._named.update(unnamed)

    def truncate(self, file: str, size: int) -> None:
        os.truncate(_path(self._root, file), size)

    def replace(self, file: str, data: bytes) -> None:
        path = _path(self._root, file)
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = patiently(lambda: os.open(draft, flags, 0o600), self._forget_all)
        try:
            _write_all(fd, (data,))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, path)
        # An open descriptor would still refer to the old content.
        self._forget(file)
        _sync_folders(self._root, [file])

    def delete(self, files: Sequence[str]) -> None:
        for file in files:
            self._forget(file)
            path = _path(self._root, file)
            path.unlink(missing_ok=True)
            # Both threads use the folders directly below the root, so those stay.
            if file.count("/") > 1:
                with suppress(OSError):
                    path.parent.rmdir()

    def _fd(self, file: str) -> int:
        fd = self._fds.get(file)
        if fd is not None:
            self._fds.move_to_end(file)
            return fd
        while len(self._fds) >= self._open_files_max:
            os.close(self._fds.popitem(last=False)[1])
        path = _path(self._root, file)
        fd = patiently(lambda: _open_end(path), self._forget_all)
        self._fds[file] = fd
        return fd

    def _forget(self, file: str) -> None:
        self._named.discard(file)
        fd = self._fds.pop(file, -1)
        if fd >= 0:
            os.close(fd)

    def _forget_all(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])


_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_JOIN_BYTES_MAX = 256 * 1024
"""Up to this size one copy is cheaper than many small buffers in one system call."""

_FORGET_BYTES = 1024 * 1024

_SYNCED_IN_TURN_MAX = 64
_SYNC_THREADS = 16
"""Threads that share the syncs of a checkpoint with more files than `_SYNCED_IN_TURN_MAX`."""


def _write_all(fd: int, buffers: Sequence[bytes]) -> int:
    total = sum(map(len, buffers))
    if total <= _JOIN_BYTES_MAX or len(buffers) == 1:
        _write_one(fd, buffers[0] if len(buffers) == 1 else b"".join(buffers))
        return total
    for start in range(0, len(buffers), _BUFFERS_MAX):
        part = buffers[start : start + _BUFFERS_MAX]
        written = os.writev(fd, part)
        if written < sum(map(len, part)):
            _write_one(fd, memoryview(b"".join(part))[written:])
    return total


def _write_one(fd: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _open_end(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def _read(path: Path, offset: int, length: int) -> bytes:
    fd = patiently(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        data = os.pread(fd, length, offset)
        # Linux caps one read at 2 GiB, and a signal may shorten any read.
        while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def _path(root: Path, file: str) -> Path:
    if file.startswith("/") or "\0" in file or ".." in file.split("/"):
        raise ValueError(f"{file!r} is not a file name below the data directory")
    return root / file


def _sizes(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{folder}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    found[folder + entry.name] = entry.stat().st_size
    return found


def _sync_folders(root: Path, files: Sequence[str]) -> None:
    """Make the names of these files durable, and the names of the folders that lead to them."""
    folders: dict[Path, None] = {}
    for file in files:
        folder = (root / file).parent
        while folder not in folders:
            folders[folder] = None
            if folder == root:
                break
            folder = folder.parent
    _side_by_side(sync_folder, list(folders))


def _side_by_side(sync: Callable[[Path], None], paths: Sequence[Path]) -> None:
    """Sync many files or folders on several threads, because the file system commits their syncs together."""
    # A few paths need no second thread.
    with ThreadPoolExecutor(min(_SYNC_THREADS, 1 + len(paths) // 64), "anabranch-disk-sync") as threads:
        list(threads.map(sync, paths))


def _sync_file(path: Path) -> None:
    fd = patiently(lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    fd = patiently(lambda: os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_root(root: Path) -> None:
    """Create the root and its parents, with durable names."""
    if root.is_dir():
        return
    make_root(root.parent)
    root.mkdir(0o700, exist_ok=True)
    sync_folder(root.parent)


def _take_lock(root: Path, name: str, fence: str | None) -> int:
    make_root(root)
    return locks.take(root / LOCK_FILE, name, fence=fence)
