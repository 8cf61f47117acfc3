"""A broker that lies: it answers as an honest one would, except where a test replaces an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from anabranch.protocol import commands
from anabranch.protocol.commands import CommandCutter, Send
from anabranch.protocol.hot_frames import encode_delivery, encode_receipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.segments import NAME, WHOLE
from tests.harness.wire import single

HOST, PORT = "liar", 6650
URL = f"pulsar://{HOST}:{PORT}"

Answer = Iterable[Message | bytes]
Answers = Mapping[type, Callable[[Any], Answer]]
"""By the kind of a command: a function that makes the commands, or bytes, to answer it with."""


def segment_info(id_: int = 0, start: int = 0, end: int = 0xFFFF, **fields: Any) -> pb.SegmentInfoProto:
    defaults: dict[str, Any] = {"state": pb.ACTIVE, "created_at_epoch": 0, "created_at_ms": 0}
    return pb.SegmentInfoProto(segment_id=id_, hash_start=start, hash_end=end, **{**defaults, **fields})


def layout_update(
    session: int, *segments: pb.SegmentInfoProto, **dag_fields: Any
) -> pb.CommandScalableTopicUpdate:
    dag = pb.ScalableTopicDAG(
        **{"epoch": 0, "controller_broker_url": URL, **dag_fields}, segments=segments or [segment_info()]
    )
    return pb.CommandScalableTopicUpdate(session_id=session, dag=dag, resolved_topic_name=NAME)


def assigned_segment(id_: int = 0, start: int = 0, end: int = 0xFFFF) -> pb.ScalableAssignedSegment:
    return pb.ScalableAssignedSegment(segment_id=id_, hash_start=start, hash_end=end, segment_topic=WHOLE)


def assignment(*segments: pb.ScalableAssignedSegment) -> pb.ScalableConsumerAssignment:
    given = segments or [assigned_segment()]
    return pb.ScalableConsumerAssignment(layout_epoch=0, generation=1, segments=given)


def delivery(
    consumer_id: int,
    entry: bytes | None = None,
    *,
    place: tuple[int, int] = (1, 0),
    index: int = 0,
    **claims: Any,
) -> bytes:
    """A MESSAGE frame; without an entry it holds one honest message.

    `claims` are `ack_set` and `redelivered`.
    """
    data = single(b"value", 0) if entry is None else entry
    redelivered, ack_set = claims.get("redelivered", 0), claims.get("ack_set", ())
    return b"".join(encode_delivery(consumer_id, *place, -1, redelivered, ack_set, None, (1, index), data))


def success(command: Any) -> Answer:
    return [pb.CommandSuccess(request_id=command.request_id)]


HONEST: Answers = {
    pb.CommandConnect: lambda c: [connected()],
    pb.CommandPing: lambda c: [pb.CommandPong()],
    pb.CommandScalableTopicLookup: lambda c: [layout_update(c.session_id)],
    pb.CommandLookupTopic: lambda c: [looked_up(c)],
    pb.CommandProducer: lambda c: [registered(c)],
    Send: lambda c: [encode_receipt(c.producer_id, c.sequence_id, 0, 1, 0)],
    pb.CommandScalableTopicSubscribe: lambda c: [
        pb.CommandScalableTopicSubscribeResponse(request_id=c.request_id, assignment=assignment())
    ],
    pb.CommandFlow: lambda c: [delivery(c.consumer_id)],
    pb.CommandAck: lambda c: [pb.CommandAckResponse(consumer_id=c.consumer_id, request_id=c.request_id)],
    pb.CommandGetLastMessageId: lambda c: [last_message(c)],
    pb.CommandSubscribe: success,
    pb.CommandCloseProducer: success,
    pb.CommandCloseConsumer: success,
    pb.CommandScalableTopicUnsubscribe: success,
}


def connected(**fields: Any) -> pb.CommandConnected:
    defaults: dict[str, Any] = {
        "server_version": "Anabranch 0.1.0",
        "protocol_version": 21,
        "max_message_size": 5 * 2**20,
        "feature_flags": pb.FeatureFlags(supports_scalable_topics=True),
    }
    return pb.CommandConnected(**{**defaults, **fields})


def looked_up(command: Any, **fields: Any) -> pb.CommandLookupTopicResponse:
    defaults: dict[str, Any] = {"response": pb.CommandLookupTopicResponse.Connect, "brokerServiceUrl": URL}
    return pb.CommandLookupTopicResponse(request_id=command.request_id, **{**defaults, **fields})


def registered(command: Any, **fields: Any) -> pb.CommandProducerSuccess:
    defaults: dict[str, Any] = {"producer_name": "me", "last_sequence_id": -1, "schema_version": b""}
    return pb.CommandProducerSuccess(request_id=command.request_id, **{**defaults, **fields})


def last_message(command: Any, **fields: Any) -> pb.CommandGetLastMessageIdResponse:
    defaults: dict[str, Any] = {"first_index": 0, "next_index": 1, "sealed": False}
    id_ = fields.pop("last", pb.MessageIdData(ledgerId=1, entryId=0))
    return pb.CommandGetLastMessageIdResponse(
        request_id=command.request_id, last_message_id=id_, **{**defaults, **fields}
    )


class HostileBroker:
    """Listens at `HOST` on the simulated network."""

    def __init__(self, lies: Answers) -> None:
        self._answers = {**HONEST, **lies}
        self.connections = 0
        self._links: list[_Link] = []

    async def start(self) -> None:
        await asyncio.get_running_loop().create_server(lambda: _Link(self), HOST, PORT)

    def answer(self, command: Any) -> bytes:
        """The bytes that answer a command; empty for one that needs none."""
        make = self._answers.get(type(command))
        return _bytes(() if make is None else make(command))

    def opened(self, link: _Link) -> None:
        self.connections += 1
        self._links.append(link)

    def push(self, *parts: Message | bytes) -> None:
        """Send commands on every connection without being asked."""
        for link in self._links:
            link.write(_bytes(parts))

    def drop(self) -> None:
        """Close every connection."""
        links, self._links = self._links, []
        for link in links:
            link.close()


def _bytes(parts: Answer) -> bytes:
    return b"".join(part if isinstance(part, bytes) else commands.encode(part) for part in parts)


class _Link(asyncio.Protocol):
    """One connection to a hostile broker."""

    def __init__(self, broker: HostileBroker) -> None:
        self._broker = broker
        self._cutter = CommandCutter()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._broker.opened(self)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        for command in self._cutter.read(data):
            self._transport.write(self._broker.answer(command))
