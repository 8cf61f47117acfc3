"""Decodes a stored entry into columns over its messages.

Headers of the usual shape are read by hand, because a protobuf object per message would cost more than the
rest of the work; the generated code reads any other shape. Encrypted entries and single chunks are refused.
"""

from __future__ import annotations

from base64 import b64decode
from struct import error as struct_error
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from anabranch.errors import (
    ChecksumError,
    CorruptDataError,
    RemoteProtocolError,
    UnsupportedFeatureError,
)
from anabranch.protocol.entry.columns import (
    KEY_TAG,
    Columns,
    header_bytes,
    header_span,
    parse_header,
    read_head,
    sequence_id_of,
)
from anabranch.protocol.entry.compression import decompress
from anabranch.protocol.entry.message_sizes import find_messages
from anabranch.protocol.entry.outer import EntryHead, read_metadata
from anabranch.protocol.frames import checksum_ok
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.speedups import holds_messages, split_messages

_SIZE_TAG: Final = 0x18
_SEQUENCE_TAG: Final = 0x40


class EncryptedEntryError(UnsupportedFeatureError):
    """The entry is encrypted, and its reader was given no key."""


class OpenEntry(NamedTuple):
    """An entry whose checksum and metadata are sound, with its payload uncompressed."""

    metadata: pb.MessageMetadata
    data: bytes
    """Bytes that end with the payload."""
    position: int
    """The offset of the payload."""

    def surely_holds(self, count: int) -> bool:
        """Return whether the payload is certainly a batch of `count` messages.

        Return False if only `columns` can tell.
        """
        return (
            holds_messages is not None
            and self.metadata.num_messages_in_batch == count
            and self.metadata.HasField("num_messages_in_batch")
            and holds_messages(self.data, self.position, count)
        )

    def columns(self) -> Columns:
        """Return the messages, column by column; raises CorruptDataError for a damaged batch."""
        if self.metadata.HasField("num_messages_in_batch"):
            return _split_columns(*self) or _indexed_columns(*self) or _batch_columns(*self)
        return columns_of_single(self.metadata, self.data[self.position :])


def decode_columns(entry: bytes, limit: int) -> Columns:
    """Return the messages of an entry, column by column; raises the errors of `open_entry`."""
    return open_entry(entry, limit).columns()


def open_entry(entry: bytes, limit: int, head: EntryHead | None = None) -> OpenEntry:
    """Check an entry and uncompress its payload; `head` is its metadata, if it was read before.

    Raises ChecksumError, CompressionError when the payload would exceed `limit` bytes or its own declared
    size, EncryptedEntryError, UnsupportedFeatureError for a chunk, and CorruptDataError for other damage.
    """
    metadata, end = checked_metadata(entry, head)
    if metadata.encryption_keys:
        raise EncryptedEntryError("the entry is encrypted; give the consumer encryption=Decrypt(...)")
    if metadata.num_chunks_from_msg > 1:
        raise UnsupportedFeatureError("the entry is one chunk of a larger message")
    if metadata.compression:
        data = decompress(metadata.compression, entry[end:], metadata.uncompressed_size, limit)
        return OpenEntry(metadata, data, 0)
    return OpenEntry(metadata, entry, end)


def checked_metadata(entry: bytes, head: EntryHead | None = None) -> EntryHead:
    """Return the head of an entry, read now unless it is given; raises ChecksumError or CorruptDataError."""
    try:
        if not checksum_ok(entry):
            raise ChecksumError(f"an entry of {len(entry)} bytes does not match its checksum")
        return head or read_metadata(entry)
    except RemoteProtocolError as error:
        raise CorruptDataError(str(error)) from error


def columns_of_single(metadata: pb.MessageMetadata, value: bytes) -> Columns:
    """Return the one message of an entry that is not a batch."""
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


def _split_columns(metadata: pb.MessageMetadata, data: bytes, position: int) -> Columns | None:
    """Return the messages of a batch, found by the compiled reader.

    Return None if the Python forms have to read them.
    """
    if split_messages is None:
        return None
    found = split_messages(data, position, metadata.num_messages_in_batch)
    return None if found is None else _usual_columns(metadata, data, *found)


def _indexed_columns(metadata: pb.MessageMetadata, data: bytes, position: int) -> Columns | None:
    """Return the messages of a batch, found by their sizes in the metadata.

    Return None if they have to be walked.
    """
    if not (sizes := metadata.message_sizes):
        return None
    spans = find_messages(sizes, metadata.num_messages_in_batch, data, position)
    if spans is None:
        return None
    values: list[bytes | None] = [
        data[start:end] for start, end in zip(spans.values, spans.ends, strict=True)
    ]
    return _usual_columns(metadata, data, spans.starts, values)


def _usual_columns(
    metadata: pb.MessageMetadata, data: bytes, starts: list[int], values: list[bytes | None]
) -> Columns:
    """Return the columns of a batch whose headers have at most a key, a value size and a sequence id."""
    count = len(values)
    return Columns(
        count=count,
        values=values,
        batch_indexes=range(count),
        event_times=None,
        properties=None,
        ordering_keys=None,
        publish_time_ms=metadata.publish_time,
        producer_name=_text(metadata.producer_name),
        batch_size=count,
        data=data,
        starts=starts,
    )


def _batch_columns(metadata: pb.MessageMetadata, data: bytes, position: int) -> Columns:
    count = metadata.num_messages_in_batch
    starts: list[int] = []
    values: list[bytes | None] = []
    unusual: dict[int, pb.SingleMessageMetadata] = {}
    # Upper bytes of the sequence id before, which neighbours mostly share; at first those of a small number.
    upper = b"\x01"
    try:
        bare = not parse_header(header_bytes(data, *header_span(data, position))).HasField("sequence_id")
        for index in range(count):
            size, tag, length = read_head(data, position)
            value_start = position + 4 + size
            at = position + 6
            if tag == KEY_TAG and length < 0x80:
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
                header = unusual[index] = parse_header(header_bytes(data, position + 4, value_start))
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
    columns = _usual_columns(metadata, data, starts, values)
    columns.numbered_from = metadata.sequence_id if bare else None
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
        columns.sequence_ids[index] = sequence_id_of(header, first + index)
        if header.null_value:
            columns.values[index] = None
        if columns.event_times is not None:
            columns.event_times[index] = header.event_time
        if columns.properties is not None and header.properties:
            columns.properties[index] = _properties(header)
        if columns.ordering_keys is not None and header.HasField("ordering_key"):
            columns.ordering_keys[index] = header.ordering_key
    removed = [index for index, header in unusual.items() if header.compacted_out]
    batch_indexes = columns.batch_indexes = list(columns.batch_indexes)
    for index in reversed(removed):
        for column in (
            columns.keys,
            columns.values,
            columns.sequence_ids,
            batch_indexes,
            columns.event_times,
            columns.properties,
            columns.ordering_keys,
        ):
            if column is not None:
                del column[index]
    columns.count = count - len(removed)


def _is_sequence_id(data: bytes, start: int, end: int) -> bool:
    """Return whether `data[start:end]` is the field of a sequence id and nothing else."""
    number = data[start + 1 : end]
    if data[start] != _SEQUENCE_TAG or not 0 < len(number) < 10:
        return False
    return number[-1] < 0x80 and all(byte >= 0x80 for byte in number[:-1])


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
