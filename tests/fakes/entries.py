"""Takes entries apart for tests that look at their bytes."""

from __future__ import annotations

from anabranch.protocol.frames import metadata_span


def split_entry(entry: bytes) -> tuple[bytes, bytes]:
    """Metadata and payload of an entry."""
    start, end = metadata_span(entry)
    return entry[start:end], entry[end:]
