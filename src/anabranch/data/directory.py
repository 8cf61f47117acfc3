"""The data directory of a broker: its names, its lock, its format version and its permissions.

FORMAT         version of the layout of this directory, with a checksum
LOCK           locked by the process that serves the directory, and by its children
metadata.db    records of topics, subscriptions, namespaces and stores; metadata-log/ has them a second time
stores/<n>     journal, catalog and ledgers of one store
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from pathlib import Path

import google_crc32c

from anabranch import locks
from anabranch.errors import HeldError, InvalidConfigurationError, UnsupportedFormatError
from anabranch.ledger.disks.os_disk import LOCK_FILE, make_root

log = logging.getLogger(__name__)

METADATA_FILE = "metadata.db"
STORES = "stores"
STAGING = "backup"
"""Folder for the hard links of a running backup."""

FORMAT_FILE = "FORMAT"
FORMAT_VERSION = 2
"""Rises when an older version of Anabranch could not read the directory any more."""

ORPHANS_S = 10.0
"""How long a start waits for the workers of a killed supervisor to stop, before it kills them."""

_FILES_OF_OTHERS = 0o077


def open_data(data: str) -> int:
    """Lock the data directory for this process and its children, and check its format.

    Returns the descriptor that holds the lock. HeldError when a process uses the directory. Files that the
    process creates from now on are readable by its user only.
    """
    os.umask(_FILES_OF_OTHERS)
    root = Path(data).absolute()
    try:
        make_root(root)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidConfigurationError(
            f"{error.filename} is not a directory; choose another --data"
        ) from None
    _close_to_others(root)
    lock = _lock(root)
    try:
        check_format(root)
        _drop_links(root)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _close_to_others(root: Path) -> None:
    """Take the rights of other users away, unless the directory contains files of another program."""
    mode = stat.S_IMODE(root.stat().st_mode)
    names = {entry.name for entry in os.scandir(root)}
    if mode & _FILES_OF_OTHERS and (not names or names & {FORMAT_FILE, LOCK_FILE}):
        root.chmod(mode & ~_FILES_OF_OTHERS)


def _lock(root: Path) -> int:
    """Take the lock; workers of a killed supervisor hold it until they stop, or are killed."""
    file = root / LOCK_FILE
    deadline = time.monotonic() + ORPHANS_S
    ended = False
    while True:
        try:
            return locks.take(file)
        except HeldError:
            if locks.is_held_by_named_process(file) or (ended and time.monotonic() >= deadline):
                raise
            if time.monotonic() >= deadline:
                _kill_orphans(root)
                ended, deadline = True, time.monotonic() + locks.WAIT_S
            time.sleep(0.05)


def _kill_orphans(root: Path) -> None:
    for file in sorted((root / STORES).glob(f"*/{LOCK_FILE}")):
        try:
            os.close(locks.take(file))
        except HeldError as error:
            log.warning("%s of a supervisor that is gone does not stop, and is ended", error.holder)
            os.close(locks.take(file, fence=error.holder))


def _drop_links(root: Path) -> None:
    """Remove the links of a backup that was killed: they keep the room of deleted files."""
    staging = root / STAGING
    if not (staging / LOCK_FILE).is_file():
        return
    try:
        lock = locks.take(staging / LOCK_FILE)
    except HeldError:
        return
    shutil.rmtree(staging, ignore_errors=True)
    os.close(lock)


def check_format(root: Path) -> None:
    """Write the format version into a directory without one; refuse a directory of a newer version.

    A damaged file is written again: catalogs and the metadata store have versions of their own.
    """
    file = root / FORMAT_FILE
    try:
        found = parse_format(file.read_bytes())
    except FileNotFoundError:
        found = None
    else:
        if found is None:
            log.warning("%s was damaged and is written again", file)
    if found is not None and found > FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{root} has format {found}, and this version of Anabranch reads formats up to {FORMAT_VERSION}; "
            "start it with the version that wrote it, or a later one"
        )
    if found != FORMAT_VERSION:
        try:
            write_format(root)
        except OSError as error:
            log.warning("%s was not written, and the next start tries again: %s", file, error)


def parse_format(content: bytes) -> int | None:
    """The version in a FORMAT file; None when the file is damaged."""
    words = content.split()
    if len(words) != 4 or words[:2] != [b"anabranch", b"format"] or not words[2].isdigit():
        return None
    return int(words[2]) if format_text(int(words[2])) == content else None


def format_text(version: int) -> bytes:
    text = b"anabranch format %d" % version
    return b"%s %08x\n" % (text, google_crc32c.value(text))


def write_format(root: Path) -> None:
    """Write the file at once and durably; an empty file after a crash counts as damaged."""
    fd = os.open(root / FORMAT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, format_text(FORMAT_VERSION))
        os.fsync(fd)
    finally:
        os.close(fd)
