"""Several stream consumers, some of which stop acknowledging, through layout changes and restarts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from anabranch import AsyncClient, AsyncStreamConsumer, Message
from anabranch.model.hashing import bucket_hash, key_hash
from anabranch.model.names import TopicName
from tests.harness.cluster import TOPIC, Brokers

KEYS = [f"key-{n}" for n in range(24)]


class Firsts:
    """The first deliveries of each key over all consumers: in order, without gaps."""

    def __init__(self) -> None:
        self.next: Counter[str] = Counter()

    def take(self, messages: list[Message[bytes]]) -> None:
        for message in messages:
            assert message.key is not None
            number, due = int(message.data), self.next[message.key]
            assert number <= due, f"{message.key}: {number} came before {due}"
            self.next[message.key] += number == due

    def complete(self, per_key: int) -> bool:
        return all(self.next[key] == per_key for key in KEYS)


async def test_a_consumer_that_stands_still_stops_its_buckets_and_no_others(brokers: Brokers) -> None:
    async with brokers.client() as one, brokers.client() as two:
        stuck = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        going = await two.subscribe_stream(TOPIC, "s", initial_position="earliest", name="b")
        producer = await one.create_producer(TOPIC)
        firsts = Firsts()
        await producer.send_many([b"0"] * len(KEYS), keys=KEYS)
        held = await stuck.receive_many(100, timeout=1)
        firsts.take(held)
        await take_all(going, firsts)
        controller = await brokers.controller()
        await controller.split(0)
        await producer.send_many([b"1"] * len(KEYS), keys=KEYS)
        await take_all(going, firsts)
        more = await stuck.receive_many(100, timeout=1)
        firsts.take(more)
        moved = {key for key in KEYS if firsts.next[key] == 2}
        assert moved == {key for key in KEYS if bucket_hash(key_hash(key)) >= 0x8000}
        assert {message.key for message in held} == set(KEYS) - moved
        await stuck.acknowledge_cumulative([*held, *more][-1])
        for _ in range(3):
            await take_all(going, firsts)
            await take_all(stuck, firsts)
        assert firsts.complete(2)


async def test_thousands_of_pending_entries_of_one_key_do_not_close_other_buckets(brokers: Brokers) -> None:
    async with brokers.client() as one, brokers.client() as two:
        stuck = await one.subscribe_stream(TOPIC, "s", name="a", receiver_queue_size=10)
        going = await two.subscribe_stream(TOPIC, "s", name="b")
        producer = await one.create_producer(TOPIC, batching=False)
        await producer.send_many([b"0"] * len(KEYS), keys=KEYS)
        hot = (await stuck.receive(timeout=5)).key
        for _ in range(12):
            await producer.send_many([b"1"] * 1000, keys=[hot or ""] * 1000)
        firsts = Firsts()
        await take_all(going, firsts)
        mine = set(firsts.next)
        await (await brokers.controller()).split(0)
        await producer.send_many([b"1"] * len(KEYS), keys=KEYS)
        await take_all(going, firsts)
        moved = {key for key in mine if firsts.next[key] == 2}
        assert moved, "the other consumer may have the other child"
        assert hot not in firsts.next


async def take_all(consumer: AsyncStreamConsumer[bytes], firsts: Firsts) -> None:
    while messages := await consumer.receive_many(100, timeout=1):
        firsts.take(messages)
        await consumer.acknowledge_cumulative(messages[-1])


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.brokers(bucket_budget=(4, 8, 16)[seed % 3])) for seed in range(8)],
)
async def test_first_deliveries_stay_in_order_when_consumers_stand_still(brokers: Brokers) -> None:
    per_key = 40
    rng, firsts, over = brokers.rng, Firsts(), asyncio.Event()
    clients = [brokers.client() for _ in range(rng.randrange(2, 5))]

    async def consume(client: AsyncClient, name: str) -> None:
        consumer = await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", name=name, receiver_queue_size=rng.choice([5, 50])
        )
        while not over.is_set():
            messages = await consumer.receive_many(rng.randrange(1, 30), timeout=1)
            if not messages:
                continue
            firsts.take(messages)
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(0.2, 3.0))
            await consumer.acknowledge_cumulative(messages[-1])
            if rng.random() < 0.03:
                await consumer.close()
                consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest", name=name)
        await consumer.close()

    async def trouble() -> None:
        while firsts.next[KEYS[0]] < per_key:
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            dice = rng.random()
            if dice < 0.75:
                await brokers.change_layout(rng)
            elif dice < 0.9:
                brokers.reset_links()
            else:
                brokers.kill()
                await asyncio.sleep(rng.uniform(0.0, 0.1))
                await brokers.start()

    troubling = asyncio.ensure_future(trouble())
    consuming = [asyncio.ensure_future(consume(client, f"c{n}")) for n, client in enumerate(clients)]
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        for number in range(per_key):
            await producer.send_many([b"%d" % number] * len(KEYS), keys=KEYS)
            await asyncio.sleep(rng.uniform(0.0, 0.2))
        for _ in range(300):
            if firsts.complete(per_key) or any(task.done() for task in consuming):
                break
            await asyncio.sleep(1)
    over.set()
    await asyncio.gather(troubling, *consuming)
    assert firsts.complete(per_key)
    await asyncio.gather(*(client.close() for client in clients))


@pytest.mark.brokers(count=2)
async def test_owners_and_leader_on_different_brokers_open_buckets_too(brokers: Brokers) -> None:
    one, two = brokers.client(0), brokers.client(1)
    async with one, two:
        stuck = await one.subscribe_stream(TOPIC, "s", initial_position="earliest", name="a")
        going = await two.subscribe_stream(TOPIC, "s", initial_position="earliest", name="b")
        producer = await two.create_producer(TOPIC)
        firsts = Firsts()
        await producer.send_many([b"0"] * len(KEYS), keys=KEYS)
        held = await stuck.receive_many(100, timeout=1)
        firsts.take(held)
        await take_all(going, firsts)
        name = TopicName.parse(TOPIC)
        controller = await brokers[1 - brokers.leader_of(name)].controllers.controller(name)
        layout = await controller.split(0)
        assert len({segment.store for segment in layout.segments.values()}) == 2
        await producer.send_many([b"1"] * len(KEYS), keys=KEYS)
        await take_all(going, firsts)
        firsts.take(more := await stuck.receive_many(100, timeout=1))
        moved = {key for key in KEYS if firsts.next[key] == 2}
        assert moved == set(KEYS) - {message.key for message in held}
        await stuck.acknowledge_cumulative([*held, *more][-1])
        for _ in range(3):
            await take_all(going, firsts)
            await take_all(stuck, firsts)
        assert firsts.complete(2)
