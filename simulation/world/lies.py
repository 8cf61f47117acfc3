"""Entries of lying producers: their metadata or payload claims what their bytes do not hold.

`VISIBLE` lies contradict something that a broker sees, so it must refuse them. `HIDDEN` lies are inside the
payload: a broker stores them, and every reader must pass over exactly that entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.model.hashing import bucket_hash, key_hash
from anabranch.protocol.commands import Send, encode
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.entry.compression import Compression, compress
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb

MILLION = 10**6
BILLION = 10**9
NEGATIVE = 2**64 - 1
"""The number -1 in an unsigned field of 64 bits."""

KEY = "a key"
PUBLISH_TIME_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Lie:
    """One kind of lying SEND."""

    name: str
    tell: Callable[[str, int], Send]
    """Makes the SEND of a producer's name and a sequence id from 2 on; the producer id is 0."""

    def __str__(self) -> str:
        return self.name

    def entry(self, sequence_id: int = 2, producer: str = "liar") -> bytes:
        return self.tell(producer, sequence_id).entry


def payload_of(count: int) -> bytes:
    """An honest payload of a batch of `count` messages."""
    batch = MessageBatch()
    batch.add_many([b"value %d" % n for n in range(count)], [KEY] * count, range(count))
    metadata_size = int.from_bytes((entry := batch.build("p", 1))[6:10], "big")
    return entry[10 + metadata_size :]


def frame_of(send: Send, producer_id: int) -> bytes:
    """The whole frame of a SEND, with the numbers that the SEND claims."""
    command = pb.CommandSend(
        producer_id=producer_id,
        sequence_id=send.sequence_id,
        num_messages=send.num_messages,
        highest_sequence_id=send.highest_sequence_id or None,
        is_chunk=send.is_chunk or None,
    )
    frame = encode(command)
    total = int.from_bytes(frame[:4], "big") + len(send.entry)
    return total.to_bytes(4, "big") + frame[4:] + send.entry


def _lie(
    name: str,
    payload: bytes = b"",
    *,
    says: int | None = None,
    highest: int = 0,
    **claims: Any,
) -> Lie:
    """A lie whose metadata has these claims; `says` is the count in the SEND, else that of the metadata."""

    def tell(producer: str, sequence_id: int) -> Send:
        fields = {"publish_time": PUBLISH_TIME_MS, "sequence_id": sequence_id, **claims}
        metadata = pb.MessageMetadata(producer_name=producer, **fields)
        count = metadata.num_messages_in_batch if says is None else says
        entry = build_entry(metadata.SerializeToString(), payload)
        return Send(0, sequence_id, count, highest, "chunk_id" in claims, False, 0, 0, entry)

    return Lie(name, tell)


def _packed(kind: Compression, size: int) -> dict[str, Any]:
    return {"compression": pb.CompressionType.ValueType(kind), "uncompressed_size": size}


_THREE = payload_of(3)
_LZ4 = compress(Compression.LZ4, _THREE)
_OTHER_HASH = bucket_hash(key_hash(KEY)) ^ 0x8000

COUNTS = (
    _lie("a billion messages in no bytes", num_messages_in_batch=BILLION),
    _lie("a billion messages, and one in the SEND", says=1, num_messages_in_batch=BILLION),
    _lie("a million messages in few bytes", _THREE, num_messages_in_batch=MILLION),
    _lie("more messages than the bytes hold", _THREE, num_messages_in_batch=len(_THREE) // 6 + 1),
    _lie("a batch of no messages", num_messages_in_batch=0),
    _lie("a negative count", num_messages_in_batch=-1),
    _lie("the lowest count", num_messages_in_batch=-(2**31)),
    _lie("a SEND of more messages than its batch", _THREE, says=1000, num_messages_in_batch=3),
    _lie("a SEND of fewer messages than its batch", _THREE, says=1, num_messages_in_batch=3),
    _lie("a SEND of many messages with no batch", b"value", says=MILLION),
    _lie("a SEND of no messages", b"value", says=0),
    _lie("a SEND of a negative count", b"value", says=-1),
)
SIZES = (
    _lie("four gigabytes in few bytes", _LZ4, num_messages_in_batch=3, **_packed(Compression.LZ4, 2**32 - 1)),
    _lie("a megabyte of LZ4 in few bytes", _LZ4, num_messages_in_batch=3, **_packed(Compression.LZ4, 2**20)),
    _lie("a million messages by compression", b"x" * 99, num_messages_in_batch=MILLION, **_packed(
        Compression.ZLIB, 1000
    )),
    _lie("no bytes uncompressed", _LZ4, num_messages_in_batch=3, **_packed(Compression.LZ4, 0)),
)  # fmt: skip
MARKER = _lie("a marker in disguise", b"value", marker_type=20)
NUMBERS = (
    _lie("a negative publish time", b"value", publish_time=NEGATIVE),
    _lie("a negative time of delivery", b"value", deliver_at_time=-1),
    _lie("a highest sequence id below its own", b"value", highest=1),
    MARKER,
    _lie("a negative number of chunks", b"part", num_chunks_from_msg=-1, chunk_id=0),
    _lie("a billion chunks", b"part", num_chunks_from_msg=BILLION, chunk_id=0),
    _lie("a chunk behind the last", b"part", num_chunks_from_msg=2, chunk_id=2),
    _lie("a negative chunk", b"part", num_chunks_from_msg=2, chunk_id=-1),
    _lie(
        "chunks of negative size",
        b"part",
        num_chunks_from_msg=2,
        chunk_id=0,
        total_chunk_msg_size=-1,
    ),
)
HASHES = (
    _lie("a stamp that ends before it begins", b"value", entry_hash_min=9, entry_hash_max=8),
    _lie("a stamp outside the ring", b"value", entry_hash_min=70_000, entry_hash_max=70_000),
    _lie("a stamp that grows beyond the ring", b"value", entry_hash_min=0, entry_hash_max=2**32 - 1),
    _lie(
        "the stamp of another key",
        b"value",
        partition_key=KEY,
        entry_hash_min=_OTHER_HASH,
        entry_hash_max=_OTHER_HASH,
    ),
    _lie("a slot outside the ring", b"value", slot=70_000),
)
"""Only a segment uses hashes; a classic topic stores these entries, and they can be read."""

VISIBLE = (*COUNTS, *SIZES, *NUMBERS, *HASHES)

HIDDEN = (
    _lie("fewer messages than claimed", _THREE, num_messages_in_batch=4),
    _lie("more messages than claimed", _THREE, num_messages_in_batch=2),
    _lie("bytes that are not messages", b"\xff" * 60, num_messages_in_batch=3),
    _lie("a message larger than its batch", _THREE[:-4], num_messages_in_batch=3),
    _lie("a message of negative size", b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01", num_messages_in_batch=1),
    _lie("bytes that are not LZ4", b"\xff" * 60, num_messages_in_batch=3, **_packed(Compression.LZ4, 60)),
    _lie("an inflated size", _LZ4, num_messages_in_batch=3, **_packed(Compression.LZ4, len(_THREE) + 1)),
    _lie("a deflated size", _LZ4, num_messages_in_batch=3, **_packed(Compression.LZ4, len(_THREE) - 1)),
)

UNREADABLE = (*COUNTS[:7], *SIZES, *HIDDEN, MARKER)
"""Lies that no reader can decode, whichever broker stored them."""
