"""Small files that are written whole: a title line with kind and version, a checksum, and the body. Pure."""

from __future__ import annotations

import re

from anabranch.errors import CorruptDataError, UnsupportedFormatError
from anabranch.ledger.format.records import checksum, extend_checksum

FORMAT_VERSION = 2
"""Version of all files of a store; the journal and the ledgers are read as their catalog says."""

_TITLE = re.compile(rb"anabranch ([a-z]+) ([1-9][0-9]{0,4})\n")


def encode_frame(kind: str, body: bytes) -> bytes:
    title = f"anabranch {kind} {FORMAT_VERSION}\n".encode()
    return title + _sum(title, body) + body


def decode_frame(kind: str, data: bytes) -> bytes:
    """Undo `encode_frame`; CorruptDataError for damaged bytes, UnsupportedFormatError for another version."""
    title = _TITLE.match(data)
    if title is None or title.group(1) != kind.encode():
        raise CorruptDataError(f"the {kind} has an unknown format")
    body = data[title.end() + 4 :]
    version = int(title.group(2))
    # Format 1 left the title out of the checksum.
    covered = title.group() if version > 1 else b""
    if data[title.end() : title.end() + 4] != _sum(covered, body):
        raise CorruptDataError(f"the {kind} does not match its checksum")
    if version != FORMAT_VERSION:
        age = "newer" if version > FORMAT_VERSION else "older"
        raise UnsupportedFormatError(
            f"the {kind} of the store has format {version}, this version reads format {FORMAT_VERSION}; "
            f"start the {age} version that wrote it"
        )
    return body


def _sum(title: bytes, body: bytes) -> bytes:
    return int(extend_checksum(checksum(title), body)).to_bytes(4, "little")
