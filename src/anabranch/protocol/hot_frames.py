"""Writes the frames that carry the traffic: SEND, SEND_RECEIPT and MESSAGE.

The fields are written by hand, because a protobuf object per frame would cost more than all the other work on
the frame. A broker writes one receipt per stored entry and one MESSAGE per delivery, so every Python call
here is paid for each entry. That is why varints are inlined and prefixes come from tables; tests compare
receipts and deliveries with the bytes that protobuf writes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from anabranch.protocol.frames import ENTRY_METADATA_MAGIC
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import MORE, SHORT, encode_varint

_pack_sizes = Struct(">II").pack
CACHED_TIMES_MAX: Final = 1024


def encode_send(
    producer_id: int, sequence_id: int, num_messages: int, highest_sequence_id: int, entry: bytes
) -> list[bytes]:
    """Return the buffers of one SEND frame; `highest_sequence_id` 0 and `num_messages` 1 are left out."""
    fields = b"\x08" + encode_varint(producer_id) + b"\x10" + encode_varint(sequence_id)
    if num_messages != 1:
        fields += b"\x18" + encode_varint(num_messages)
    if highest_sequence_id:
        fields += b"\x30" + encode_varint(highest_sequence_id)
    size = len(fields)
    return [_pack_sizes(size + 8 + len(entry), size + 4) + b"\x08\x06\x32" + SHORT[size] + fields, entry]


def encode_chunk(producer_id: int, sequence_id: int, entry: bytes) -> list[bytes]:
    """Return the buffers of one SEND frame with a chunk of a message."""
    fields = b"\x08" + encode_varint(producer_id) + b"\x10" + encode_varint(sequence_id) + b"\x38\x01"
    size = len(fields)
    return [_pack_sizes(size + 8 + len(entry), size + 4) + b"\x08\x06\x32" + SHORT[size] + fields, entry]


def encode_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger: int, entry: int
) -> bytes:
    """Return a whole SEND_RECEIPT frame; `highest_sequence_id` 0 is left out, ids may be -1 or NO_ID."""
    # `encode_varint` inlined four times, because a broker writes one receipt per entry.
    producer = SHORT[producer_id] if 0 <= producer_id < 0x4000 else encode_varint(producer_id)
    if high := sequence_id >> 14:
        known = 0 < high < 0x4000
        sequence = MORE[sequence_id & 0x3FFF] + SHORT[high] if known else encode_varint(sequence_id)
    else:
        sequence = SHORT[sequence_id]
    where = SHORT[ledger] if 0 <= ledger < 0x4000 else encode_varint(ledger)
    if high := entry >> 14:
        number = MORE[entry & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(entry)
    else:
        number = SHORT[entry]
    place = len(where) + len(number) + 2
    size = len(producer) + len(sequence) + place + 4
    if not highest_sequence_id:
        return b"".join(
            (_RECEIPT_HEADS[size], producer, b"\x10", sequence, _PLACE_HEADS[place], where, b"\x10", number)
        )
    highest = b"\x20" + encode_varint(highest_sequence_id)
    head = _RECEIPT_HEADS[size + len(highest)]
    return b"".join((head, producer, b"\x10", sequence, _PLACE_HEADS[place], where, b"\x10", number, highest))


_RECEIPT_HEADS: Final = tuple(
    _pack_sizes(size + 8, size + 4) + b"\x08\x07\x3a" + SHORT[size] + b"\x08" for size in range(0x80)
)
"""First bytes of a receipt by the size of its fields; every receipt is shorter than 128 bytes."""

_PLACE_HEADS: Final = tuple(b"\x1a" + SHORT[size] + b"\x08" for size in range(0x20))


def encode_delivery(
    consumer_id: int,
    ledger: int,
    entry: int,
    partition: int,
    redelivery_count: int,
    ack_set: tuple[int, ...],
    consumer_epoch: int | None,
    entry_metadata: tuple[int, int] | None,
    data: bytes,
) -> list[bytes]:
    """Return the buffers of one MESSAGE frame; a `partition` of -1 is left out.

    `entry_metadata` is (broker timestamp, index of the last message) for peers that may see it.
    """
    consumer = SHORT[consumer_id] if 0 <= consumer_id < 0x4000 else encode_varint(consumer_id)
    where = SHORT[ledger] if 0 <= ledger < 0x4000 else encode_varint(ledger)
    high = entry >> 14
    number = MORE[entry & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(entry)
    if partition >= 0:
        number += b"\x18" + encode_varint(partition)
    place = len(where) + len(number) + 2
    size = len(consumer) + place + 3
    rest = b""
    if redelivery_count or ack_set or consumer_epoch is not None:
        rest = _encode_rest(redelivery_count, ack_set, consumer_epoch)
        size += len(rest)
    size_bytes = SHORT[size] if size < 0x4000 else encode_varint(size)
    size += 3 + len(size_bytes)
    stamp_head = time = stamp_tag = index = b""
    stamp_size = 0
    if entry_metadata is not None:
        timestamp_ms, last_index = entry_metadata
        time = cached_times.get(timestamp_ms) or _encode_time(timestamp_ms)
        high = last_index >> 14
        index = MORE[last_index & 0x3FFF] + SHORT[high] if 0 < high < 0x4000 else encode_varint(last_index)
        stamp_size = len(time) + len(index) + 2
        stamp_head, stamp_tag = _STAMP_HEADS[stamp_size], b"\x10"
        stamp_size += 6
    parts = (
        _pack_sizes(size + 4 + stamp_size + len(data), size),
        b"\x08\x09\x4a",
        size_bytes,
        b"\x08",
        consumer,
        _DELIVERY_PLACE_HEADS[place],
        where,
        b"\x10",
        number,
        rest,
        stamp_head,
        time,
        stamp_tag,
        index,
    )
    return [b"".join(parts), data]


_DELIVERY_PLACE_HEADS: Final = tuple(b"\x12" + SHORT[size] + b"\x08" for size in range(0x40))
_STAMP_HEADS: Final = tuple(ENTRY_METADATA_MAGIC + size.to_bytes(4, "big") + b"\x08" for size in range(0x20))
"""First bytes of broker metadata by its size."""


_FEW_WORDS: Final = 16
"""Longest ack set that is written by hand; protobuf writes a longer one faster."""

_encode_message = pb.CommandMessage.SerializePartialToString


def _encode_rest(redelivery_count: int, ack_set: tuple[int, ...], consumer_epoch: int | None) -> bytes:
    rest = b"\x18" + encode_varint(redelivery_count) if redelivery_count else b""
    if len(ack_set) > _FEW_WORDS:
        rest += _encode_message(pb.CommandMessage(ack_set=ack_set))
    elif ack_set:
        rest += b"".join([b"\x20" + encode_varint(word) for word in ack_set])
    if consumer_epoch is not None:
        rest += b"\x28" + encode_varint(consumer_epoch)
    return rest


cached_times: dict[int, bytes] = {}
"""Cache of recent encoded timestamps, because hundreds of entries share one; bounded by CACHED_TIMES_MAX."""


def _encode_time(timestamp_ms: int) -> bytes:
    if len(cached_times) >= CACHED_TIMES_MAX:
        cached_times.clear()
    cached_times[timestamp_ms] = time = encode_varint(timestamp_ms)
    return time
