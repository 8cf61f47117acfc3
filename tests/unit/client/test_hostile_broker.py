"""A broker that lies costs the client at most a connection or a call: a typed error, in time, in memory."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from anabranch import Checkpoint
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.decide.connecting.layout_checks import SEGMENTS_MAX
from anabranch.errors import AnabranchError, RemoteProtocolError
from anabranch.protocol.commands import NO_ID, Send
from anabranch.protocol.hot_frames import encode_receipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.faults import SimClock
from simulation.world.lies import UNREADABLE
from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork
from tests.harness.hostile import (
    HOST,
    PORT,
    Answers,
    HostileBroker,
    assigned_segment,
    assignment,
    connected,
    delivery,
    last_message,
    layout_update,
    looked_up,
    registered,
    segment_info,
)
from tests.harness.segments import NAME, WHOLE

TIMEOUT_S = 2.0
"""The timeout of every call."""

MARGIN_S = 1.0
PEAK_BYTES_MAX = 64 * 2**20
HUGE = 2**64 - 1


def on_lookup(*segments: pb.SegmentInfoProto, **fields: Any) -> Answers:
    update = layout_update(0, *segments, **fields)

    def answer(command: pb.CommandScalableTopicLookup) -> list[Any]:
        update.session_id = command.session_id
        return [update]

    return {pb.CommandScalableTopicLookup: answer}


def on_register(*segments: pb.ScalableAssignedSegment) -> Answers:
    given = assignment(*segments)
    response = pb.CommandScalableTopicSubscribeResponse
    return {pb.CommandScalableTopicSubscribe: lambda c: [response(request_id=c.request_id, assignment=given)]}


def on_flow(make: Callable[[int], list[bytes]]) -> Answers:
    return {pb.CommandFlow: lambda c: make(c.consumer_id)}


def on_connect(**fields: Any) -> Answers:
    return {pb.CommandConnect: lambda c: [connected(**fields)]}


def on_everything(*answer: Any) -> Answers:
    """The same answer to every request; the handshake stays honest."""
    kinds: list[type] = [
        pb.CommandScalableTopicLookup,
        pb.CommandLookupTopic,
        pb.CommandProducer,
        pb.CommandSubscribe,
        pb.CommandScalableTopicSubscribe,
        pb.CommandFlow,
        pb.CommandAck,
        pb.CommandGetLastMessageId,
        Send,
    ]
    return dict.fromkeys(kinds, lambda c: list(answer))


def sealed(id_: int, **links: Any) -> pb.SegmentInfoProto:
    return segment_info(id_, state=pb.SEALED, sealed_at_epoch=1, sealed_at_ms=1, **links)


LIES: dict[str, Answers] = {
    "honest": {},
    # The handshake and frames.
    "a negative message size": on_connect(max_message_size=-1),
    "no message size": on_connect(max_message_size=0),
    "the largest message size": on_connect(max_message_size=2**31 - 1),
    "a small message size": on_connect(max_message_size=1),
    "another protocol": {pb.CommandConnect: lambda c: [b"HTTP/1.1 400 Bad Request\r\n\r\n"]},
    "a frame of four gigabytes": {pb.CommandConnect: lambda c: [connected(), b"\xff" * 12]},
    "a command larger than its frame": on_everything(struct.pack(">II", 8, 4000) + b"x" * 4),
    "bytes that are not a command": on_everything(struct.pack(">II", 8, 4) + b"\xff" * 4),
    "CONNECTED twice": {pb.CommandConnect: lambda c: [connected(), connected()]},
    "challenges for ever": {pb.CommandAuthResponse: lambda c: [pb.CommandAuthChallenge()]}
    | {pb.CommandConnect: lambda c: [pb.CommandAuthChallenge()]},
    # Commands that make no sense.
    "answers to requests that no caller made": on_everything(
        pb.CommandSuccess(request_id=HUGE), pb.CommandError(request_id=77, error=pb.UnknownError, message="?")
    ),
    "commands for a broker": on_everything(
        pb.CommandPing(), pb.CommandFlow(consumer_id=1, messagePermits=2**32 - 1)
    ),
    "answers of another kind": {
        kind: lambda c: [pb.CommandProducerSuccess(request_id=c.request_id, producer_name="p")]
        for kind in (pb.CommandSubscribe, pb.CommandScalableTopicSubscribe, pb.CommandLookupTopic)
    },
    "errors without a known code": {
        pb.CommandSubscribe: lambda c: [
            b"\0\0\0\x0d\0\0\0\x09\x08\x0e\x72\x05\x08" + bytes([c.request_id & 0x7F]) + b"\x10\x7f\x1a"
        ]
    },
    # Layouts.
    "no segments": {
        pb.CommandScalableTopicLookup: lambda c: [
            pb.CommandScalableTopicUpdate(session_id=c.session_id, dag=pb.ScalableTopicDAG(epoch=0))
        ]
    },
    "no layout": {
        pb.CommandScalableTopicLookup: lambda c: [pb.CommandScalableTopicUpdate(session_id=c.session_id)]
    },
    "ranges that overlap": on_lookup(segment_info(0, 0, 40_000), segment_info(1, 30_000, 65_535)),
    "ranges with a gap": on_lookup(segment_info(0, 0, 10), segment_info(1, 12, 65_535)),
    "a range beyond the ring": on_lookup(segment_info(0, 0, 2**32 - 1)),
    "a range that ends before it begins": on_lookup(segment_info(0, 9, 8)),
    "a segment twice": on_lookup(segment_info(0, 0, 30_000), segment_info(0, 30_001, 65_535)),
    "a circle of segments": on_lookup(
        sealed(1, parent_ids=[2], child_ids=[2]), sealed(2, parent_ids=[1], child_ids=[1]), segment_info(3)
    ),
    "a segment that is its own parent": on_lookup(segment_info(0, parent_ids=[0], child_ids=[0])),
    "parents that are not listed": on_lookup(segment_info(7, parent_ids=[1, 2, HUGE], child_ids=[9])),
    "buckets beyond the ring": on_lookup(segment_info(entry_bucket_splits=[2**32 - 1])),
    "too many buckets": on_lookup(segment_info(entry_bucket_splits=range(2, 5000))),
    "too many segments": on_lookup(*(sealed(n) for n in range(SEGMENTS_MAX)), segment_info(SEGMENTS_MAX)),
    "huge ids": on_lookup(segment_info(HUGE), epoch=HUGE),
    "a topic without a name": {
        pb.CommandScalableTopicLookup: lambda c: [
            pb.CommandScalableTopicUpdate(
                session_id=c.session_id, dag=layout_update(1).dag, resolved_topic_name="//"
            )
        ]
    },
    "an owner that is not an address": on_lookup(
        segment_brokers=[pb.SegmentBrokerAddress(segment_id=0, broker_url="pulsar://:-1")],
        controller_broker_url="file:///etc/passwd",
    ),
    "layouts that change at once": {
        pb.CommandScalableTopicLookup: lambda c: [
            layout_update(c.session_id),
            layout_update(c.session_id, segment_info(0, 5, 5), epoch=1),
        ]
    },
    # Look-ups.
    "redirects for ever": {
        pb.CommandLookupTopic: lambda c: [looked_up(c, response=pb.CommandLookupTopicResponse.Redirect)]
    },
    "a redirect to nowhere": {pb.CommandLookupTopic: lambda c: [looked_up(c, brokerServiceUrl="pulsar://")]},
    "a look-up without an answer": {
        pb.CommandLookupTopic: lambda c: [looked_up(c, response=None, brokerServiceUrl=None)]
    },
    # Producers.
    "a highest sequence id": {
        pb.CommandProducer: lambda c: [registered(c, last_sequence_id=2**63 - 1, own_sequence_id=2**63 - 1)]
    },
    "a negative sequence id": {pb.CommandProducer: lambda c: [registered(c, last_sequence_id=-(2**63))]},
    "receipts of another producer": {Send: lambda c: [encode_receipt(HUGE, c.sequence_id, 0, 1, 0)]},
    "receipts from the future": {Send: lambda c: [encode_receipt(c.producer_id, 2**63, 0, 1, 0)]},
    "receipts without a place": {
        Send: lambda c: [encode_receipt(c.producer_id, c.sequence_id, 0, HUGE, HUGE)]
    },
    "a thousand receipts": {Send: lambda c: [encode_receipt(c.producer_id, c.sequence_id, 0, 1, 0)] * 1000},
    "refusals of a send": {
        Send: lambda c: [
            pb.CommandSendError(
                producer_id=c.producer_id, sequence_id=HUGE, error=pb.NotAllowedError, message="no"
            )
        ]
    },
    "producers closed at once": {
        pb.CommandProducer: lambda c: [
            registered(c),
            pb.CommandCloseProducer(producer_id=c.producer_id, request_id=NO_ID),
        ]
    },
    # Assignments.
    "an assigned range beyond the ring": on_register(assigned_segment(0, 0, 70_000)),
    "a segment assigned twice": on_register(assigned_segment(), assigned_segment()),
    "an unknown segment": on_register(assigned_segment(99)),
    "many segments": on_register(*(assigned_segment(n) for n in range(SEGMENTS_MAX + 1))),
    "an assignment that is taken back": {
        pb.CommandScalableTopicSubscribe: lambda c: [
            pb.CommandScalableTopicSubscribeResponse(request_id=c.request_id, assignment=assignment()),
            pb.CommandScalableTopicAssignmentUpdate(
                consumer_id=c.consumer_id, assignment=assignment(assigned_segment(0, 9, 8))
            ),
        ]
    },
    # Deliveries.
    "consumers closed at once": {
        pb.CommandSubscribe: lambda c: [
            pb.CommandSuccess(request_id=c.request_id),
            pb.CommandCloseConsumer(consumer_id=c.consumer_id, request_id=NO_ID),
        ]
    },
    "messages of another consumer": on_flow(lambda id_: [delivery(HUGE)]),
    "a long ack set": on_flow(lambda id_: [delivery(id_, ack_set=(-1,) * 400_000)]),
    "an empty ack set": on_flow(lambda id_: [delivery(id_, ack_set=(0, 0))]),
    "many redeliveries": on_flow(lambda id_: [delivery(id_, redelivered=2**32 - 1)]),
    "a place beyond all": on_flow(lambda id_: [delivery(id_, place=(HUGE, HUGE))]),
    "an index beyond all": on_flow(lambda id_: [delivery(id_, index=HUGE)]),
    "the same message for ever": on_flow(lambda id_: [delivery(id_)] * 20),
    "more than was asked for": on_flow(
        lambda id_: [delivery(id_, place=(1, n), index=n) for n in range(4000)]
    ),
    "entries that are empty": on_flow(lambda id_: [delivery(id_, b"")]),
    "entries that lie": on_flow(
        lambda id_: [
            *(delivery(id_, lie.entry(), place=(1, n), index=n) for n, lie in enumerate(UNREADABLE)),
            delivery(id_, place=(2, 0), index=100),
        ]
    ),
    "the end of the topic at once": {
        pb.CommandSubscribe: lambda c: [
            pb.CommandReachedEndOfTopic(consumer_id=c.consumer_id),
            pb.CommandSuccess(request_id=c.request_id),
        ]
    },
    # Positions.
    "no last message": {
        pb.CommandGetLastMessageId: lambda c: [
            last_message(c, last=pb.MessageIdData(ledgerId=HUGE, entryId=HUGE))
        ]
    },
    "a last message beyond all": {
        pb.CommandGetLastMessageId: lambda c: [
            last_message(c, last=pb.MessageIdData(ledgerId=2**63 - 1, entryId=0, batch_index=-(2**31)))
        ]
    },
    "impossible indexes": {
        pb.CommandGetLastMessageId: lambda c: [last_message(c, first_index=HUGE, next_index=5)]
    },
    "countless messages": {pb.CommandGetLastMessageId: lambda c: [last_message(c, next_index=HUGE)]},
}


def make_client(loop: SimLoop) -> BulkClient:
    return BulkClient(
        f"pulsar://{HOST}:{PORT}",
        operation_timeout=TIMEOUT_S,
        connect_timeout=TIMEOUT_S,
        clock=SimClock(loop),
        rng=loop.random("client"),
    )


async def attempt(call: Callable[[], Awaitable[Any]], limit_s: float = TIMEOUT_S) -> Any:
    """Return the result of a call or its AnabranchError. Any other error or a late end fails the test."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await call()
    except AnabranchError as error:
        return error
    finally:
        assert loop.time() - began <= limit_s + MARGIN_S


async def publish(client: BulkClient) -> None:
    producer = await attempt(lambda: client.create_producer(NAME, send_timeout=TIMEOUT_S))
    if not isinstance(producer, AnabranchError):
        await attempt(lambda: producer.send(b"value", key="k"))
        await attempt(lambda: producer.close(timeout=TIMEOUT_S))


async def consume(client: BulkClient) -> None:
    opens: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.subscribe_stream(NAME, "s", initial_position="earliest", ack_receipts=True),
        lambda: client.subscribe_queue(NAME, "q", initial_position="earliest", ack_receipts=True),
        lambda: client.create_checkpoint_consumer(NAME, start=Checkpoint.earliest()),
        lambda: client.create_checkpoint_consumer(NAME, group="g"),
    ]
    for subscribe in opens:
        consumer = await attempt(subscribe)
        if isinstance(consumer, AnabranchError):
            continue
        message = await attempt(partial(consumer.receive, timeout=TIMEOUT_S))
        if not isinstance(message, AnabranchError):
            assert message.value == b"value"
            if hasattr(consumer, "acknowledge"):
                await attempt(partial(consumer.acknowledge, message))
            elif hasattr(consumer, "acknowledge_cumulative"):
                await attempt(partial(consumer.acknowledge_cumulative, message))
            else:
                Checkpoint.from_bytes(consumer.checkpoint().to_bytes())
        await attempt(consumer.close)


async def look(client: BulkClient) -> None:
    await attempt(lambda: client.layout(NAME))
    await attempt(lambda: client.tails().tail(WHOLE))
    reader = client.read_segment(WHOLE, 0, 10)
    await attempt(lambda: reader.read(timeout=TIMEOUT_S))


async def face(loop: SimLoop, lie: str) -> tuple[BulkClient, HostileBroker]:
    """A client, and the broker that tells the lie."""
    SimNetwork(loop)
    broker = HostileBroker(LIES[lie])
    await broker.start()
    return make_client(loop), broker


@pytest.mark.parametrize("use", [publish, consume, look])
@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_costs_at_most_a_call(
    loop: SimLoop, lie: str, use: Callable[[BulkClient], Awaitable[None]]
) -> None:
    client, broker = await face(loop, lie)
    tracemalloc.start()
    try:
        await use(client)
        await attempt(client.close, 4 * TIMEOUT_S)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES_MAX
    assert broker.connections < 200


async def test_the_broker_without_a_lie_is_an_honest_one(loop: SimLoop) -> None:
    client, broker = await face(loop, "honest")
    async with client:
        producer = await client.create_producer(NAME)
        assert (await producer.send(b"value", key="k")).segment == 0
        stream = await client.subscribe_stream(NAME, "s", ack_receipts=True)
        message = await stream.receive(timeout=TIMEOUT_S)
        await stream.acknowledge_cumulative(message)
        assert (await client.tails().tail(WHOLE)).next_index == 1
    assert broker.connections == 1


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("ranges that overlap", "begins at slot 30000, not at 40001"),
        ("a circle of segments", "is older than its parents"),
        ("a segment twice", "lists a segment twice"),
        ("too many segments", "the limit is"),
        ("a range beyond the ring", "a hash range needs"),
    ],
)
async def test_an_impossible_layout_is_named_at_once(loop: SimLoop, lie: str, words: str) -> None:
    client, _ = await face(loop, lie)
    async with client:
        began = loop.time()
        with pytest.raises(RemoteProtocolError, match=words):
            await client.create_producer(NAME)
        assert loop.time() - began < 1


@pytest.mark.parametrize("lie", ["an assigned range beyond the ring", "a segment assigned twice"])
async def test_an_impossible_assignment_is_named(loop: SimLoop, lie: str) -> None:
    client, _ = await face(loop, lie)
    async with client:
        with pytest.raises(RemoteProtocolError, match="assign"):
            await client.subscribe_stream(NAME, "s")


async def test_a_broker_that_sends_more_than_it_was_asked_for_loses_its_connection(loop: SimLoop) -> None:
    client, broker = await face(loop, "more than was asked for")
    async with client:
        consumer = await client.subscribe_queue(NAME, "q", receiver_queue_size=10)
        await asyncio.sleep(0.5)
        assert broker.connections > 1
        assert (await consumer.receive(timeout=TIMEOUT_S)).value == b"value"


async def test_a_broker_that_breaks_the_protocol_again_and_again_is_dialed_less_often(loop: SimLoop) -> None:
    client, broker = await face(loop, "layouts that change at once")
    async with client:
        with pytest.raises(AnabranchError):
            await (await client.create_producer(NAME, send_timeout=60)).send(b"value")
    assert broker.connections < 60 / 0.5
