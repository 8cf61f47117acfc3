"""Routes of messages while segments are split, merged and moved: order, successors, keyless messages."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import Batching, Schema
from anabranch.errors import (
    ProducerBusyError,
    ProducerFencedError,
)
from anabranch.model.names import TopicName
from tests.harness.cluster import TOPIC, Brokers, Orders, enqueue_numbers, stored_messages


async def test_messages_without_a_key_use_all_buckets_and_segments(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=5))
        await producer.send(b"first")
        controller = await brokers.controller()
        await controller.split(0)
        for _ in range(40):
            await producer.send_many([b"x"] * 5)
        messages = await stored_messages(client, 201)
        per_segment = dict.fromkeys(controller.layout.segments, 0)
        for message in messages:
            per_segment[message.id.segment] += 1
        assert min(per_segment[segment.id] for segment in controller.layout.active) > 50


async def test_five_thousand_in_flight_pass_ten_splits_and_merges_in_order(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"0", key="warm-up")

        async def change() -> None:
            for _ in range(10):
                await asyncio.sleep(0.01)
                await brokers.change_layout(brokers.rng)

        changing = asyncio.ensure_future(change())
        outcomes: list[object] = []
        for number in range(1000):
            for key in range(20):
                outcomes.append(await producer.enqueue(b"%d" % number, key=f"key-{key}"))
            if number > 250:
                await asyncio.sleep(0.0001)
        await changing
        await producer.flush()
        ids = [outcome.result() for outcome in outcomes]  # type: ignore[attr-defined]
        assert len(set(ids)) == len(ids) == 20_000
        orders = Orders()
        orders.take([m for m in await stored_messages(client, 20_001) if m.key != "warm-up"])
        orders.check(20, 1000)


async def test_a_split_while_the_schema_is_registered_is_followed(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await client.create_producer(TOPIC)
        controller = await brokers.controller()
        for steps in range(40):
            opening = asyncio.ensure_future(client.create_producer(TOPIC, schema=Schema.string()))
            await asyncio.sleep(steps / 10_000)
            await brokers.change_layout(brokers.rng)
            producer = await opening
            assert (await producer.send("x", key="k")).segment in controller.layout.segments
            await producer.close()


@pytest.mark.parametrize("seed", range(12))
async def test_no_key_is_reordered_or_stored_twice_through_kills_and_splits(
    brokers: Brokers, seed: int
) -> None:
    rng = brokers.rng
    client = brokers.client()
    producer = await client.create_producer(TOPIC, batching=Batching(max_messages=rng.choice([2, 7, 40])))
    outcomes: list[object] = []
    async with brokers.trouble(changes=0.4, interrupted=0.3, pause_s_max=0.02):
        for number in range(150):
            for key in range(15):
                outcomes.append(await producer.enqueue(b"%d" % number, key=f"key-{key}"))
            # Messages are always in flight, so that every fault hits some of them.
            await asyncio.sleep(rng.uniform(0.0, 0.004))
    await producer.flush()
    assert all(outcome.done() for outcome in outcomes)  # type: ignore[attr-defined]
    await client.close()
    orders = Orders()
    async with brokers.client() as reader:
        orders.take(await stored_messages(reader, 15 * 150))
    orders.check(15, 150)


async def test_a_delayed_message_without_a_key_joins_no_open_batch_of_any_segment(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_delay=60.0))
        controller = await brokers.controller()
        await controller.split(0)
        await asyncio.sleep(1.0)
        for _ in range(4):
            for n in range(40):
                await producer.enqueue(b"now", key=f"key-{n}")
            delayed = await producer.enqueue(b"later", deliver_after=5.0)
            await producer.flush()
            assert delayed.result().batch_index == -1


async def test_messages_without_a_key_that_are_taken_back_go_to_successors_only(brokers: Brokers) -> None:
    """Another segment may have stored a later sequence id, and would take these messages for repetitions."""

    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=3))
        controller = await brokers.controller()
        segments = (await controller.split(0, [0x4000, 0x8000, 0xC000])).active
        await producer.send_many([b"%d" % number for number in range(30)])
        await asyncio.sleep(1.0)
        brokers.hold_links()
        for number in range(30, 60):
            await producer.enqueue(b"%d" % number)
        await asyncio.sleep(0.1)
        await controller.split(segments[1].id)
        brokers.open_links()
        await producer.flush()
        found = await stored_messages(client, 60)
        assert sorted(int(message.data) for message in found) == list(range(60))


async def test_a_large_batch_that_shrinks_much_is_taken_back_like_any_other(brokers: Brokers) -> None:
    batching = Batching(max_messages=10_000, max_bytes=32 * 2**20)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, compression="zstd", batching=batching)
        await producer.send(b"first", key="k")
        brokers.hold_links()
        for _ in range(12):
            await producer.enqueue(bytes(2**20), key="k")
        await asyncio.sleep(0.1)
        await (await brokers.controller()).split(0)
        brokers.open_links()
        await producer.flush()
        await stored_messages(client, 13)


async def test_a_merge_waits_until_all_its_parents_are_settled(brokers: Brokers) -> None:
    """A successor must not get a higher sequence id first: it would take lower ones for repetitions."""

    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=3))
        await producer.send(b"x", key="first")
        controller = await brokers.controller()
        low, high = (await controller.split(0)).active
        for _ in range(30):
            filling = asyncio.ensure_future(enqueue_numbers(producer, 20, 3))
            # Cut the connection while entries are unanswered, then merge: both parents are in doubt.
            await asyncio.sleep(brokers.rng.uniform(0.0, 0.003))
            brokers.reset_links()
            merged = await controller.merge([low.id, high.id])
            await filling
            await asyncio.sleep(brokers.rng.uniform(0.0, 0.3))
            low, high = (await controller.split(merged.active[0].id)).active
        await producer.flush()
        await stored_messages(client, 1801)


async def test_exclusive_access_covers_the_whole_topic_and_its_new_segments(brokers: Brokers) -> None:
    async with brokers.client() as client, brokers.client() as other:
        owner = await client.create_producer(TOPIC, access_mode="exclusive")
        with pytest.raises((ProducerFencedError, ProducerBusyError)):
            await other.create_producer(TOPIC, access_mode="exclusive")
        await (await brokers.controller()).split(0)
        await owner.send(b"x", key="a")
        await asyncio.sleep(0.5)
        with pytest.raises((ProducerFencedError, ProducerBusyError)):
            await other.create_producer(TOPIC, access_mode="exclusive")
        waiting = asyncio.ensure_future(other.create_producer(TOPIC, access_mode="wait_for_exclusive"))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await owner.close()
        await (await waiting).send(b"y", key="a")
        await stored_messages(client, 2)


async def test_a_classic_topic_is_written_through_a_layout_of_its_partitions(brokers: Brokers) -> None:
    async with brokers.client() as client:
        name = "persistent://public/default/classic"
        producer = await client.create_producer(name)
        for number in range(10):
            await producer.send(b"%d" % number, key="k")
        messages = await stored_messages(client, 10, name)
        assert [m.value for m in messages] == [b"%d" % number for number in range(10)]
        assert TopicName.parse(name) is not None
