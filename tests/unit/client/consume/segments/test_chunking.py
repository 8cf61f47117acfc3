"""Messages in chunks against a real broker on a virtual clock: order, acknowledgement, trouble."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import AsyncClient, Backoff, DeadLetter, Message
from anabranch.errors import MessageTooBigError
from anabranch.protocol.entries import checked_metadata
from anabranch.protocol.frames import build_entry
from anabranch.protocol.hot_frames import encode_chunk, encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.singles import build_single
from tests.harness.admin import Admin
from tests.harness.cluster import TOPIC, Brokers
from tests.harness.segments import WHOLE
from tests.harness.wire import WireClient

LIMIT = 2**16
CLASSIC = "persistent://public/default/classic"

pytestmark = pytest.mark.brokers(max_message_bytes=LIMIT)


def large(number: int, size: int = 3 * LIMIT) -> bytes:
    return b"%06d" % number * (size // 6)


async def subscribe(client: AsyncClient, kind: str, topic: str = TOPIC) -> Any:
    if kind == "stream":
        return await client.subscribe_stream(topic, "s", initial_position="earliest")
    order: Any = "key" if kind == "keyed" else "none"
    return await client.subscribe_queue(
        topic, "s", initial_position="earliest", order=order, redelivery=Backoff(0.5, 0.5)
    )


async def take(consumer: Any, *, acknowledge: bool = True) -> list[int]:
    found = []
    while messages := await consumer.receive_many(10, timeout=2.0):
        for message in messages:
            number = int(message.data[:6])
            assert message.data in (large(number), b"%06d" % number)
            found.append(number)
        if acknowledge and hasattr(consumer, "acknowledge_cumulative"):
            await consumer.acknowledge_cumulative(messages[-1])
        elif acknowledge:
            await consumer.acknowledge(messages)
    return found


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("topic", [TOPIC, CLASSIC])
@pytest.mark.parametrize("kind", ["stream", "queue", "keyed"])
async def test_large_and_small_messages_come_in_order_and_once(
    brokers: Brokers, kind: str, topic: str, compression: Any
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(topic, chunking=True, compression=compression)
        futures = [
            await producer.enqueue(large(n) if n % 3 else b"%06d" % n, key="k", properties={"n": str(n)})
            for n in range(12)
        ]
        await asyncio.gather(*futures)
        consumer = await subscribe(client, kind, topic)
        assert await take(consumer) == list(range(12))
        await consumer.close()
        assert await take(await subscribe(client, kind, topic)) == []


@pytest.mark.parametrize("kind", ["stream", "queue", "keyed"])
async def test_chunks_survive_splits_reconnects_and_a_restart(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as client:
        consumer = await subscribe(client, kind)
        producer = await client.create_producer(TOPIC, chunking=True)
        sending = asyncio.ensure_future(producer.send_many([large(n) for n in range(20)], keys=["k"] * 20))
        await asyncio.sleep(0.005)
        brokers.reset_links()
        await (await brokers.controller()).split(0)
        await sending
        found = list(dict.fromkeys(await take(consumer)))
        assert (sorted(found) if kind == "queue" else found) == list(range(20))
        await consumer.flush_acks()
        await brokers.restart()
        await producer.send(large(20), key="k")
        assert await take(consumer, acknowledge=False) == [20]
        await consumer.close()
        assert await take(await subscribe(client, kind)) == [20], "it was not acknowledged"


async def test_a_large_message_given_back_comes_again_whole(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, chunking=True)
        await producer.send(large(1))
        consumer = await subscribe(client, "queue")
        message = await consumer.receive(timeout=5)
        await consumer.negative_acknowledge(message)
        again = await consumer.receive(timeout=5)
        assert (again.data, again.redelivery_count) == (large(1), 1)
        await consumer.acknowledge(again)
        await consumer.close()
        assert await take(await subscribe(client, "queue")) == []


async def test_a_large_message_goes_through_the_retry_topic_to_the_dead_letters(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC, chunking=True)).send(large(1), key="k")
        consumer = await client.subscribe_queue(
            TOPIC, "s", initial_position="earliest", retry_topic=True, dead_letter=DeadLetter(1)
        )
        for attempt in range(2):
            message = await consumer.receive(timeout=5)
            assert (message.data, message.properties.get("RECONSUMETIMES", "0")) == (large(1), str(attempt))
            await consumer.reconsume_later(message, delay=1)
        await asyncio.sleep(2)
        assert await take(await subscribe(client, "keyed", f"{TOPIC}-DLQ")) == [1]
        await consumer.close()
        assert await take(await subscribe(client, "queue")) == [], "the message is acknowledged"


@pytest.mark.parametrize("kind", ["stream", "queue", "keyed"])
async def test_a_large_message_that_fails_too_often_becomes_a_dead_letter(
    brokers: Brokers, kind: str
) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC, chunking=True)).send(large(1), key="k")
        options: Any = {"dead_letter": DeadLetter(1), "initial_position": "earliest"}
        if kind == "stream":
            consumer: Any = await client.subscribe_stream(TOPIC, "s", **options)
        else:
            order: Any = "key" if kind == "keyed" else "none"
            consumer = await client.subscribe_queue(TOPIC, "s", order=order, **options)

        async def fail(message: Message[bytes]) -> None:
            raise ValueError("too large to eat")

        statistics = await consumer.run(fail, retry=Backoff(0.1, 0.1), stop=5)
        assert (statistics.failed, statistics.dead_letters) == (2, 1)
        assert await take(await subscribe(client, "keyed", f"{TOPIC}-DLQ")) == [1]


async def test_without_chunking_a_large_message_is_refused(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        with pytest.raises(MessageTooBigError, match="bytes"):
            await producer.send(large(1))


class Chunks:
    """Stores chunks of messages one by one, as several producers would."""

    def __init__(self, wire: WireClient, topic: str = CLASSIC) -> None:
        self._wire, self._topic = wire, topic
        self._ids: dict[str, int] = {}

    async def store(self, producer: str, sequence: int, number: int, count: int) -> None:
        """Store a chunk of a message in six-byte chunks."""
        if producer not in self._ids:
            self._ids[producer] = id_ = len(self._ids) + 1
            await self._wire.request(
                pb.CommandProducer(topic=self._topic, producer_id=id_, request_id=id_, producer_name=producer)
            )
        data = b"%06d" % sequence
        metadata, _ = checked_metadata(build_single(data, "k", sequence, producer, 1))
        if count > 1:
            metadata.uuid, metadata.chunk_id = f"{producer}-{sequence}", number
            metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = count, 6 * count
        assert self._wire.pump is not None
        entry = build_entry(metadata.SerializeToString(), data)
        send = encode_chunk if count > 1 else encode_whole
        self._wire.pump.write_many(send(self._ids[producer], sequence, entry))
        await asyncio.sleep(0.1)


def encode_whole(producer_id: int, sequence_id: int, entry: bytes) -> list[bytes]:
    return encode_send(producer_id, sequence_id, 1, 0, entry)


@pytest.mark.parametrize("kind", ["stream", "queue", "keyed"])
async def test_messages_between_chunks_do_not_acknowledge_the_chunks(brokers: Brokers, kind: str) -> None:
    chunks = Chunks(await brokers.connect())
    async with brokers.client() as client:
        consumer = await subscribe(client, kind, CLASSIC)
        await chunks.store("one", 1, 0, 2)
        await chunks.store("two", 7, 0, 1)
        assert (await consumer.receive(timeout=1)).data == b"000007"
        await consumer.close()
        consumer = await subscribe(client, kind, CLASSIC)
        small = await consumer.receive(timeout=1)
        await (consumer.acknowledge_cumulative if kind == "stream" else consumer.acknowledge)(small)
        await consumer.flush_acks()
        await consumer.close()
        consumer = await subscribe(client, kind, CLASSIC)
        await chunks.store("one", 1, 1, 2)
        assert (await consumer.receive(timeout=1)).data == b"000001000001"
        assert await consumer.receive_many(10, timeout=1.0) == []


@pytest.mark.parametrize("kind", ["stream", "keyed"])
async def test_chunks_that_never_become_a_message_are_passed_over(brokers: Brokers, kind: str) -> None:
    chunks = Chunks(await brokers.connect())
    async with brokers.client() as client:
        consumer = await subscribe(client, kind, CLASSIC)
        await chunks.store("one", 1, 0, 2)
        await chunks.store("one", 2, 0, 2)
        await chunks.store("one", 2, 1, 2)
        await chunks.store("dead", 1, 0, 2)
        message = await consumer.receive(timeout=1)
        assert message.data == b"000002000002"
        await (consumer.acknowledge_cumulative if kind == "stream" else consumer.acknowledge)(message)
        await asyncio.sleep(130)
        await consumer.close()
        stats = await Admin(brokers).ask("GET", "/admin/v2/persistent/public/default/classic/stats")
        assert stats.json["subscriptions"]["s"]["msgBacklog"] == 0


@pytest.mark.parametrize("kind", ["stream", "keyed"])
async def test_a_message_that_a_split_cut_off_does_not_hold_up_the_children(
    brokers: Brokers, kind: str
) -> None:
    async with brokers.client() as client:
        consumer = await subscribe(client, kind)
        producer = await client.create_producer(TOPIC)
        chunks = Chunks(await brokers.connect(), WHOLE)
        await chunks.store("dead", 1, 0, 2)
        await (await brokers.controller()).split(0)
        await producer.send(b"%06d" % 7, key="k")
        message = await consumer.receive(timeout=5)
        assert message.data == b"000007"


async def test_a_message_that_a_split_cut_off_does_not_hold_up_consumers_that_share_its_segment(
    brokers: Brokers,
) -> None:
    async with brokers.client() as one, brokers.client() as two:
        consumers = [await subscribe(client, "stream") for client in (one, two)]
        await asyncio.sleep(1)
        producer = await one.create_producer(TOPIC)
        await producer.send_many([b"%06d" % n for n in range(8)], keys=[f"k{n}" for n in range(8)])
        before = [await take(consumer) for consumer in consumers]
        assert all(before), "the consumers do not share the segment"
        chunks = Chunks(await brokers.connect(), WHOLE)
        await chunks.store("dead", 1, 0, 2)
        await (await brokers.controller()).split(0)
        await producer.send_many([b"%06d" % n for n in range(8, 16)], keys=[f"k{n}" for n in range(8)])
        async with asyncio.timeout(10):
            found: list[int] = []
            while len(found) < 8:
                for consumer in consumers:
                    found += await take(consumer)
        assert sorted(found) == list(range(8, 16))


async def test_consumers_of_one_queue_lose_no_message_whose_chunks_they_share(brokers: Brokers) -> None:
    async with brokers.client() as one, brokers.client() as two:
        consumers = [await subscribe(client, "queue") for client in (one, two)]
        producer = await one.create_producer(TOPIC, chunking=True)
        await producer.send_many([large(n) for n in range(20)])
        found: set[int] = set()

        async def collect(consumer: Any) -> None:
            while len(found) < 20:
                for message in await consumer.receive_many(10, timeout=1.0):
                    found.add(int(message.data[:6]))
                    await consumer.acknowledge(message)

        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for consumer in consumers:
                group.create_task(collect(consumer))
        assert found == set(range(20))
