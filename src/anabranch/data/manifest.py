"""The manifest of a backup: every file with its size and checksum. Pure."""

from __future__ import annotations

import google_crc32c
import msgspec

from anabranch.errors import CorruptDataError, UnsupportedFormatError

MANIFEST_FILE = "MANIFEST"
MANIFEST_VERSION = 1


class BackupFile(msgspec.Struct, frozen=True, order=True):
    """One file of a backup; its path is relative to the folder of the backup."""

    path: str
    size: int = 0
    checksum: int = 0

    def extended(self, data: bytes) -> BackupFile:
        """The file with more bytes at its end."""
        checksum: int = google_crc32c.extend(self.checksum, data)
        return BackupFile(self.path, self.size + len(data), checksum)


class Manifest(msgspec.Struct, frozen=True):
    """A backup as a whole."""

    taken_at_ms: int
    files: list[BackupFile]
    version: int = MANIFEST_VERSION

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)


_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return b"%08x\n%s\n" % (google_crc32c.value(body), body)


def decode_manifest(content: bytes) -> Manifest:
    """Undo `encode_manifest`; a manifest whose paths lead out of the folder counts as damaged."""
    checksum, _, body = content.partition(b"\n")
    body = body.removesuffix(b"\n")
    if checksum != b"%08x" % google_crc32c.value(body):
        raise CorruptDataError(f"the {MANIFEST_FILE} of the backup is damaged; restore another backup")
    try:
        manifest = _decoder.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptDataError(f"the {MANIFEST_FILE} of the backup cannot be read: {error}") from error
    if manifest.version > MANIFEST_VERSION:
        raise UnsupportedFormatError(
            f"the backup has version {manifest.version}, and this version of Anabranch restores versions up "
            f"to {MANIFEST_VERSION}"
        )
    for file in manifest.files:
        if file.path.startswith("/") or not {"", ".", ".."}.isdisjoint(file.path.split("/")):
            raise CorruptDataError(f"the backup names the file {file.path!r}, which is outside of its folder")
    return manifest
