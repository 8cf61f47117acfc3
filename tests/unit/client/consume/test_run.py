"""Handlers of a run against a real broker on a virtual clock: order, concurrency, failures, and the end."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from anabranch import Backoff, Message
from anabranch.errors import InvalidConfigurationError
from tests.harness.cluster import TOPIC, Brokers


async def publish(brokers: Brokers, count: int, *, keys: int, first: int = 0) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        numbers = range(first, first + count)
        await producer.send_many([b"%d" % n for n in numbers], keys=[f"key-{n % keys}" for n in numbers])


class Handlers:
    """Sleep for each message, note what happens, and fail as the test says."""

    def __init__(self, sleep_s: float = 0.1) -> None:
        self.sleep_s = sleep_s
        self.starts: dict[str | None, list[int]] = defaultdict(list)
        self.done: list[int] = []
        self.running: set[str | None] = set()
        self.most = 0
        self.fail_once: set[int] = set()

    async def __call__(self, message: Message[bytes]) -> None:
        key, number = message.key, int(message.value)
        assert key not in self.running, "two handlers of a key run at once"
        self.running.add(key)
        self.most = max(self.most, len(self.running))
        self.starts[key].append(number)
        try:
            await asyncio.sleep(self.sleep_s)
            if number in self.fail_once:
                self.fail_once.remove(number)
                raise ValueError("once")
            self.done.append(number)
        finally:
            self.running.remove(key)


async def test_keys_run_side_by_side_and_each_in_order(brokers: Brokers) -> None:
    await publish(brokers, 100, keys=10)
    handlers = Handlers()
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        statistics = await consumer.run(handlers, concurrency=50, stop=1.5)
        assert (statistics.handled, statistics.in_flight, statistics.waiting) == (100, 0, 0)
        assert handlers.most == 10
        assert all(numbers == sorted(numbers) for numbers in handlers.starts.values())
        assert sorted(handlers.done) == list(range(100))
    async with brokers.client() as client:
        again = await client.subscribe_stream(TOPIC, "s")
        assert await again.receive_many(10, timeout=1) == [], "all messages are acknowledged"


async def test_a_failure_pauses_its_key_and_no_other(brokers: Brokers) -> None:
    await publish(brokers, 40, keys=4)
    handlers = Handlers()
    handlers.fail_once.add(4)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        began = brokers.loop.time()
        running = asyncio.ensure_future(consumer.run(handlers, retry=Backoff(5, 5, jitter=0)))
        await asyncio.sleep(1.5)
        assert sorted(handlers.done) == sorted({*range(40)} - {*range(4, 40, 4)})
        statistics = consumer.run_statistics
        assert statistics is not None
        assert (statistics.keys_paused, statistics.waiting, statistics.failed) == (1, 9, 1)
        await asyncio.sleep(5)
        assert handlers.starts["key-0"] == [0, 4, 4, *range(8, 40, 4)]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert brokers.loop.time() - began < 7


async def test_a_run_that_ends_gives_its_messages_back(brokers: Brokers) -> None:
    await publish(brokers, 40, keys=4)
    handlers = Handlers(sleep_s=1.0)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        statistics = await consumer.run(handlers, stop=2.5)
        assert statistics.handled == 12, "running handlers finish"
        handlers.sleep_s = 0.01
        await consumer.run(handlers, stop=2.5)
        assert sorted(handlers.done) == list(range(40))
        assert all(numbers == sorted(numbers) for numbers in handlers.starts.values())


async def test_a_consumer_has_one_run_at_a_time(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q")
        running = asyncio.ensure_future(consumer.run(Handlers(), stop=5))
        await asyncio.sleep(1)
        with pytest.raises(InvalidConfigurationError, match="one run at a time"):
            await consumer.run(Handlers())
        with pytest.raises(InvalidConfigurationError, match="order"):
            await consumer.run(Handlers(), order="any")  # type: ignore[arg-type]
        await consumer.close()
        assert (await running).handled == 0


async def test_closing_lets_handlers_finish_and_acknowledges_them(brokers: Brokers) -> None:
    await publish(brokers, 40, keys=4)
    handlers = Handlers(sleep_s=1.0)
    async with brokers.client() as client:
        for subscribe in (client.subscribe_queue, client.subscribe_stream):
            consumer = await subscribe(TOPIC, subscribe.__name__, initial_position="earliest")
            handlers.done.clear()
            running = asyncio.ensure_future(consumer.run(handlers, order="key"))
            await asyncio.sleep(1.5)
            await consumer.close()
            assert (await running).handled == 8
            again = await subscribe(TOPIC, subscribe.__name__)
            left = [int(message.value) for message in await again.receive_many(100, timeout=1)]
            assert {*left, *handlers.done} == {*range(40)}
            if subscribe == client.subscribe_queue:
                assert not {*left} & {*handlers.done}, "each handled message is acknowledged"


async def test_a_message_of_a_plain_queue_goes_back_to_the_broker(brokers: Brokers) -> None:
    await publish(brokers, 40, keys=4)
    handlers = Handlers()
    handlers.fail_once.update(range(0, 40, 4))
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", redelivery=Backoff(1, 1)
        )
        statistics = await consumer.run(handlers, concurrency=1, stop=10)
        assert (statistics.handled, statistics.failed) == (40, 10)
        assert sorted(handlers.done) == list(range(40))
