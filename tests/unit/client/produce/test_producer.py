"""The producer against a real broker on a virtual clock: outcomes, limits, names and failures."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from anabranch import AsyncProducer, Batching, Checkpoint, MessageId, Schema
from anabranch.client.options import CompressionName
from anabranch.client.produce import sending
from anabranch.client.produce.registering import ProducerRegistration
from anabranch.errors import (
    AlreadyClosedError,
    InvalidConfigurationError,
    MemoryBufferFullError,
    MessageTooBigError,
    ProducerBusyError,
    SendTimeoutError,
    TopicNotFoundError,
)
from anabranch.model.names import TopicName
from anabranch.protocol.hot_frames import encode_send
from simulation.world.loop import SimLoop
from tests.harness.cluster import TOPIC, Brokers, enqueue_numbers, stored_messages


async def test_a_send_returns_the_id_of_the_stored_message(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer("orders")
        id_ = await producer.send(b"hello", key="a")
        assert producer.topic == TOPIC
        assert producer.last_sequence_id == 0
        assert producer.name
        assert producer.is_connected
        (message,) = await stored_messages(client, 1)
        assert (message.value, message.key, message.sequence_id) == (b"hello", "a", 0)
        assert (message.id, message.producer_name, message.topic) == (id_, producer.name, TOPIC)
        assert MessageId.from_bytes(id_.to_bytes()) == id_


async def test_everything_a_message_may_carry_arrives(brokers: Brokers) -> None:
    moment = datetime(2026, 8, 20, 12, 30, tzinfo=UTC)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"a", key="k", properties={"x": "y"}, event_time=moment)
        await producer.send(None, key="k")
        await producer.send(b"c", key=b"\xff\x00")
        await producer.send(b"d")
        messages = await stored_messages(client, 4)
        by_value = {message.data: message for message in messages}
        first = by_value[b"a"]
        assert (first.properties, first.event_time, first.size) == ({"x": "y"}, moment, 1)
        assert by_value[b""].value is None
        assert by_value[b""].event_time is None
        assert by_value[b"c"].key_bytes == b"\xff\x00"
        assert by_value[b"d"].key is None
        assert first.publish_time.year == 2023


@pytest.mark.parametrize("compression", ["lz4", "zlib", "zstd", "snappy"])
async def test_compressed_batches_arrive(brokers: Brokers, compression: CompressionName) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, compression=compression)
        await producer.send_many([b"v" * 1000] * 50, keys=["k"] * 50)
        assert {message.value for message in await stored_messages(client, 50)} == {b"v" * 1000}


async def test_schemas_encode_and_decode(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, schema=Schema.json())
        await producer.send({"n": 1})
        await producer.send_many([{"n": 2}, [3]])
        consumer = await client.create_checkpoint_consumer(
            TOPIC, start=Checkpoint.earliest(), schema=Schema.json()
        )
        values = [(await consumer.receive(timeout=2)).value for _ in range(3)]
        assert sorted(map(str, values)) == ["[3]", "{'n': 1}", "{'n': 2}"]
        plain = await client.create_producer(TOPIC)
        with pytest.raises(TypeError, match="schema"):
            await plain.send("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await plain.send(b"x", key=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await plain.send_many([b"x"], keys=[5])  # type: ignore[list-item]
        with pytest.raises(InvalidConfigurationError):
            await plain.send_many([b"x"], keys=["a", "b"])


async def test_batches_close_by_count_and_leave_bucket_by_bucket(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_delay=60.0, max_messages=40))
        await producer.send_many([b"x"] * 40, keys=[f"key-{n}" for n in range(40)])
        messages = await stored_messages(client, 40)
        entries = {message.id.position for message in messages}
        assert len(entries) == 4, "one entry per bucket"


async def test_without_batching_each_message_is_an_entry(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=False)
        ids = [await producer.send(b"x", key="k") for _ in range(3)]
        assert len({id_.position for id_ in ids}) == 3
        assert {id_.batch_index for id_ in ids} == {-1}


async def test_a_batch_that_no_broker_takes_fails_and_the_next_one_goes_on(brokers: Brokers) -> None:
    batching = Batching(max_messages=10_000, max_bytes=32 * 2**20)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=batching)
        await producer.send(b"first", key="k")
        brokers.hold_links()
        sent = [await producer.enqueue(bytes(2**20), key="k") for _ in range(8)]
        await asyncio.sleep(0.1)
        brokers.open_links()
        with pytest.raises(MessageTooBigError, match="max_bytes"):
            await sent[-1]
        await producer.send(b"last", key="k")


async def test_an_entry_damaged_on_its_way_is_sent_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged: list[int] = []

    def encode_damaged(producer: int, sequence: int, count: int, highest: int, entry: bytes) -> list[bytes]:
        if sequence == 5 and not damaged:
            damaged.append(sequence)
            entry = entry[:-1] + bytes([entry[-1] ^ 1])
        return list(encode_send(producer, sequence, count, highest, entry))

    monkeypatch.setattr(sending, "encode_send", encode_damaged)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=1))
        for number in range(20):
            await producer.enqueue(b"%d" % number, key="k")
        await producer.flush()
        assert [int(m.data) for m in await stored_messages(client, 20)] == list(range(20))
    assert damaged


async def test_flush_raises_failures_that_the_caller_has_not_seen(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, send_timeout=1.0)
        await producer.send(b"ok", key="a")
        brokers.kill()
        await producer.enqueue(b"lost", key="a")
        with pytest.raises(SendTimeoutError):
            await producer.flush()
        await producer.flush()
        seen = await producer.enqueue(b"lost too", key="a")
        with pytest.raises(SendTimeoutError):
            await seen
        await producer.flush()


async def test_a_message_waits_no_longer_than_its_send_timeout(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, send_timeout=5.0)
        await producer.send(b"ok", key="a")
        brokers.kill()
        began = brokers.loop.time()
        with pytest.raises(SendTimeoutError):
            await producer.send(b"late", key="a")
        assert 4.9 < brokers.loop.time() - began < 5.2
        waiting = await producer.enqueue(b"in time", key="a")
        await brokers.start()
        await waiting
        assert [m.value for m in await stored_messages(client, 2)] == [b"ok", b"in time"]


async def test_closing_completes_what_was_accepted(brokers: Brokers) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    outcomes = [await producer.enqueue(b"x", key="a") for _ in range(100)]
    await producer.close()
    await producer.close()
    assert all(outcome.done() for outcome in outcomes)
    with pytest.raises(AlreadyClosedError):
        await producer.send(b"y")
    with pytest.raises(AlreadyClosedError):
        await producer.send_many([b"y"])
    await client.close()
    await client.close()
    assert client.closed
    with pytest.raises(AlreadyClosedError):
        await client.create_producer(TOPIC)


async def test_closing_with_a_timeout_fails_the_rest(brokers: Brokers) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    await producer.send(b"x", key="a")
    brokers.kill()
    waiting = await producer.enqueue(b"y", key="a")
    await producer.close(timeout=1.0)
    with pytest.raises(AlreadyClosedError):
        await waiting
    await client.shutdown()


async def test_a_message_too_big_is_refused_and_a_big_one_is_not(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        with pytest.raises(MessageTooBigError):
            await producer.send(b"x" * (5 * 2**20 + 1))
        with pytest.raises(MessageTooBigError):
            await producer.send_many([b"a", b"x" * (5 * 2**20 + 1)])
        await producer.send_many([b"small", b"x" * (4 * 2**20), b"small"], keys=["a", "a", "a"])
        # No message of the list with the oversized one was sent.
        assert [m.size for m in await stored_messages(client, 3)].count(4 * 2**20) == 1


async def test_a_full_client_makes_senders_wait_or_raises(brokers: Brokers) -> None:
    client = brokers.client(memory_limit=10_000)
    blocking = await client.create_producer(TOPIC, batching=Batching(max_messages=1))
    failing = await client.create_producer(TOPIC, block_if_full=False, batching=False)
    await blocking.send(b"x")
    brokers.kill()
    outcomes = [await blocking.enqueue(b"v" * 1000, key="k") for _ in range(10)]
    late = asyncio.ensure_future(blocking.enqueue(b"v" * 1000, key="k"))
    await asyncio.sleep(1.0)
    assert not late.done()
    with pytest.raises(MemoryBufferFullError):
        await failing.send(b"v")
    await brokers.start()
    await asyncio.gather(*outcomes)
    await (await late)
    await client.close()


async def test_cancelling_a_send_does_not_take_the_message_back(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send(b"x", key="a"), 0.00001)
        await producer.flush()
        await stored_messages(client, 1)


async def test_a_named_producer_goes_on_counting_after_a_restart(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, name="me")
        await producer.send_many([b"x"] * 10, keys=[f"k{n}" for n in range(10)])
        await producer.close()
        again = await client.create_producer(TOPIC, name="me")
        assert again.last_sequence_id == 9
        await again.send(b"y", key="k0")
        await stored_messages(client, 11)


async def test_a_named_producer_goes_on_counting_after_a_split(brokers: Brokers) -> None:
    """The messages that its former segments stored count."""

    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, name="p")
        await enqueue_numbers(producer, 10, 1)
        await producer.close()
        controller = await brokers.controller()
        layout = await controller.split(0)
        await controller.merge([segment.id for segment in layout.active])
        again = await client.create_producer(TOPIC, name="p")
        assert again.last_sequence_id == 9
        await again.close()
        given = await client.create_producer(TOPIC, name="p", initial_sequence_id=3)
        assert given.last_sequence_id == 3


async def test_a_repeated_sequence_id_is_accepted_and_not_stored_again(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, name="me")
        for number in (5, 6, 7):
            await producer.send(b"%d" % number, key="k", sequence_id=number)
        await producer.send(b"again", key="k", sequence_id=6)
        await producer.send(b"8", key="k", sequence_id=8)
        assert [m.value for m in await stored_messages(client, 4)] == [b"5", b"6", b"7", b"8"]


async def test_two_producers_of_one_name_exclude_each_other(brokers: Brokers) -> None:
    async with brokers.client() as client, brokers.client() as other:
        await client.create_producer(TOPIC, name="me")
        with pytest.raises(ProducerBusyError):
            await other.create_producer(TOPIC, name="me")


async def test_a_delayed_message_travels_alone_and_keeps_its_time(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_delay=60.0))
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        before = await producer.enqueue(b"before", key="k")
        delayed = await producer.enqueue(b"delayed", key="k", deliver_after=timedelta(seconds=5))
        after = await producer.enqueue(b"after", key="k")
        await producer.flush()
        assert (await before).position != (await delayed).position != (await after).position
        began = brokers.loop.time()
        values = [(await consumer.receive(timeout=20)).value for _ in range(3)]
        assert values == [b"before", b"after", b"delayed"]
        assert brokers.loop.time() - began > 4.9
        with pytest.raises(InvalidConfigurationError):
            await producer.send(b"x", deliver_after=1, deliver_at=datetime.now(UTC))


async def start_producer(brokers: Brokers) -> AsyncProducer[bytes]:
    return await brokers.client().create_producer(TOPIC)


async def try_to_use(producer: AsyncProducer[bytes]) -> None:
    with pytest.raises(InvalidConfigurationError, match="loop"):
        await producer.send(b"x")
    with pytest.raises(InvalidConfigurationError, match="loop"):
        await producer.flush()


def test_a_producer_of_another_loop_is_refused(loop: SimLoop, brokers: Brokers) -> None:
    producer = loop.run(start_producer(brokers))
    with SimLoop(2) as other:
        other.run(try_to_use(producer))
        assert not other.errors


async def test_a_producer_is_told_that_its_topic_was_deleted_and_follows_when_it_is_made_again(
    brokers: Brokers,
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer("orders")
        await producer.send(b"old", key="a")
        controllers = brokers[0].controllers
        await controllers.delete_topic(TopicName.parse(TOPIC), force=True)
        began = brokers.loop.time()
        for _ in range(2):
            with pytest.raises(TopicNotFoundError):
                await producer.send(b"lost", key="a")
        assert brokers.loop.time() - began < 5
        assert await controllers.list_topics("public/default") == []
        await controllers.create_topic(TopicName.parse(TOPIC))
        await asyncio.sleep(2)
        await producer.send(b"new", key="a")
        assert [message.value for message in await stored_messages(client, 1)] == [b"new"]


async def test_a_named_producer_is_not_opened_on_a_topic_that_is_deleted_under_it(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers.client() as client:
        controllers = brokers[0].controllers
        await controllers.create_topic(TopicName.parse(TOPIC))
        make = ProducerRegistration.make

        async def make_too_late(registration: ProducerRegistration, end: Any) -> Any:
            monkeypatch.setattr(ProducerRegistration, "make", make)
            await controllers.delete_topic(TopicName.parse(TOPIC), force=True)
            return await make(registration, end)

        monkeypatch.setattr(ProducerRegistration, "make", make_too_late)
        began = brokers.loop.time()
        with pytest.raises(TopicNotFoundError):
            await client.create_producer("orders", name="mine")
        assert brokers.loop.time() - began < 5


async def test_a_producer_says_how_full_its_batches_were_in_each_bucket(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=40))
        await producer.send_many([b"v"] * 400, keys=[f"key-{n}" for n in range(400)])
        fills = producer.bucket_fills
        assert sorted(fills) == [(0, bucket) for bucket in range(4)]
        assert sum(fill.messages for fill in fills.values()) == 400
        for fill in fills.values():
            assert 0.25 < fill.ratio <= 1, "the fullest of the four batches closes all of them"
            assert fill.messages_per_entry == fill.messages / fill.entries
        assert next(iter(fills.values())).bytes > 0
