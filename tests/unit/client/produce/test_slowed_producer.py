"""A producer that a real broker slows down by credit, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import AsyncClient, Batching
from tests.harness.admin import Admin
from tests.harness.cluster import TOPIC, Brokers, enqueue_numbers, stored_messages
from tests.harness.wire import settle

RATE = "/admin/v2/namespaces/public/default/publishRate"


async def set_rate(brokers: Brokers, size: int) -> None:
    body = {"publishThrottlingRateInByte": size}
    assert (await Admin(brokers).ask("POST", RATE, body)).status == 204
    await settle()


async def remove_rate(brokers: Brokers) -> None:
    assert (await Admin(brokers).ask("DELETE", RATE)).status == 204


async def slowest_look_up(brokers: Brokers, client: AsyncClient) -> float:
    took = []
    for _ in range(50):
        began = brokers.loop.time()
        await client.layout("aside", create=True)
        took.append(brokers.loop.time() - began)
        await asyncio.sleep(0.05)
    return max(took)


async def test_look_ups_do_not_wait_for_a_producer_over_its_rate(brokers: Brokers) -> None:
    await set_rate(brokers, 20_000)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, send_timeout=0)
        flood = [await producer.enqueue(b"x" * 1000, key=f"{n % 100}") for n in range(1000)]
        assert await slowest_look_up(brokers, client) < 0.05
        stats = producer.stats
        assert stats.credit_waits > 0
        assert stats.credit_wait_s > 2.0
        assert stats.waiting_bytes > 500_000
        await remove_rate(brokers)
        await producer.flush(10)
        assert all(future.done() for future in flood)
        assert producer.stats.waiting_bytes == 0
        await stored_messages(client, 1000)


async def test_the_rate_holds_for_producers_with_credit(brokers: Brokers) -> None:
    await set_rate(brokers, 20_000)
    async with brokers.client() as client:
        producers = [await client.create_producer(TOPIC, send_timeout=0) for _ in range(3)]
        for number in range(6000):
            await producers[number % 3].enqueue(b"x" * 1000, key=f"{number % 100}")
        await asyncio.sleep(30.0)
        (log,) = brokers[0].logs.served
        # The open batches of a segment leave together: up to four full ones of each producer.
        assert 500_000 < log.log.extent.size_bytes < 32 * 20_000 + 3 * 4 * Batching().max_bytes
        await remove_rate(brokers)
        for producer in producers:
            await producer.flush(10)


@pytest.mark.brokers(publish_credit_bytes=10_000, publish_pending_bytes_max=65_536)
async def test_a_small_credit_stores_everything_in_order(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producers = [await client.create_producer(TOPIC, batching=False) for _ in range(3)]
        for turn in range(200):
            for number, producer in enumerate(producers):
                await producer.enqueue(b"%d" % turn + b" " * 2000, key=f"{number}")
        for producer in producers:
            await producer.flush(60)
            assert producer.stats.credit_waits > 0
        stored = await stored_messages(client, 600)
        for number in range(3):
            turns = [int(message.data) for message in stored if message.key == f"{number}"]
            assert turns == list(range(200))


async def test_a_split_takes_messages_along_that_wait_for_credit(brokers: Brokers) -> None:
    await set_rate(brokers, 500)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, send_timeout=0, batching=Batching(max_messages=20))
        await enqueue_numbers(producer, keys=20, per_key=50)
        await asyncio.sleep(1.0)
        assert producer.stats.waiting_bytes > 0 or producer.stats.credit_waits > 0
        await (await brokers.controller()).split(0)
        await asyncio.sleep(5.0)
        await remove_rate(brokers)
        await producer.flush(30)
        orders: dict[str | None, list[int]] = {}
        for message in await stored_messages(client, 1000):
            orders.setdefault(message.key, []).append(int(message.data))
        assert all(numbers == list(range(50)) for numbers in orders.values())
        assert len(orders) == 20


async def test_a_producer_goes_on_after_a_restart_of_its_broker_while_it_waits(brokers: Brokers) -> None:
    await set_rate(brokers, 2000)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, send_timeout=0)
        await enqueue_numbers(producer, keys=20, per_key=50)
        await asyncio.sleep(1.0)
        await brokers.restart()
        await asyncio.sleep(5.0)
        await remove_rate(brokers)
        await producer.flush(30)
        await stored_messages(client, 1000)
