"""Handlers of a run against a real broker on a virtual clock: order, concurrency, failures, and the end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import Any

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
        key, number = message.key, int(message.data)
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
            left = [int(message.data) for message in await again.receive_many(100, timeout=1)]
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


async def test_a_handler_that_hangs_is_cancelled_and_tried_again(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(brokers, 8, keys=2)
    attempts: list[int] = []

    async def handle(message: Message[bytes]) -> None:
        attempts.append(int(message.data))
        if attempts.count(2) == 1 and message.value == b"2":
            await asyncio.sleep(1000)

    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        statistics = await consumer.run(handle, timeout=1, retry=Backoff(1, 1), stop=5)
        assert "TimeoutError: the handler took longer than 1 s" in caplog.text
        assert (statistics.handled, statistics.failed, statistics.timed_out) == (8, 1, 1)
        assert [n for n in attempts if n % 2 == 0] == [0, 2, 2, 4, 6]


async def test_a_handler_that_cancels_itself_loses_nothing(brokers: Brokers) -> None:
    await publish(brokers, 4, keys=1)
    attempts: list[int] = []

    async def handle(message: Message[bytes]) -> None:
        attempts.append(int(message.data))
        if attempts == [0, 1]:
            raise asyncio.CancelledError

    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        statistics = await consumer.run(handle, retry=Backoff(1, 1), stop=5)
        assert (attempts, statistics.handled, statistics.failed) == ([0, 1, 1, 2, 3], 4, 1)


async def test_the_exception_of_a_handler_may_carry_the_pause(brokers: Brokers) -> None:
    await publish(brokers, 2, keys=1)
    times: list[float] = []

    class BusyError(Exception):
        retry_after = timedelta(seconds=7)

    async def handle(message: Message[bytes]) -> None:
        times.append(brokers.loop.time())
        if len(times) == 1:
            raise BusyError

    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await consumer.run(handle, retry=Backoff(1, 1), stop=10)
        assert 6.9 < times[1] - times[0] < 7.1


async def test_a_stuck_key_bounds_the_messages_that_a_run_takes(brokers: Brokers) -> None:
    await publish(brokers, 3000, keys=1)
    stuck = asyncio.Event()
    handled: list[int] = []

    async def handle(message: Message[bytes]) -> None:
        await stuck.wait()
        handled.append(int(message.data))

    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest", order="key")
        run = asyncio.ensure_future(consumer.run(handle, concurrency=10, look_ahead=500, stop=10))
        await asyncio.sleep(5)
        statistics = consumer.run_statistics
        assert statistics is not None
        assert (statistics.in_flight, statistics.waiting) == (1, 499)
        stuck.set()
        assert (await run).handled == 3000
        assert handled == sorted(handled)


@pytest.mark.parametrize("look_ahead", [1, 2, 3, 4, 5])
async def test_a_small_look_ahead_is_enough(brokers: Brokers, look_ahead: int) -> None:
    await publish(brokers, 40, keys=4)
    handlers = Handlers()
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        statistics = await consumer.run(handlers, concurrency=1, look_ahead=look_ahead, stop=10)
        assert (statistics.handled, handlers.most) == (40, 1)


async def test_large_entries_bound_the_bytes_that_a_run_takes(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=False)
        for _ in range(50):
            await producer.send(b"x" * 10_000, key="a")
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")

        async def handle(message: Message[bytes]) -> None:
            await asyncio.sleep(1000)

        run = asyncio.ensure_future(consumer.run(handle, look_ahead_bytes=100_000, grace=0))
        await asyncio.sleep(2)
        statistics = consumer.run_statistics
        assert statistics is not None
        assert 100_000 <= statistics.waiting_bytes < 100_000 + 256 * 10_100
        assert statistics.waiting < 50
        run.cancel()


async def test_a_client_that_dies_leaves_unfinished_messages_to_the_next(brokers: Brokers) -> None:
    await publish(brokers, 100, keys=10)
    handled: list[int] = []

    async def handle(message: Message[bytes]) -> None:
        if message.key == "key-3":
            await asyncio.sleep(1000)
        handled.append(int(message.data))

    for kind in ("stream", "queue"):
        handled.clear()
        client = brokers.client()
        consumer: Any
        if kind == "stream":
            consumer = await client.subscribe_stream(TOPIC, kind, initial_position="earliest")
        else:
            consumer = await client.subscribe_queue(TOPIC, kind, initial_position="earliest", order="key")
        run = asyncio.ensure_future(consumer.run(handle))
        await asyncio.sleep(5)
        await client.shutdown()
        await run
        assert len(handled) == 90
        async with brokers.client() as other:
            if kind == "stream":
                consumer = await other.subscribe_stream(TOPIC, kind)
            else:
                consumer = await other.subscribe_queue(TOPIC, kind, order="key")
            left = [int(message.value) for message in await consumer.receive_many(200, timeout=5)]
            while more := await consumer.receive_many(200, timeout=1):
                left += [int(message.value) for message in more]
        assert {*left} | {*handled} == {*range(100)}
        assert [n for n in left if n % 10 == 3] == list(range(3, 100, 10))
        if kind == "queue":
            assert not {*left} & {*handled}


async def test_a_segment_changes_hands_after_its_handlers_have_finished(brokers: Brokers) -> None:
    await publish(brokers, 200, keys=10)
    handlers = Handlers(sleep_s=0.2)
    async with brokers.client() as one, brokers.client() as two:
        first = await one.subscribe_stream(TOPIC, "s", initial_position="earliest")
        runs = [asyncio.ensure_future(first.run(handlers, stop=30))]
        await asyncio.sleep(1)
        await publish(brokers, 200, keys=10, first=200)
        second = await two.subscribe_stream(TOPIC, "s")
        runs.append(asyncio.ensure_future(second.run(handlers, stop=29)))
        await asyncio.sleep(3)
        await (await brokers.controller()).split(0)
        await publish(brokers, 200, keys=10, first=400)
        statistics = await asyncio.gather(*runs)
        assert min(run.handled for run in statistics) > 0
        assert handlers.starts == {f"key-{key}": list(range(key, 600, 10)) for key in range(10)}


async def test_a_seek_during_a_run_repeats_messages_in_order(brokers: Brokers) -> None:
    await publish(brokers, 40, keys=4)
    handlers = Handlers(sleep_s=0.5)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        run = asyncio.ensure_future(consumer.run(handlers, stop=15))
        await asyncio.sleep(2.2)
        await (await brokers.controller()).seek("s", 0)
        await run
        for key in range(4):
            numbers = handlers.starts[f"key-{key}"]
            assert numbers[:5] == list(range(key, 20, 4))
            assert numbers[5:] == list(range(key, 40, 4)), "from the beginning, without those that waited"


async def test_a_handler_that_cancels_its_task_has_failed(brokers: Brokers) -> None:
    await publish(brokers, 4, keys=1)
    attempts: list[int] = []

    async def handle(message: Message[bytes]) -> None:
        attempts.append(int(message.data))
        if attempts == [0, 1]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        statistics = await consumer.run(handle, retry=Backoff(1, 1), stop=5)
        assert (attempts, statistics.handled, statistics.failed) == ([0, 1, 1, 2, 3], 4, 1)


async def test_an_exception_that_is_no_error_ends_the_run_and_loses_nothing(brokers: Brokers) -> None:
    await publish(brokers, 4, keys=1)
    attempts: list[int] = []

    class StopNowError(BaseException):
        pass

    async def handle(message: Message[bytes]) -> None:
        attempts.append(int(message.data))
        if attempts == [0, 1]:
            raise StopNowError

    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        with pytest.raises(StopNowError):
            await consumer.run(handle)
        await consumer.run(handle, stop=5)
        assert attempts == [0, 1, 1, 2, 3]


async def test_a_closed_client_lets_handlers_finish_their_sends(brokers: Brokers) -> None:
    await publish(brokers, 4, keys=4)
    client = brokers.client()
    producer = await client.create_producer("topic://public/default/results")
    consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")

    async def handle(message: Message[bytes]) -> None:
        await asyncio.sleep(2)
        await producer.send(message.value)

    run = asyncio.ensure_future(consumer.run(handle))
    await asyncio.sleep(1)
    await client.close()
    assert (await run).handled == 4


async def test_a_cancelled_run_waits_for_its_handlers_once(brokers: Brokers) -> None:
    await publish(brokers, 4, keys=1)
    handlers = Handlers(sleep_s=20.0)
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest", order="key")
        run = asyncio.ensure_future(consumer.run(handlers))
        await asyncio.sleep(1)
        run.cancel()
        await asyncio.sleep(1)
        assert not run.done(), "the handler may finish"
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert brokers.loop.time() < 10
        again = await consumer.receive_many(10, timeout=1)
        assert [int(message.data) for message in again] == [0, 1, 2, 3]
