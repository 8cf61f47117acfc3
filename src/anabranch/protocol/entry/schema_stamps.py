"""The version of the schema that an entry was written with, in its metadata."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.frames import build_entry, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint

_TAG = b"\x82\x01"


def with_schema_version(entry: bytes, version: bytes) -> bytes:
    """Return the entry with a schema version, which it must not have yet."""
    start, end = metadata_span(entry)
    # Protobuf fields may come in any order.
    return build_entry(entry[start:end] + _TAG + encode_varint(len(version)) + version, entry[end:])


def schema_version_of(entry: bytes) -> bytes:
    """Return the schema version of an entry; empty if it has none."""
    start, end = metadata_span(entry)
    try:
        return pb.MessageMetadata.FromString(entry[start:end]).schema_version
    except DecodeError as error:
        raise RemoteProtocolError(f"an entry's metadata cannot be read: {error}") from error
