"""Makes frames for fuzzing: well-formed commands with random fields, lying entries, and mutations of both.

A seed gives the same frames again. The fields come from the descriptors of the protocol, so a new command is
fuzzed as soon as it exists.
"""

from __future__ import annotations

import random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from anabranch.broker.wire.handlers import HANDLERS
from anabranch.protocol import commands
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.entry.singles import build_single
from anabranch.protocol.frames import build_entry
from anabranch.protocol.hot_frames import encode_delivery, encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb

NAMESPACE: Final = "public/default"
TOPICS: Final = (
    *(f"persistent://{NAMESPACE}/fuzz-{n}" for n in range(4)),
    *(f"topic://{NAMESPACE}/scalable-{n}" for n in range(2)),
    f"segment://{NAMESPACE}/scalable-0/0000-ffff-0",
    f"persistent://{NAMESPACE}/fuzz-parts-partition-0",
    f"non-persistent://{NAMESPACE}/fuzz",
)
NAMES: Final = ("sub", "sub", "other", "other", "a/b", "", "\x00", "é" * 300, "persistent://", "x" * 2_000)
NUMBERS: Final = (
    0,
    1,
    2,
    3,
    7,
    255,
    65_535,
    65_536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**64 - 1,
)
REPEATS: Final = (0, 1, 1, 1, 2, 3)
DEPTH_MAX: Final = 4
IDS: Final = 4
"""Producers and consumers of one connection."""
NOW_MS: Final = 1_700_000_000_000
KINDS: Final = tuple(
    getattr(pb, field.message_type.name) for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type
)
SERVED: Final = tuple(sorted(HANDLERS, key=lambda kind: kind.DESCRIPTOR.name))
"""The commands that a broker serves on an open connection; it ignores others, or closes the connection."""
_SIGNED_64: Final = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64)
_SIGNED_32: Final = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32)
_UNSIGNED_32: Final = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32)


class FrameMaker:
    """An endless supply of frames from one seed."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(seed)
        self._requests = 0

    def frame(self) -> bytes:
        """A frame of any command, in a form that every protobuf parser accepts."""
        rng = self.rng
        if rng.random() < 0.3:
            return self.send()
        if rng.random() < 0.05:
            return self.delivery()
        return commands.encode(self.message(rng.choice(KINDS)()))

    def opening(self) -> list[bytes]:
        """Frames of a client that attaches `IDS` producers and consumers; most commands refer to them."""
        opened: list[Message] = []
        for number in range(IDS):
            topic = self.rng.choice(TOPICS[:4] + TOPICS[6:7])
            opened += (
                pb.CommandProducer(topic=topic, producer_id=number, request_id=self._request()),
                pb.CommandSubscribe(
                    topic=topic,
                    subscription=self.rng.choice(NAMES[:4]),
                    subType=self.rng.choice(pb.CommandSubscribe.SubType.values()),
                    consumer_id=number,
                    request_id=self._request(),
                ),
                pb.CommandFlow(consumer_id=number, messagePermits=100),
            )
        return [commands.encode(message) for message in opened]

    def command(self) -> bytes:
        """A frame that a client may send: SEND, or another command that the broker serves."""
        return (
            self.send()
            if self.rng.random() < 0.4
            else commands.encode(self.message(self.rng.choice(SERVED)()))
        )

    def delivery(self) -> bytes:
        rng = self.rng
        ack_set = tuple(self.number(63) for _ in range(rng.choice(REPEATS)))
        stamp = rng.choice((None, (NOW_MS, 0), (0, 2**62)))
        place = self.small(), self.number(64), self.number(64), self.number(31), self.number(32)
        return b"".join(encode_delivery(*place, ack_set, rng.choice((None, 0, 2**63)), stamp, self.entry()))

    def send(self) -> bytes:
        rng = self.rng
        count = rng.choice((0, 1, 1, 1, 2, 100, 2**31 - 1))
        return b"".join(encode_send(self.small(), self.number(64), count, self.number(64), self.entry()))

    def entry(self) -> bytes:
        """An entry: honest, with lying metadata, or with a payload that does not fit the metadata."""
        rng = self.rng
        choice = rng.random()
        if choice < 0.2:
            return build_single(rng.randbytes(20), "key", self.small(), "p", publish_time_ms=NOW_MS)
        if choice < 0.4:
            batch = MessageBatch()
            for number in range(rng.randrange(1, 20)):
                batch.add(rng.randbytes(8), f"k{number}", number)
            return batch.build("p", NOW_MS)
        metadata = self.message(pb.MessageMetadata())
        payload = rng.randbytes(rng.choice((0, 1, 4, 30, 300)))
        made = build_entry(metadata.SerializeToString(), payload)
        return self.mutate(made) if rng.random() < 0.2 else made

    def message(self, message: Message, depth: int = 0) -> Any:
        """Fill a message with random fields; required fields are always present."""
        rng = self.rng
        for field in message.DESCRIPTOR.fields:
            if field.is_repeated:
                self._repeat(message, field, depth)
            elif field.is_required or rng.random() < 0.5:
                if field.message_type is None:
                    setattr(message, field.name, self._value(field))
                elif depth < DEPTH_MAX or field.is_required:
                    part = getattr(message, field.name)
                    part.SetInParent()
                    self.message(part, depth + 1)
        return message

    def _repeat(self, message: Message, field: Any, depth: int) -> None:
        count = 0 if depth >= DEPTH_MAX else self.rng.choice(REPEATS)
        values = getattr(message, field.name)
        for _ in range(count):
            if field.message_type is None:
                values.append(self._value(field))
            else:
                self.message(values.add(), depth + 1)

    def _value(self, field: Any) -> Any:
        rng = self.rng
        name, kind = field.name, field.type
        if kind == field.TYPE_ENUM:
            assert field.enum_type is not None
            return rng.choice(list(field.enum_type.values_by_number))
        if kind == field.TYPE_BOOL:
            return rng.random() < 0.5
        if kind in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
            return rng.choice((0.0, 1.0, -1.0, float("inf"), float("nan")))
        if kind == field.TYPE_STRING:
            return rng.choice(TOPICS) if "topic" in name and rng.random() < 0.9 else rng.choice(NAMES)
        if kind == field.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 8, 200)))
        if name == "request_id" and rng.random() < 0.9:
            return self._request()
        if name.endswith("_id") and rng.random() < 0.8:
            return self.small()
        if kind in _SIGNED_64:
            return rng.choice((-1, 1)) * self.number(63)
        if kind in _SIGNED_32:
            return rng.choice((-1, 1)) * self.number(31)
        return self.number(32 if kind in _UNSIGNED_32 else 64)

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def small(self) -> int:
        return self.rng.randrange(IDS)

    def number(self, bits: int) -> int:
        return self.rng.choice(NUMBERS) & ((1 << bits) - 1)

    def mutate(self, data: bytes) -> bytes:
        """Return `data` with one to four faults: flipped, lost, repeated, foreign or lying bytes."""
        rng = self.rng
        made = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(made) + 1)
            choice = rng.randrange(6)
            if choice == 0 and at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            elif choice == 1:
                del made[at : at + rng.choice((1, 4, 50))]
            elif choice == 2:
                made[at:at] = made[at : at + rng.choice((1, 8, 60))]
            elif choice == 3:
                made[at:at] = rng.randbytes(rng.choice((1, 4, 20)))
            elif choice == 4:
                made[at : at + 4] = rng.choice(NUMBERS).to_bytes(8, "big")[4:]
            elif at < len(made):
                made[at] = rng.choice((0, 0x7F, 0x80, 0xFF))
        return bytes(made)
