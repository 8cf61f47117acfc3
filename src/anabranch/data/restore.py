"""Makes a data directory from a backup, after it has verified every byte of the backup.

Brokers may have stored messages after the backup was taken, and clients may have seen their ids. Each start
of a store continues with ids that follow the clock, so a restored store repeats none of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from anabranch.data.backup import Progress, copied_file, copy_file, make_empty
from anabranch.data.manifest import MANIFEST_FILE, Manifest, decode_manifest
from anabranch.errors import CorruptDataError, InvalidConfigurationError
from anabranch.ledger.disks.os_files import sync_folder

DRAFT = "restoring"


def verify(backup: Path, progress: Progress = lambda done, total: None) -> Manifest:
    """Compare every file of a backup with its manifest; CorruptDataError names the files that differ."""
    try:
        manifest = decode_manifest((backup / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        raise InvalidConfigurationError(
            f"{backup} is not a complete backup: it has no {MANIFEST_FILE}, which a backup writes last"
        ) from None
    wrong: list[str] = []
    done = 0
    for file in manifest.files:
        path = backup / file.path
        if not path.is_file() or path.is_symlink() or copied_file(backup, file.path) != file:
            wrong.append(file.path)
        done += file.size
        progress(done, manifest.size_bytes)
    if wrong:
        some = ", ".join(wrong[:5])
        raise CorruptDataError(f"restore another backup; this one has {len(wrong)} damaged files: {some}")
    return manifest


def restore(backup: Path, data: Path, progress: Progress = lambda done, total: None) -> Manifest:
    """Make the data directory, which must be empty or absent, from a verified backup.

    All files are copied to a folder inside the directory first, because it may be a mounted volume. No broker
    starts on a directory that has stores and no metadata, so the metadata moves to its place last.
    """
    manifest = verify(backup)
    draft = data / DRAFT
    if draft.is_dir():
        # An earlier restore was interrupted.
        shutil.rmtree(draft)
    make_empty(data)
    done = 0
    for file in manifest.files:
        copy = draft / file.path
        copy.parent.mkdir(0o700, parents=True, exist_ok=True)
        if copy_file(backup / file.path, copy, file.path, file.size) != file:
            raise CorruptDataError(f"{backup / file.path} changed while it was read; restore again")
        done += file.size
        progress(done, manifest.size_bytes)
    for folder, _, _ in os.walk(draft):
        sync_folder(Path(folder))
    for entry in sorted(draft.iterdir(), key=lambda entry: (entry.name.startswith("metadata"), entry.name)):
        entry.rename(data / entry.name)
    draft.rmdir()
    sync_folder(data)
    return manifest
