"""Every public call of the asyncio client ends within its timeout, also if the broker is away.

Reflection finds the methods: a new public method without a line in a table makes a test fail.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import anabranch
from anabranch import (
    AsyncCheckpointConsumer,
    AsyncProducer,
    AsyncQueueConsumer,
    AsyncStreamConsumer,
    AsyncTopicsConsumer,
    Checkpoint,
    Message,
)
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.segment_reader import SegmentReader
from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.errors import (
    AlreadyClosedError,
    ConnectError,
    InvalidConfigurationError,
    NotConnectedError,
    OperationTimeoutError,
    ReceiveTimeoutError,
    TopicNotFoundError,
)
from anabranch.protocol.commands import Send
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.process import SimProcess
from tests.harness.cluster import TOPIC, Brokers
from tests.harness.public import waiting_methods

OPERATION_S = 3.0
"""The operation timeout and the send timeout of these tests."""

REQUESTS = [
    Send,
    pb.CommandScalableTopicLookup,
    pb.CommandScalableTopicSubscribe,
    pb.CommandScalableTopicUnsubscribe,
    pb.CommandLookupTopic,
    pb.CommandProducer,
    pb.CommandCloseProducer,
    pb.CommandSubscribe,
    pb.CommandCloseConsumer,
    pb.CommandGetLastMessageId,
    pb.CommandWatchScalableTopics,
    pb.CommandGetTopicsOfNamespace,
    pb.CommandGetSchema,
]
"""Commands that wait for an answer."""

CLOSE_S, MARGIN_S = 2.0, 0.3


@dataclass
class Opened:
    """A client and one object of each kind that it creates; each consumer has a buffered message."""

    client: BulkClient
    producer: AsyncProducer[bytes]
    stream: AsyncStreamConsumer[bytes]
    queue: AsyncQueueConsumer[bytes]
    checkpoints: AsyncCheckpointConsumer[bytes]
    reader: SegmentReader
    tails: SegmentTails
    segment: str
    topics: AsyncTopicsConsumer[bytes]
    streamed: Message[bytes]
    queued: Message[bytes]
    of_topics: Message[bytes]


async def open_all(client: BulkClient) -> Opened:
    producer = await client.create_producer(TOPIC, send_timeout=OPERATION_S)
    await producer.send_many([b"one", b"two"], keys=["a", "b"])
    options: Any = {"initial_position": "earliest", "ack_receipts": True}
    stream = await client.subscribe_stream(TOPIC, "s", **options)
    queue = await client.subscribe_queue(TOPIC, "q", **options)
    found = await client.layout(TOPIC)
    segment = found.segment_topic(found.layout.active[0])
    tails = client.tails()
    await tails.tail(segment)
    topics = await client.subscribe_topics([TOPIC], "t", retry_topic=True, **options)
    return Opened(
        client,
        producer,
        stream,
        queue,
        await client.create_checkpoint_consumer(TOPIC, group="g"),
        client.read_segment(segment, 0, 10),
        tails,
        segment,
        topics,
        await stream.receive(timeout=5),
        await queue.receive(timeout=5),
        await topics.receive(timeout=5),
    )


async def processed(opened: Opened) -> None:
    async with opened.queue.processing(opened.queued):
        pass


async def handle(message: Message[bytes]) -> None:
    await asyncio.sleep(100)


async def cumulative_of_topics(opened: Opened) -> None:
    with pytest.raises(InvalidConfigurationError):
        await opened.topics.acknowledge_cumulative(opened.of_topics)


async def read_twice(opened: Opened) -> None:
    # The first call may find entries that arrived before.
    await opened.reader.read()
    await opened.reader.read()


async def drop_all(opened: Opened) -> None:
    """Send messages without looking at their futures, then close."""
    for _ in range(3):
        await opened.producer.enqueue(b"x", key="a")
    await opened.producer.close(timeout=CLOSE_S)


async def release(client: BulkClient) -> None:
    """Release entries of a log that does not exist; a broker that is gone is reported at once."""
    with suppress(ConnectError, NotConnectedError, TopicNotFoundError):
        await client.release("persistent://public/default/log", "kept", 1, 1)


CLIENT_CALLS: dict[str, list[Callable[[BulkClient], Awaitable[Any]]]] = {
    "create_producer": [
        lambda client: client.create_producer("other"),
        lambda client: client.create_producer(TOPIC, name="me"),
        lambda client: client.create_producer("other", access_mode="exclusive"),
    ],
    "subscribe_stream": [lambda client: client.subscribe_stream(TOPIC, "other")],
    "subscribe_queue": [lambda client: client.subscribe_queue(TOPIC, "other", retry_topic=True)],
    "subscribe_topics": [lambda client: client.subscribe_topics(re.compile(".*"), "other", kind="stream")],
    "create_checkpoint_consumer": [
        lambda client: client.create_checkpoint_consumer(TOPIC),
        lambda client: client.create_checkpoint_consumer(TOPIC, group="other"),
        lambda client: client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest()),
    ],
    "layout": [lambda client: client.layout(TOPIC)],
    "topics": [partial(BulkClient.topics, namespace="public/default", classic=of) for of in (False, True)],
    "topic_schema": [lambda client: client.topic_schema(TOPIC)],
    "numbers_messages": [lambda client: client.numbers_messages()],
    "has_control_plane": [lambda client: client.has_control_plane()],
    "mirror_cursors": [lambda client: client.mirror_cursors(TOPIC, "m", "spark")],
    "create_bulk_producer": [lambda client: client.create_bulk_producer("other")],
    "append_to_log": [lambda client: client.append_to_log("persistent://public/default/log", "me", "kept")],
    "release": [release],
    "close": [lambda client: client.close(), lambda client: client.close(timeout=CLOSE_S)],
    "shutdown": [lambda client: client.shutdown()],
}

OPENED_CALLS: dict[type, dict[str, list[Callable[[Opened], Awaitable[Any]]]]] = {
    AsyncProducer: {
        "send": [lambda opened: opened.producer.send(b"x", key="a")],
        "enqueue": [lambda opened: opened.producer.enqueue(b"x", key="a")],
        "send_many": [lambda opened: opened.producer.send_many([b"x", b"y"], keys=["a", "b"])],
        "enqueue_many": [lambda opened: opened.producer.enqueue_many([b"x", b"y"])],
        "flush": [lambda opened: flush_after_sending(opened)],
        "close": [lambda opened: opened.producer.close(), drop_all],
    },
    AsyncStreamConsumer: {
        "receive": [lambda opened: opened.stream.receive(timeout=1)],
        "receive_many": [lambda opened: opened.stream.receive_many(10, timeout=1)],
        "acknowledge_cumulative": [lambda opened: opened.stream.acknowledge_cumulative(opened.streamed)],
        "flush_acks": [lambda opened: opened.stream.flush_acks()],
        "release_parked": [lambda opened: opened.stream.release_parked()],
        "seek": [lambda opened: opened.stream.seek("earliest")],
        "unsubscribe": [lambda opened: opened.stream.unsubscribe()],
        "run": [lambda opened: opened.stream.run(handle, stop=1, grace=0)],
        "close": [lambda opened: opened.stream.close(), lambda opened: opened.stream.close(timeout=CLOSE_S)],
    },
    AsyncQueueConsumer: {
        "receive": [lambda opened: opened.queue.receive(timeout=1)],
        "receive_many": [lambda opened: opened.queue.receive_many(10, timeout=1)],
        "acknowledge": [lambda opened: opened.queue.acknowledge(opened.queued)],
        "negative_acknowledge": [lambda opened: opened.queue.negative_acknowledge(opened.queued)],
        "reconsume_later": [lambda opened: opened.topics.reconsume_later(opened.of_topics)],
        "processing": [processed],
        "flush_acks": [lambda opened: opened.queue.flush_acks()],
        "release_parked": [lambda opened: opened.queue.release_parked()],
        "seek": [lambda opened: opened.queue.seek("earliest")],
        "unsubscribe": [lambda opened: opened.queue.unsubscribe()],
        "run": [lambda opened: opened.queue.run(handle, stop=1, grace=0)],
        "close": [lambda opened: opened.queue.close(), lambda opened: opened.queue.close(timeout=CLOSE_S)],
    },
    AsyncTopicsConsumer: {
        "receive": [lambda opened: opened.topics.receive(timeout=1)],
        "receive_many": [lambda opened: opened.topics.receive_many(10, timeout=1)],
        "acknowledge": [lambda opened: opened.topics.acknowledge(opened.of_topics)],
        "reconsume_later": [lambda opened: opened.topics.reconsume_later(opened.of_topics)],
        "negative_acknowledge": [lambda opened: opened.topics.negative_acknowledge(opened.of_topics)],
        "acknowledge_cumulative": [cumulative_of_topics],
        "flush_acks": [lambda opened: opened.topics.flush_acks()],
        "seek": [lambda opened: opened.topics.seek("earliest")],
        "unsubscribe": [lambda opened: opened.topics.unsubscribe()],
        "close": [lambda opened: opened.topics.close(timeout=CLOSE_S)],
    },
    AsyncCheckpointConsumer: {
        "receive": [lambda opened: opened.checkpoints.receive(timeout=1)],
        "receive_many": [lambda opened: opened.checkpoints.receive_many(10, timeout=1)],
        "commit": [lambda opened: opened.checkpoints.commit()],
        "close": [lambda opened: opened.checkpoints.close()],
    },
    SegmentReader: {"read": [read_twice], "close": [lambda opened: opened.reader.close()]},
    SegmentTails: {
        "tail": [lambda opened: opened.tails.tail(opened.segment)],
        "tails": [lambda opened: opened.tails.tails([opened.segment])],
        "at_time": [lambda opened: opened.tails.at_time(opened.segment, 1)],
        "at_index": [lambda opened: opened.tails.at_index(opened.segment, 1)],
        "after_id": [lambda opened: opened.tails.after_id(opened.segment, opened.streamed.id)],
        "stored_at": [lambda opened: opened.tails.stored_at(opened.segment, 1)],
        "stored_after": [lambda opened: opened.tails.stored_after(opened.segment, 1)],
        "unacknowledged": [lambda opened: opened.tails.unacknowledged(opened.segment, "s")],
        "close": [lambda opened: opened.tails.close()],
    },
}


async def flush_after_sending(opened: Opened) -> None:
    await opened.producer.enqueue(b"x", key="a")
    await opened.producer.flush()


def numbered(calls: dict[str, list[Any]], owner: str) -> list[Any]:
    return [
        pytest.param(call, id=f"{owner}.{name}-{number}")
        for name, listed in calls.items()
        for number, call in enumerate(listed)
    ]


ON_CLIENT = numbered(CLIENT_CALLS, "BulkClient")
ON_OPENED = [case for kind, calls in OPENED_CALLS.items() for case in numbered(calls, kind.__name__)]


def go(brokers: Brokers, away: str) -> None:
    """Take the broker away from its clients, in one of three ways."""
    if away == "gone":
        brokers.kill()
    elif away == "stopped":
        brokers.processes[0].pause()
    else:
        brokers.silent = True


async def come_back(brokers: Brokers, away: str) -> None:
    brokers.silent = False
    if away == "gone":
        await brokers.start()
    brokers.processes[0].resume()


async def elapsed_s(brokers: Brokers, call: Awaitable[Any]) -> float:
    """Await the call and return how long it took; it may raise an error of the timeout family."""
    began = brokers.loop.time()
    with suppress(OperationTimeoutError, ReceiveTimeoutError):
        await call
    return brokers.loop.time() - began


async def in_process(brokers: Brokers, work: Callable[[BulkClient], Awaitable[None]]) -> None:
    """Run the work with a client in a process of its own, which has no task and no timer left afterwards."""
    process = SimProcess(brokers.loop, "application")
    client = brokers.client(operation_timeout=OPERATION_S, connect_timeout=1.0)

    async def run() -> None:
        await work(client)
        assert await elapsed_s(brokers, client.close(timeout=CLOSE_S)) <= CLOSE_S + MARGIN_S

    await process.spawn(run())
    # Bytes under way still arrive.
    await asyncio.sleep(0.01)
    assert process.unfinished() == []


def test_every_public_class_and_method_is_in_the_tables() -> None:
    handed_out = {
        kind
        for name in anabranch.__all__
        if isinstance(kind := getattr(anabranch, name), type)
        and waiting_methods(kind)
        # A client limits App and its credentials; process/test_admin_waits.py has the admin client.
        and not name.startswith(("Authentication", "AsyncAdmin", "App"))
    }
    assert handed_out - {anabranch.AsyncClient} <= OPENED_CALLS.keys()
    assert waiting_methods(BulkClient) == CLIENT_CALLS.keys()
    for kind, calls in OPENED_CALLS.items():
        assert waiting_methods(kind) == calls.keys(), kind.__name__


@pytest.mark.parametrize("away", ["gone", "stopped", "silent"])
@pytest.mark.parametrize("call", ON_CLIENT)
async def test_a_call_of_a_new_client_returns_in_time(
    brokers: Brokers, away: str, call: Callable[[BulkClient], Awaitable[Any]]
) -> None:
    await brokers.publish(1, 1)
    go(brokers, away)

    async def work(client: BulkClient) -> None:
        assert await elapsed_s(brokers, call(client)) <= OPERATION_S + MARGIN_S

    await in_process(brokers, work)
    await come_back(brokers, away)


@pytest.mark.parametrize("away", ["gone", "stopped", "silent"])
@pytest.mark.parametrize("call", ON_CLIENT)
async def test_a_call_of_a_client_that_lost_its_broker_returns_in_time(
    brokers: Brokers, away: str, call: Callable[[BulkClient], Awaitable[Any]]
) -> None:
    async def work(client: BulkClient) -> None:
        opened = await open_all(client)
        await opened.producer.enqueue(b"x", key="a")
        go(brokers, away)
        assert await elapsed_s(brokers, call(client)) <= OPERATION_S + MARGIN_S

    await in_process(brokers, work)
    await come_back(brokers, away)


@pytest.mark.parametrize("away", ["gone", "stopped", "silent"])
@pytest.mark.parametrize("call", ON_OPENED)
async def test_a_call_of_an_object_that_lost_its_broker_returns_in_time(
    brokers: Brokers, away: str, call: Callable[[Opened], Awaitable[Any]]
) -> None:
    async def work(client: BulkClient) -> None:
        opened = await open_all(client)
        go(brokers, away)
        # The client notices that the broker is gone, or nothing yet.
        await asyncio.sleep(0.2)
        assert await elapsed_s(brokers, call(opened)) <= OPERATION_S + MARGIN_S

    await in_process(brokers, work)
    await come_back(brokers, away)


@pytest.mark.parametrize("ignored", REQUESTS, ids=lambda command: command.__name__)
@pytest.mark.parametrize("call", ON_CLIENT)
async def test_a_call_of_a_client_returns_in_time_if_one_command_gets_no_answer(
    brokers: Brokers, ignored: type, call: Callable[[BulkClient], Awaitable[Any]]
) -> None:
    await brokers.publish(1, 1)

    async def work(client: BulkClient) -> None:
        producer = await client.create_producer(TOPIC, send_timeout=OPERATION_S)
        await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        brokers.ignored = frozenset({ignored})
        await producer.enqueue(b"x", key="a")
        assert await elapsed_s(brokers, call(client)) <= OPERATION_S + MARGIN_S

    await in_process(brokers, work)
    brokers.ignored = frozenset()


@pytest.mark.parametrize("call", [*ON_CLIENT, *ON_OPENED])
async def test_a_cancelled_call_leaves_every_object_usable_or_closed(
    brokers: Brokers, call: Callable[[Any], Awaitable[Any]], request: pytest.FixtureRequest
) -> None:
    async def work(pause_s: float, client: BulkClient) -> None:
        opened = await open_all(client)
        subject = client if "BulkClient" in request.node.name else opened
        calling = asyncio.ensure_future(call(subject))
        await asyncio.sleep(pause_s)
        calling.cancel()
        await asyncio.wait([calling], timeout=MARGIN_S)
        assert calling.done()
        for use in (
            opened.producer.send(b"more", key="a"),
            opened.stream.flush_acks(),
            opened.queue.flush_acks(),
            opened.tails.tail(opened.segment),
        ):
            with suppress(AlreadyClosedError):
                await use

    for pause_s in (0.0, 0.0004, 0.0015, 0.004):
        await in_process(brokers, partial(work, pause_s))
