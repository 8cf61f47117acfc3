"""Decodes a stored entry into columns over its messages.

Headers of the usual shape are read by hand, because a protobuf object per message would cost more than the
rest of the work; the generated code reads any other shape. Encrypted entries and single chunks are refused.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from struct import error as struct_error
from typing import Final

from google.protobuf.message import DecodeError

from anabranch.errors import ChecksumError, CorruptDataError, RemoteProtocolError, UnsupportedFeatureError
from anabranch.protocol.compression import decompress
from anabranch.protocol.frames import checksum_ok, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb

_KEY_TAG: Final = 0x12
_SIZE_TAG: Final = 0x18
_SEQUENCE_TAG: Final = 0x40
_read_head = Struct(">IBB").unpack_from
_parse_header = pb.SingleMessageMetadata.FromString


@dataclass
class Columns:
    """The messages of one entry, column by column; an optional column is None when no message has it.

    Keys and sequence ids are decoded on first use, because many readers want only the values.
    """

    count: int
    values: list[bytes | None]
    """None for a message whose value is null."""
    batch_indexes: list[int]
    """Place of each message in its batch; -1 when the entry is not a batch."""
    event_times: list[int] | None
    """Milliseconds, 0 for a message without one."""
    properties: list[dict[str, str]] | None
    ordering_keys: list[bytes | None] | None
    publish_time_ms: int
    producer_name: str
    batch_size: int
    """Messages in the stored batch, including compacted ones; 0 when the entry is not a batch."""
    data: bytes = b""
    starts: Sequence[int] = ()
    """Offset in `data` of each message."""
    numbered_from: int | None = None
    """The sequence id of message 0 if a message has none of its own; messages are numbered in order."""

    @cached_property
    def keys(self) -> list[bytes | None]:
        data = self.data
        return [
            data[at + 6 : at + 6 + data[at + 5]] if data[at + 4] == _KEY_TAG else None for at in self.starts
        ]

    @cached_property
    def sequence_ids(self) -> list[int]:
        data, first = self.data, self.numbered_from
        if first is not None:
            headers = (_parse_header(_header(data, *_header_span(data, at))) for at in self.starts)
            return [_sequence_id(header, first + index) for index, header in enumerate(headers)]
        return [last_varint(data, at + 4 + _read_head(data, at)[0]) for at in self.starts]


def decode_columns(entry: bytes, limit: int) -> Columns:
    """The messages of an entry, column by column.

    Raises ChecksumError, CompressionError when the payload would exceed `limit` bytes or its own declared
    size, UnsupportedFeatureError for encrypted and chunked entries, and CorruptDataError for other damage.
    """
    metadata, end = checked_metadata(entry)
    if metadata.encryption_keys:
        raise UnsupportedFeatureError("the entry is encrypted")
    if metadata.num_chunks_from_msg > 1:
        raise UnsupportedFeatureError("the entry is one chunk of a larger message")
    data, position = entry, end
    if metadata.compression:
        data = decompress(metadata.compression, entry[end:], metadata.uncompressed_size, limit)
        position = 0
    if metadata.HasField("num_messages_in_batch"):
        return _batch_columns(metadata, data, position)
    return _single_columns(metadata, data[position:])


def checked_metadata(entry: bytes) -> tuple[pb.MessageMetadata, int]:
    """The metadata of an entry and the offset of its payload; raises ChecksumError or CorruptDataError."""
    try:
        if not checksum_ok(entry):
            raise ChecksumError(f"an entry of {len(entry)} bytes does not match its checksum")
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except (DecodeError, RemoteProtocolError) as error:
        raise CorruptDataError(f"the metadata of an entry cannot be read: {error}") from error
    # FromString accepts a message that lacks required fields.
    if not metadata.IsInitialized():
        raise CorruptDataError("the metadata of an entry lacks a required field")
    return metadata, end


def _single_columns(metadata: pb.MessageMetadata, value: bytes) -> Columns:
    columns = Columns(
        count=1,
        values=[None if metadata.null_value else value],
        batch_indexes=[-1],
        event_times=[metadata.event_time] if metadata.event_time else None,
        properties=[_properties(metadata)] if metadata.properties else None,
        ordering_keys=[metadata.ordering_key] if metadata.HasField("ordering_key") else None,
        publish_time_ms=metadata.publish_time,
        producer_name=_text(metadata.producer_name),
        batch_size=0,
    )
    columns.keys = [_key_bytes(metadata)]
    columns.sequence_ids = [metadata.sequence_id]
    return columns


def _batch_columns(metadata: pb.MessageMetadata, data: bytes, position: int) -> Columns:
    count = metadata.num_messages_in_batch
    starts: list[int] = []
    values: list[bytes | None] = []
    unusual: dict[int, pb.SingleMessageMetadata] = {}
    # Upper bytes of the sequence id before: neighbours in a batch mostly differ in the lowest byte only.
    upper = b"\xff"
    try:
        bare = not _parse_header(_header(data, *_header_span(data, position))).HasField("sequence_id")
        for index in range(count):
            size, tag, length = _read_head(data, position)
            value_start = position + 4 + size
            at = position + 6
            if tag == _KEY_TAG and length < 0x80:
                at += length
                tag = data[at]
                length = data[at + 1]
                at += 2
            if length >= 0x80:
                length += (data[at] << 7) - 0x80
                at += 1
            usual = tag == _SIZE_TAG and length < 0x4000
            rest = data[at + 2 : value_start]
            if usual and rest == upper and data[at] == _SEQUENCE_TAG and data[at + 1] >= 0x80:
                # The upper bytes equal those of the message before, and end the header.
                pass
            elif usual and (bare if at == value_start else _is_sequence_id(data, at, value_start)):
                upper = rest or upper
            else:
                header = unusual[index] = _parse_header(_header(data, position + 4, value_start))
                length = header.payload_size
                if length < 0 or not header.IsInitialized():
                    raise CorruptDataError(f"message {index} of a batch has no payload size")
            starts.append(position)
            position = value_start + length
            values.append(data[value_start:position])
    except (DecodeError, struct_error, IndexError) as error:
        raise CorruptDataError(f"message {len(values)} of {count} cannot be read: {error}") from error
    if position != len(data) or count < 1:
        raise CorruptDataError(f"a batch of {count} messages does not fill its {len(data)} bytes exactly")
    columns = Columns(
        count=count,
        values=values,
        batch_indexes=list(range(count)),
        event_times=None,
        properties=None,
        ordering_keys=None,
        publish_time_ms=metadata.publish_time,
        producer_name=_text(metadata.producer_name),
        batch_size=count,
        data=data,
        starts=starts,
        numbered_from=metadata.sequence_id if bare else None,
    )
    if unusual:
        _fill_in(columns, unusual, metadata.sequence_id)
    return columns


def _fill_in(columns: Columns, unusual: dict[int, pb.SingleMessageMetadata], first: int) -> None:
    """Add the fields of unusual headers, and remove compacted messages; `first` numbers message 0."""
    count = columns.count
    if any(header.event_time for header in unusual.values()):
        columns.event_times = [0] * count
    if any(header.properties for header in unusual.values()):
        columns.properties = [{} for _ in range(count)]
    if any(header.HasField("ordering_key") for header in unusual.values()):
        columns.ordering_keys = [None] * count
    for index, header in unusual.items():
        columns.keys[index] = _key_bytes(header)
        columns.sequence_ids[index] = _sequence_id(header, first + index)
        if header.null_value:
            columns.values[index] = None
        if columns.event_times is not None:
            columns.event_times[index] = header.event_time
        if columns.properties is not None and header.properties:
            columns.properties[index] = _properties(header)
        if columns.ordering_keys is not None and header.HasField("ordering_key"):
            columns.ordering_keys[index] = header.ordering_key
    removed = [index for index, header in unusual.items() if header.compacted_out]
    for index in reversed(removed):
        for column in (
            columns.keys,
            columns.values,
            columns.sequence_ids,
            columns.batch_indexes,
            columns.event_times,
            columns.properties,
            columns.ordering_keys,
        ):
            if column is not None:
                del column[index]
    columns.count = count - len(removed)


def _sequence_id(header: pb.SingleMessageMetadata, implied: int) -> int:
    return header.sequence_id if header.HasField("sequence_id") else implied


def _header_span(data: bytes, position: int) -> tuple[int, int]:
    return position + 4, position + 4 + _read_head(data, position)[0]


def _header(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise CorruptDataError(f"a header in a batch claims {end - start} bytes of {len(data) - start}")
    return data[start:end]


def _is_sequence_id(data: bytes, start: int, end: int) -> bool:
    """Whether `data[start:end]` is the field of a sequence id and nothing else."""
    number = data[start + 1 : end]
    if data[start] != _SEQUENCE_TAG or not 0 < len(number) < 10:
        return False
    return number[-1] < 0x80 and all(byte >= 0x80 for byte in number[:-1])


def last_varint(data: bytes, end: int) -> int:
    """The varint of at most nine bytes that ends before `end`; the byte before it ends another field."""
    number = data[end - 1]
    for at in range(end - 2, end - 10, -1):
        if data[at] < 0x80:
            break
        number = number << 7 | data[at] & 0x7F
    return number


def _key_bytes(header: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    if header.null_partition_key or not header.HasField("partition_key"):
        return None
    key = _raw(header.partition_key)
    if header.partition_key_b64_encoded:
        try:
            return b64decode(key, validate=True)
        except ValueError:
            return key
    return key


def _properties(header: pb.MessageMetadata | pb.SingleMessageMetadata) -> dict[str, str]:
    return {_text(pair.key): _text(pair.value) for pair in header.properties}


# Protobuf returns bytes instead of a string for text that is not UTF-8.


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode(errors="replace")
