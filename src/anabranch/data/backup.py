"""Copies a data directory to another folder, consistently, while brokers serve it or after they stopped.

The copy is a state that a crash of all brokers could have left. While the metadata store accepts no change,
every file of every store gets a hard link in a staging folder; this takes a moment. The bytes are copied
later, up to the length that each file had then: files of a store only grow, are replaced, or are deleted.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from anabranch import locks
from anabranch.data.directory import FORMAT_FILE, METADATA_FILE, STAGING, STORES
from anabranch.data.manifest import MANIFEST_FILE, BackupFile, Manifest, encode_manifest
from anabranch.errors import ConflictError, InvalidConfigurationError, MetadataError
from anabranch.ledger.disks.os_disk import LOCK_FILE, RESERVE_FILE
from anabranch.ledger.disks.os_files import sync_folder

BUSY_S = 30.0
"""How long a backup waits for its turn to write to the metadata store."""

LINK_ROUNDS = 10
COPY_BYTES = 2**20
JOURNALS = "journal"

Progress = Callable[[int, int], None]
"""Takes the number of bytes copied so far and the number of all bytes."""


class Linked(NamedTuple):
    """A file of the snapshot: its path below the data directory, and its length at that time."""

    path: str
    size: int


def back_up(data: Path, target: Path, progress: Progress = lambda done, total: None) -> Manifest:
    """Copy the data directory to `target`, which must be empty or absent; the last file is the manifest."""
    if not (data / METADATA_FILE).is_file():
        raise InvalidConfigurationError(f"{data} is not a data directory: it has no {METADATA_FILE}")
    make_empty(target)
    with _staging(data) as staging:
        linked = _take_snapshot(data, staging, target / METADATA_FILE)
        files = _copy_all(staging, linked, target, progress)
    files.append(copied_file(target, METADATA_FILE))
    manifest = Manifest(int(time.time() * 1000), sorted(files))
    _write(target / MANIFEST_FILE, encode_manifest(manifest))
    for folder, _, _ in os.walk(target):
        sync_folder(Path(folder))
    return manifest


def make_empty(folder: Path) -> None:
    """Create the folder, readable by this user only; ConflictError if it holds anything."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConflictError(f"{folder} is not empty; choose a folder that is empty or does not exist")


@contextmanager
def _staging(data: Path) -> Iterator[Path]:
    """A folder of this backup alone; links that a killed backup left are removed."""
    staging = data / STAGING
    staging.mkdir(0o700, exist_ok=True)
    lock = locks.take(staging / LOCK_FILE, "backup")
    try:
        _clear(staging)
        yield staging
    finally:
        with suppress(OSError):
            shutil.rmtree(staging)
        os.close(lock)


def _clear(staging: Path) -> None:
    for entry in staging.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()


def _take_snapshot(data: Path, staging: Path, copy: Path) -> list[Linked]:
    """Link all files while the metadata store accepts no change, and copy its records as of that moment."""
    file = data / METADATA_FILE
    try:
        with (
            closing(sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)) as writer,
            closing(sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)) as reader,
            closing(sqlite3.connect(copy)) as made,
        ):
            writer.execute("BEGIN IMMEDIATE")
            reader.execute("BEGIN")
            # The first read makes the reader's view of the records; later commits do not change it.
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            linked = _link_all(data, staging)
            writer.execute("ROLLBACK")
            reader.backup(made)
            return linked
    except sqlite3.Error as error:
        raise MetadataError(f"cannot copy {file}: {error}") from error


def _link_all(data: Path, staging: Path) -> list[Linked]:
    linked: list[Linked] = []
    for entry in sorted(data.iterdir()):
        if entry.name == STORES:
            for store in sorted(entry.iterdir()):
                linked += _link_store(data, store, staging)
        elif entry.is_dir() and entry.name != STAGING:
            linked += _link_folder(data, entry, staging)
        elif entry.name == FORMAT_FILE:
            linked += _link(data, entry, staging)
    return linked


def _link_store(data: Path, store: Path, staging: Path) -> list[Linked]:
    """Link one store; start again if its owner wrote a new catalog meanwhile, and deleted journal files.

    The journal comes last: it tells about ledgers that were dropped before they could be linked.
    """
    for _ in range(LINK_ROUNDS):
        before = _identities(store)
        linked: list[Linked] = []
        for entry in sorted(store.iterdir(), key=lambda entry: entry.name == JOURNALS):
            if entry.is_dir():
                linked += _link_folder(data, entry, staging)
            elif entry.name not in (LOCK_FILE, RESERVE_FILE):
                linked += _link(data, entry, staging)
        if _identities(store) == before:
            return linked
        shutil.rmtree(staging / store.relative_to(data))
    raise ConflictError(f"{store} changed {LINK_ROUNDS} times while it was linked; back up again later")


def _identities(store: Path) -> dict[str, tuple[int, int]]:
    """Catalog and bounds of a store with their copies; each replacement gives a file another identity."""
    found: dict[str, tuple[int, int]] = {}
    with os.scandir(store) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.name not in (LOCK_FILE, RESERVE_FILE):
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    found[entry.name] = (status.st_ino, status.st_mtime_ns)
    return found


def _link_folder(data: Path, folder: Path, staging: Path) -> list[Linked]:
    linked: list[Linked] = []
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            linked += _link(data, Path(parent) / name, staging)
    return linked


def _link(data: Path, file: Path, staging: Path) -> list[Linked]:
    """Link one file; none if its owner deleted the file meanwhile, or has not finished writing it."""
    path = file.relative_to(data)
    link = staging / path
    link.parent.mkdir(0o700, parents=True, exist_ok=True)
    if file.name.endswith(".new"):
        return []
    try:
        os.link(file, link, follow_symlinks=False)
    except FileNotFoundError:
        return []
    return [Linked(path.as_posix(), link.stat().st_size)]


def _copy_all(staging: Path, linked: list[Linked], target: Path, progress: Progress) -> list[BackupFile]:
    total = sum(each.size for each in linked)
    done = 0
    files: list[BackupFile] = []
    for path, size in linked:
        copy = target / path
        copy.parent.mkdir(0o700, parents=True, exist_ok=True)
        files.append(copy_file(staging / path, copy, path, size))
        done += size
        progress(done, total)
    return files


def copy_file(source: Path, copy: Path, path: str, size: int) -> BackupFile:
    """Copy the first `size` bytes, durably; returns the entry of the manifest."""
    made = BackupFile(path)
    with source.open("rb") as read, _created(copy) as write:
        while made.size < size and (data := read.read(min(COPY_BYTES, size - made.size))):
            write.write(data)
            made = made.extended(data)
        write.flush()
        os.fsync(write.fileno())
    return made


def copied_file(folder: Path, path: str) -> BackupFile:
    """The entry of the manifest for a file that is in the folder already."""
    made = BackupFile(path)
    with (folder / path).open("rb") as read:
        os.fsync(read.fileno())
        while data := read.read(COPY_BYTES):
            made = made.extended(data)
    return made


@contextmanager
def _created(file: Path) -> Iterator[BinaryIO]:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as opened:
        yield opened


def _write(file: Path, content: bytes) -> None:
    with _created(file) as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
