"""Messages to one entry and back.

A producer fills a `MessageBatch`; a reader gets columns, which is what Arrow and bulk consumers want, or
message objects made from them. Headers of the usual shape are written and read by hand, since a protobuf
object per message would cost more than everything else; any other shape goes through the generated code.
Encrypted and chunked entries are refused. Which messages share an entry is decided elsewhere.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import Final

from google.protobuf.message import DecodeError

from anabranch.errors import ChecksumError, CorruptDataError, RemoteProtocolError, UnsupportedFeatureError
from anabranch.protocol.compression import Compression, compress, decompress
from anabranch.protocol.frames import build_entry, checksum_ok, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint

__all__ = [
    "Columns",
    "Compression",
    "DecodedEntry",
    "DecodedMessage",
    "MessageBatch",
    "build_single",
    "compress",
    "decode_columns",
    "decode_entry",
    "decompress",
]

_KEYS_CACHED_MAX: Final = 8192
_pack_size = Struct(">I").pack
_read_size = Struct(">I").unpack_from

_key_headers: dict[str | bytes, bytes] = {}
"""Header bytes of recent keys, up to the tag of the payload size."""


class MessageBatch:
    """Messages that will be stored as one entry, in the order they were added."""

    __slots__ = ("_first", "_parts", "count", "highest_sequence_id", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._first: tuple[str | bytes | None, bytes | None] = (None, None)
        self.count = 0
        self.size = 0
        """Bytes of the payload before compression."""
        self.highest_sequence_id = 0

    def add(
        self,
        value: bytes,
        key: bytes | str | None,
        sequence_id: int,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        ordering_key: bytes | None = None,
        null_value: bool = False,
    ) -> None:
        """Append one message; a bytes key that is not UTF-8 travels as Base64 and comes back as it was."""
        if properties or event_time_ms or ordering_key is not None or null_value:
            header = _unusual_header(
                value, key, sequence_id, properties, event_time_ms, ordering_key, null_value
            )
        else:
            prefix = b"\x18" if key is None else _key_headers.get(key) or _key_header(key)
            header = b"".join((prefix, encode_varint(len(value)), b"\x40", encode_varint(sequence_id)))
        if not self.count:
            self._first = (key, ordering_key)
        self._parts += (_pack_size(len(header)), header, value)
        self.count += 1
        self.size += 4 + len(header) + len(value)
        if sequence_id > self.highest_sequence_id:
            self.highest_sequence_id = sequence_id

    def build(
        self,
        producer_name: str,
        publish_time_ms: int,
        compression: Compression = Compression.NONE,
        hash_range: tuple[int, int] | None = None,
    ) -> bytes:
        """The entry, ready to be sent; `hash_range` stamps the lowest and highest bucket hash in it.

        Both sequence ids of the entry are the highest one of its messages, as in Java's batches by bucket:
        entries of different buckets overlap in sequence ids, and only their highest ones are in send order.
        """
        key, ordering_key = self._first
        metadata = pb.MessageMetadata(
            producer_name=producer_name,
            sequence_id=self.highest_sequence_id,
            publish_time=publish_time_ms,
            num_messages_in_batch=self.count,
            highest_sequence_id=self.highest_sequence_id,
        )
        _set_keys(metadata, key, ordering_key)
        if hash_range is not None:
            metadata.entry_hash_min, metadata.entry_hash_max = hash_range
        return _finish(metadata, b"".join(self._parts), compression)


def build_single(
    value: bytes,
    key: bytes | str | None,
    sequence_id: int,
    producer_name: str,
    publish_time_ms: int,
    *,
    properties: Mapping[str, str] | None = None,
    event_time_ms: int = 0,
    ordering_key: bytes | None = None,
    null_value: bool = False,
    compression: Compression = Compression.NONE,
    hash_range: tuple[int, int] | None = None,
    deliver_at_ms: int = 0,
) -> bytes:
    """An entry that holds one message outside any batch."""
    metadata = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        uncompressed_size=len(value),
    )
    _set_keys(metadata, key, ordering_key)
    for name, text in (properties or {}).items():
        metadata.properties.add(key=name, value=text)
    if event_time_ms:
        metadata.event_time = event_time_ms
    if null_value:
        metadata.null_value = True
    if hash_range is not None:
        metadata.entry_hash_min, metadata.entry_hash_max = hash_range
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    return _finish(metadata, value, compression)


@dataclass(slots=True)
class Columns:
    """The messages of one entry, column by column; an optional column is None when no message has it."""

    count: int
    keys: list[bytes | None]
    values: list[bytes | None]
    """None for a message whose value is null."""
    sequence_ids: list[int]
    batch_indexes: list[int]
    event_times: list[int] | None
    properties: list[dict[str, str]] | None
    ordering_keys: list[bytes | None] | None
    publish_time_ms: int
    producer_name: str
    batch_size: int
    """Messages the entry was stored with, also those that compaction took out; 0 when it is not a batch."""


class DecodedMessage:
    """One message of an entry."""

    __slots__ = (
        "batch_index",
        "event_time_ms",
        "key_bytes",
        "null_value",
        "ordering_key",
        "properties",
        "sequence_id",
        "value",
    )

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None,
        sequence_id: int,
        batch_index: int,
        event_time_ms: int,
        properties: Mapping[str, str],
        ordering_key: bytes | None,
    ) -> None:
        self.value = b"" if value is None else value
        self.null_value = value is None
        self.key_bytes = key
        self.sequence_id = sequence_id
        self.batch_index = batch_index
        """-1 when the entry is not a batch."""
        self.event_time_ms = event_time_ms
        self.properties = properties
        self.ordering_key = ordering_key

    @property
    def key(self) -> str | None:
        """The key as text; bytes that are not UTF-8 appear as Base64, as other clients show them."""
        if self.key_bytes is None:
            return None
        try:
            return self.key_bytes.decode()
        except UnicodeDecodeError:
            return b64encode(self.key_bytes).decode()


@dataclass(slots=True)
class DecodedEntry:
    """An entry taken apart."""

    metadata: pb.MessageMetadata
    messages: list[DecodedMessage]


def decode_entry(entry: bytes, limit: int) -> DecodedEntry:
    """The messages of an entry as objects; fails as `decode_columns` does."""
    metadata, columns = _decode(entry, limit)
    count = columns.count
    messages = list(
        map(
            DecodedMessage,
            columns.values,
            columns.keys,
            columns.sequence_ids,
            columns.batch_indexes,
            columns.event_times or [0] * count,
            columns.properties or [{} for _ in range(count)],
            columns.ordering_keys or [None] * count,
        )
    )
    return DecodedEntry(metadata, messages)


def decode_columns(entry: bytes, limit: int) -> Columns:
    """The messages of an entry, column by column.

    Raises ChecksumError, CompressionError when the payload would exceed `limit` bytes or its own declared
    size, UnsupportedFeatureError for encrypted and chunked entries, and CorruptDataError for the rest.
    """
    return _decode(entry, limit)[1]


def _decode(entry: bytes, limit: int) -> tuple[pb.MessageMetadata, Columns]:
    try:
        if not checksum_ok(entry):
            raise ChecksumError(f"an entry of {len(entry)} bytes does not match its checksum")
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except (DecodeError, RemoteProtocolError) as error:
        raise CorruptDataError(f"the metadata of an entry cannot be read: {error}") from error
    if metadata.encryption_keys:
        raise UnsupportedFeatureError("the entry is encrypted")
    if metadata.num_chunks_from_msg > 1:
        raise UnsupportedFeatureError("the entry is one chunk of a larger message")
    data, position = entry, end
    if metadata.compression:
        data = decompress(metadata.compression, entry[end:], metadata.uncompressed_size, limit)
        position = 0
    if metadata.HasField("num_messages_in_batch"):
        return metadata, _batch_columns(metadata, data, position)
    return metadata, _single_columns(metadata, data[position:])


def _single_columns(metadata: pb.MessageMetadata, value: bytes) -> Columns:
    return Columns(
        count=1,
        keys=[_key_bytes(metadata)],
        values=[None if metadata.null_value else value],
        sequence_ids=[metadata.sequence_id],
        batch_indexes=[-1],
        event_times=[metadata.event_time] if metadata.event_time else None,
        properties=[{p.key: p.value for p in metadata.properties}] if metadata.properties else None,
        ordering_keys=[metadata.ordering_key] if metadata.HasField("ordering_key") else None,
        publish_time_ms=metadata.publish_time,
        producer_name=metadata.producer_name,
        batch_size=0,
    )


def _batch_columns(metadata: pb.MessageMetadata, data: bytes, position: int) -> Columns:
    count = metadata.num_messages_in_batch
    columns = Columns(
        0, [], [], [], [], None, None, None, metadata.publish_time, metadata.producer_name, count
    )
    try:
        for index in range(count):
            header_end = position + 4 + _read_size(data, position)[0]
            if header_end > len(data):
                raise CorruptDataError(f"message {index} of a batch ends inside its header")
            header = pb.SingleMessageMetadata.FromString(data[position + 4 : header_end])
            position = header_end + header.payload_size
            if not header_end <= position <= len(data):
                raise CorruptDataError(f"message {index} of a batch ends inside its payload")
            if not header.compacted_out:
                _append(columns, header, index, data[header_end:position])
    except (DecodeError, struct_error) as error:
        raise CorruptDataError(f"a batch of {count} messages cannot be read: {error}") from error
    return columns


def _append(columns: Columns, header: pb.SingleMessageMetadata, index: int, value: bytes) -> None:
    count = columns.count
    columns.count += 1
    columns.keys.append(_key_bytes(header))
    columns.values.append(None if header.null_value else value)
    columns.sequence_ids.append(header.sequence_id)
    columns.batch_indexes.append(index)
    if header.event_time and columns.event_times is None:
        columns.event_times = [0] * count
    if columns.event_times is not None:
        columns.event_times.append(header.event_time)
    if header.properties and columns.properties is None:
        columns.properties = [{} for _ in range(count)]
    if columns.properties is not None:
        columns.properties.append({p.key: p.value for p in header.properties})
    if header.HasField("ordering_key") and columns.ordering_keys is None:
        columns.ordering_keys = [None] * count
    if columns.ordering_keys is not None:
        columns.ordering_keys.append(header.ordering_key if header.HasField("ordering_key") else None)


def _finish(metadata: pb.MessageMetadata, payload: bytes, compression: Compression) -> bytes:
    if compression:
        packed = compress(compression, payload)
        if len(packed) < len(payload):
            metadata.compression = pb.CompressionType.ValueType(compression)
            metadata.uncompressed_size = len(payload)
            payload = packed
    return build_entry(metadata.SerializeToString(), payload)


def _key_header(key: str | bytes) -> bytes:
    """Header bytes of a text key; a key that needs a flag behind it has no such prefix."""
    text, encoded = _key_text(key)
    raw = text.encode()
    header = b"\x12" + encode_varint(len(raw)) + raw + b"\x18"
    if encoded:
        # The flag has a higher number than the payload size, but fields may come in any order.
        header = header[:-1] + b"\x30\x01\x18"
    if len(_key_headers) >= _KEYS_CACHED_MAX:
        _key_headers.clear()
    _key_headers[key] = header
    return header


def _unusual_header(
    value: bytes,
    key: bytes | str | None,
    sequence_id: int,
    properties: Mapping[str, str] | None,
    event_time_ms: int,
    ordering_key: bytes | None,
    null_value: bool,
) -> bytes:
    header = pb.SingleMessageMetadata(payload_size=len(value), sequence_id=sequence_id)
    _set_keys(header, key, ordering_key)
    for name, text in (properties or {}).items():
        header.properties.add(key=name, value=text)
    if event_time_ms:
        header.event_time = event_time_ms
    if null_value:
        header.null_value = True
    return header.SerializeToString()


def _set_keys(
    header: pb.MessageMetadata | pb.SingleMessageMetadata,
    key: str | bytes | None,
    ordering_key: bytes | None,
) -> None:
    if key is not None:
        header.partition_key, encoded = _key_text(key)
        if encoded:
            header.partition_key_b64_encoded = True
    if ordering_key is not None:
        header.ordering_key = ordering_key


def _key_text(key: str | bytes) -> tuple[str, bool]:
    """A key as the wire's text, and whether that text is Base64."""
    if isinstance(key, str):
        return key, False
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return b64encode(key).decode(), True


def _key_bytes(header: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    if header.null_partition_key or not header.HasField("partition_key"):
        return None
    text = header.partition_key.encode()
    if not header.partition_key_b64_encoded:
        return text
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return text
