"""Changes the outer metadata of an entry; the payload stays closed."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.frames import build_entry, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb


def entry_metadata(entry: bytes) -> pb.MessageMetadata:
    """Return the outer metadata; raises RemoteProtocolError when it cannot be read."""
    start, end = metadata_span(entry)
    try:
        return pb.MessageMetadata.FromString(entry[start:end])
    except DecodeError as error:
        raise RemoteProtocolError(f"an entry's metadata cannot be read: {error}") from error


def restamped(entry: bytes, change: Callable[[pb.MessageMetadata], None]) -> bytes:
    """Return the same entry with changed metadata and a new checksum."""
    metadata = entry_metadata(entry)
    change(metadata)
    return build_entry(metadata.SerializeToString(), entry[metadata_span(entry)[1] :])
