"""Small files that are written whole: a title line with kind and version, a checksum, and the body. Pure."""

from __future__ import annotations

import re

from anabranch.errors import CorruptDataError, UnsupportedFormatError
from anabranch.ledger.format.records import checksum, extend_checksum

FORMAT_VERSION = 2
"""The format version of all files of a store. The catalog's version also applies to journal and ledgers."""

_TITLE = re.compile(rb"anabranch ([a-z]+) ([1-9][0-9]{0,4})\n")


def encode_frame(kind: str, body: bytes) -> bytes:
    title = f"anabranch {kind} {FORMAT_VERSION}\n".encode()
    return title + _sum(title, body) + body


def decode_frame(kind: str, data: bytes) -> bytes:
    """Decode what `encode_frame` wrote.

    CorruptDataError if damaged, UnsupportedFormatError if too new or old.
    """
    title = _TITLE.match(data)
    if title is None or title.group(1) != kind.encode():
        raise CorruptDataError(f"the {kind} has an unknown format")
    body = data[title.end() + 4 :]
    version = int(title.group(2))
    # The checksum of format 1 did not cover the title.
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
