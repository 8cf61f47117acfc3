"""System calls on the files of a store. Knows nothing of the threads that make the calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anabranch.descriptors import open_patiently, patiently
from anabranch.ledger.disks.disk import DiskSpace

_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_JOIN_BYTES_MAX = 256 * 1024
"""Up to this size, one copy is cheaper than passing many small buffers to a system call."""

_SYNC_THREADS = 16
"""The maximum number of threads that share the syncs of many files."""


def write_all(fd: int, buffers: Sequence[bytes]) -> int:
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


def write_draft(draft: Path, data: bytes, make_room: Callable[[], None]) -> None:
    """Write a new file and sync its bytes; `make_room` closes files if the process is out of descriptors."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = patiently(lambda: os.open(draft, flags, 0o600), make_room)
    try:
        write_all(fd, (data,))
        os.fsync(fd)
    finally:
        os.close(fd)


def space_of(root: Path) -> DiskSpace:
    found = os.statvfs(root)
    return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def resize_reserve(path: Path, size_bytes: int | None) -> int:
    if size_bytes is None:
        return path.stat().st_size if path.exists() else 0
    fd = open_patiently(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        before = os.fstat(fd).st_size
        if size_bytes <= before:
            os.ftruncate(fd, size_bytes)
            return size_bytes
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError:
            # A disk without room for the reserve is used without one.
            os.ftruncate(fd, before)
            return before
        return size_bytes
    finally:
        os.close(fd)


def open_end(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def read_part(path: Path, offset: int, length: int) -> bytes:
    fd = open_patiently(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(fd, length, offset)
        # Linux caps one read at 2 GiB, and a signal may shorten any read.
        while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def sizes_of(root: Path) -> dict[str, int]:
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


def sync_folders(root: Path, files: Sequence[str]) -> None:
    """Make the names of these files durable, and the names of all folders above them."""
    folders: dict[Path, None] = {}
    for file in files:
        folder = (root / file).parent
        while folder not in folders:
            folders[folder] = None
            if folder == root:
                break
            folder = folder.parent
    side_by_side(sync_folder, list(folders))


def side_by_side(sync: Callable[[Path], None], paths: Sequence[Path]) -> None:
    """Sync many files or folders on several threads, so that the file system commits them together."""
    # For a few paths, a second thread is not worth its start.
    with ThreadPoolExecutor(min(_SYNC_THREADS, 1 + len(paths) // 64), "anabranch-disk-sync") as threads:
        list(threads.map(sync, paths))


def sync_file(path: Path) -> None:
    fd = open_patiently(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    fd = open_patiently(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
