"""Which messages a compaction keeps: the latest of each key, unless it is a tombstone. Pure.

A compaction reads the entries of a log twice, in order: `LatestKeys.take` learns the latest messages, then
`LatestKeys.kept` returns what stays of an entry. Messages without a key do not stay, as in Pulsar. An entry
that cannot be opened, such as an encrypted batch, stays whole.

For example, entry 7 is a batch with a=1, b=1 and a message without a key, entry 8 is a=2, entry 9 a tombstone
of b. After three calls of `take`, only a is known, as (8, 0). `kept` returns None for 7 and 9 and the bytes
of 8. With c=1 in place of b=1, `kept` returns entry 7 as a batch of three: placeholder, c=1, placeholder; so
c keeps its batch index, and `kept_bits` of that entry is 0b010.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from anabranch.broker.dispatch.spilled import SideRecord, SpillNote, decode_note, encode_note
from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.ledger.storage import Entry
from anabranch.protocol.compression import Compression, compress, decompress
from anabranch.protocol.entries import checked_metadata
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb

COMPACTION = "__compaction"
"""The cursor that keeps entries until they are compacted; no subscription has this name."""

_size = Struct(">I")
_GONE = pb.SingleMessageMetadata(compacted_out=True, payload_size=0).SerializeToString()
_PLACEHOLDER = _size.pack(len(_GONE)) + _GONE


class CompactionNote(NamedTuple):
    """The note of the compaction cursor."""

    horizon: int = 0
    """Entries below this ordinal are compacted."""
    current: SideRecord | None = None
    """The side log with the kept messages; None if there are none."""
    ledgers: tuple[tuple[int, int], ...] = ()
    """As in `SpillNote`."""
    filling: SideRecord | None = None
    """The side log of a compaction under way, or of one that was interrupted."""


def encode_compaction(note: CompactionNote) -> bytes:
    """Encode the note as those of subscriptions, so that its side logs are found in the same way."""
    sides = tuple(side for side in (note.current, note.filling) if side is not None)
    reading = msgspec.msgpack.encode((note.horizon, None if note.current is None else note.current.name))
    return encode_note(SpillNote(reading, sides, note.ledgers))


def decode_compaction(data: bytes) -> CompactionNote:
    """Undo `encode_compaction`; CorruptDataError for anything else."""
    note = decode_note(data)
    if not note.reading:
        return CompactionNote()
    try:
        horizon, name = msgspec.msgpack.decode(note.reading, type=tuple[int, str | None])
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"the note of a compaction cannot be decoded: {error}") from error
    sides = {side.name: side for side in note.sides}
    current = sides.pop(name, None) if name is not None else None
    return CompactionNote(horizon, current, note.ledgers, next(iter(sides.values()), None))


class _Message(NamedTuple):
    """One message of an entry: its key, whether it is a tombstone, and its bytes in the payload."""

    key: str | None
    is_tombstone: bool
    start: int
    end: int
    is_placeholder: bool = False


class _Opened(NamedTuple):
    metadata: pb.MessageMetadata
    messages: list[_Message]
    payload: bytes
    is_batch: bool


class LatestKeys:
    """The latest message of each key; needs memory for every key."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` bounds the payload of an entry before compression."""
        self._bytes_max = bytes_max
        self._latest: dict[str, tuple[int, int] | str] = {}
        """By key the ordinal and the batch index of the latest message, or the id of a chunked one."""
        self._open: set[str] = set()
        """Chunked messages whose last chunk is not stored yet."""
        self.removed = 0
        """Messages that `kept` left out; a chunk counts as one."""

    def take(self, entry: Entry) -> None:
        """Learn the messages of the next entry."""
        opened = _open(entry.data, self._bytes_max)
        if opened is None:
            return
        uuid = _chunk_of(opened.metadata)
        if uuid is not None:
            last = opened.metadata.chunk_id >= opened.metadata.num_chunks_from_msg - 1
            (self._open.discard if last else self._open.add)(uuid)
            if last and (key := opened.messages[0].key) is not None:
                self._latest[key] = uuid
            return
        for index, message in enumerate(opened.messages):
            if message.key is None:
                continue
            if message.is_tombstone:
                self._latest.pop(message.key, None)
            else:
                self._latest[message.key] = (entry.ordinal, index)

    def kept(self, entry: Entry) -> bytes | None:
        """Return the entry with its latest messages, all at their batch indexes; None if none is left."""
        opened = _open(entry.data, self._bytes_max)
        if opened is None:
            return entry.data
        uuid = _chunk_of(opened.metadata)
        if uuid is not None:
            key = opened.messages[0].key
            stays = uuid in self._open or (key is not None and self._latest.get(key) == uuid)
            self.removed += not stays
            return entry.data if stays else None
        stay = [
            message.key is not None and self._latest.get(message.key) == (entry.ordinal, index)
            for index, message in enumerate(opened.messages)
        ]
        left = sum(stay) + sum(message.is_placeholder for message in opened.messages)
        self.removed += len(stay) - left
        if not any(stay):
            return None
        return entry.data if all(stay) else _rebuilt(opened, stay)


def kept_bits(data: bytes, bytes_max: int) -> int | None:
    """Return the messages of a batch that are not placeholders, as bits by index; None if all are whole."""
    opened = _open(data, bytes_max)
    if opened is None or not opened.is_batch:
        return None
    bits = sum(1 << index for index, one in enumerate(opened.messages) if not one.is_placeholder)
    return None if bits == (1 << len(opened.messages)) - 1 else bits


def last_kept(data: bytes, bytes_max: int) -> int:
    """Return the batch index of the last message that stayed in an entry; -1 if the entry is not a batch."""
    opened = _open(data, bytes_max)
    if opened is None or not opened.is_batch:
        return -1
    return max((index for index, one in enumerate(opened.messages) if not one.is_placeholder), default=-1)


def _chunk_of(metadata: pb.MessageMetadata) -> str | None:
    return metadata.uuid if metadata.num_chunks_from_msg > 1 else None


def _open(data: bytes, bytes_max: int) -> _Opened | None:
    """Return the messages of an entry; None for one that has to stay as it is."""
    try:
        metadata, end = checked_metadata(data)
        is_batch = metadata.HasField("num_messages_in_batch")
        if not is_batch or metadata.num_chunks_from_msg > 1:
            size = len(data) - end
            key = metadata.partition_key if metadata.HasField("partition_key") else None
            message = _Message(key, metadata.null_value or not size, end, len(data))
            return _Opened(metadata, [message], data, is_batch=False)
        if metadata.encryption_keys:
            return None
        payload = data[end:]
        if metadata.compression:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size, bytes_max)
        return _Opened(metadata, _messages(payload, metadata.num_messages_in_batch), payload, is_batch=True)
    except (AnabranchError, DecodeError, ValueError, IndexError):
        return None


def _messages(payload: bytes, count: int) -> list[_Message]:
    found: list[_Message] = []
    at = 0
    for _ in range(count):
        if len(payload) < at + 4:
            raise CorruptDataError("a batch ends within a message")
        start = at + 4 + _size.unpack_from(payload, at)[0]
        header = pb.SingleMessageMetadata.FromString(payload[at + 4 : start])
        end = start + header.payload_size
        if end > len(payload):
            raise CorruptDataError("a batch ends within a message")
        key = header.partition_key if header.HasField("partition_key") and not header.compacted_out else None
        is_tombstone = header.null_value or not header.payload_size
        found.append(_Message(key, is_tombstone, at, end, header.compacted_out))
        at = end
    return found


def _rebuilt(opened: _Opened, stay: list[bool]) -> bytes:
    """Return the batch with placeholders for the messages that do not stay."""
    parts = [
        opened.payload[message.start : message.end] if stays else _PLACEHOLDER
        for message, stays in zip(opened.messages, stay, strict=True)
    ]
    payload, metadata = b"".join(parts), opened.metadata
    metadata.ClearField("message_sizes")
    if metadata.compression:
        metadata.uncompressed_size = len(payload)
        payload = compress(Compression(metadata.compression), payload)
    return build_entry(metadata.SerializeToString(), payload)
