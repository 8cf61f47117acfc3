"""Thousands of sends under way while the layout changes under them, against a real broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.client.produce.futures import SendFuture
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

from .conftest import MakeBroker

NAME = TopicName.parse("topic://public/default/orders")
KEYS = [f"key-{n}" for n in range(200)]
IN_FLIGHT = 5000
CHANGES = 10


def active(admin: AdminClient) -> list[int]:
    segments = plain(admin.topic_metadata(NAME))["segments"].values()
    ranges = {s["hashRange"]["start"]: s["segmentId"] for s in segments if s["state"] == "ACTIVE"}
    return [ranges[start] for start in sorted(ranges)]


async def change_layout(admin: AdminClient, window: asyncio.Semaphore) -> int:
    """Split and merge in turn, each while the window of unanswered sends is all but used up."""
    done = 0
    for number in range(CHANGES):
        while not window.locked():
            await asyncio.sleep(0.001)
        segments = await asyncio.to_thread(active, admin)
        if number % 2 == 0:
            await asyncio.to_thread(admin.split, NAME, segments[0])
        else:
            await asyncio.to_thread(admin.merge, NAME, segments)
        done += 1
    return done


async def publish(client: AsyncClient, admin: AdminClient) -> int:
    """Send with IN_FLIGHT unanswered until the layout has changed CHANGES times; returns how many."""
    producer = await client.create_producer(str(NAME), send_timeout=30.0)
    window = asyncio.Semaphore(IN_FLIGHT)
    changes = asyncio.create_task(change_layout(admin, window))
    outcomes: list[SendFuture] = []
    while not changes.done():
        await window.acquire()
        number = len(outcomes)
        outcome = await producer.enqueue(str(number).encode(), key=KEYS[number % len(KEYS)])
        outcome.add_done_callback(lambda _: window.release())
        outcomes.append(outcome)
    assert await changes == CHANGES
    await producer.flush()
    assert all(outcome.done() and outcome.exception() is None for outcome in outcomes)
    await producer.close()
    return len(outcomes)


async def read_all(client: AsyncClient, count: int) -> dict[str, list[int]]:
    consumer = await client.subscribe_stream(str(NAME), "reader", initial_position="earliest")
    by_key: dict[str, list[int]] = defaultdict(list)
    taken = 0
    while taken < count:
        messages = await consumer.receive_many(1000, timeout=20)
        assert messages, f"only {taken} of {count} messages came"
        for message in messages:
            by_key[message.key or ""].append(int(message.data))
        taken += len(messages)
        await consumer.acknowledge_cumulative(messages[-1])
    return by_key


async def test_five_thousand_sends_in_flight_pass_ten_splits_and_merges(make_broker: MakeBroker) -> None:
    broker: BrokerProcess = make_broker(scalableTopicAutoScaleEnabled="false").start()
    admin = AdminClient(broker.http_url)
    admin.create_topic(NAME, segments=1)
    async with AsyncClient(broker.url) as client:
        count = await publish(client, admin)
        assert count > 2 * IN_FLIGHT
        by_key = await read_all(client, count)
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(count)), "each once"
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "in key order"
    admin.close()
