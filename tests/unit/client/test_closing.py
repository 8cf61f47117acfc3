"""Closing within a timeout: messages are completed or reported, and every waiting call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from anabranch import AsyncClient
from anabranch.errors import AlreadyClosedError, OperationTimeoutError, SendTimeoutError
from tests.harness.cluster import TOPIC, Brokers


async def test_closing_completes_messages_of_a_slow_broker_and_reports_the_rest(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    await producer.send(b"x", key="a")
    brokers.hold_links()
    in_time = await producer.enqueue(b"slow", key="a")
    brokers.loop.call_later(1.0, brokers.open_links)
    await producer.close(timeout=2.0)
    assert in_time.result().segment == 0
    assert not caplog.records
    other = await client.create_producer(TOPIC)
    await other.send(b"x", key="a")
    brokers.kill()
    late = await other.enqueue_many([b"late"] * 3, keys=["a"] * 3)
    await other.close(timeout=2.0)
    (record,) = [one for one in caplog.records if "not stored" in one.message]
    assert record.message == (
        f"{TOPIC}: 3 messages were not stored: the producer was closed before the message was stored"
    )
    with pytest.raises(AlreadyClosedError):
        late.result()
    await client.close()


async def test_a_failure_that_a_caller_has_seen_is_not_logged(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    await producer.send(b"x", key="a")
    brokers.kill()
    sending = asyncio.ensure_future(producer.send(b"late", key="a"))
    await asyncio.sleep(0.1)
    await client.close(timeout=1.0)
    with pytest.raises(AlreadyClosedError):
        await sending
    assert not [record for record in caplog.records if "not stored" in record.message]


async def test_messages_expire_while_the_producer_closes(brokers: Brokers) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC, send_timeout=2.0)
    await producer.send(b"x", key="a")
    brokers.kill()
    first = await producer.enqueue(b"y", key="a")
    await asyncio.sleep(1.0)
    second = await producer.enqueue(b"z", key="a")
    began = brokers.loop.time()
    await producer.close()
    assert brokers.loop.time() - began < 2.1
    assert isinstance(first.exception(), SendTimeoutError)
    assert isinstance(second.exception(), SendTimeoutError)
    await client.close()


async def test_a_second_caller_waits_for_the_closing_and_may_shorten_it(brokers: Brokers) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    await producer.send(b"x", key="a")
    brokers.kill()
    await producer.enqueue(b"y", key="a")
    began = brokers.loop.time()
    first = asyncio.ensure_future(client.close(timeout=20.0))
    await asyncio.sleep(1.0)
    assert not first.done()
    await producer.close(timeout=1.0)
    await client.close()
    assert first.done()
    assert 1.9 < brokers.loop.time() - began < 2.1


async def test_a_cancelled_closing_closes_at_once(brokers: Brokers) -> None:
    client = brokers.client()
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe_stream(TOPIC, "s")
    await producer.send(b"x", key="a")
    brokers.kill()
    waiting = await producer.enqueue(b"y", key="a")
    began = brokers.loop.time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.close(), 1.0)
    assert brokers.loop.time() - began < 1.1
    assert isinstance(waiting.exception(), AlreadyClosedError)
    with pytest.raises(AlreadyClosedError):
        await consumer.receive()
    await client.close()


@pytest.mark.parametrize("end", [AsyncClient.close, AsyncClient.shutdown], ids=["close", "shutdown"])
async def test_the_end_of_a_client_ends_every_call_that_waits(
    brokers: Brokers, end: Callable[[AsyncClient], Any]
) -> None:
    client = brokers.client()
    holder = await client.create_producer("held", access_mode="exclusive")
    stream = await client.subscribe_stream(TOPIC, "s")
    checkpoints = await client.create_checkpoint_consumer(TOPIC)
    reader = client.read_segment("segment://public/default/orders/0000-ffff-0", 0, 10)
    waiting = [
        asyncio.ensure_future(call)
        for call in (
            stream.receive(),
            checkpoints.receive_many(10),
            reader.read(),
            client.create_producer("held", access_mode="wait_for_exclusive"),
        )
    ]
    await asyncio.sleep(1.0)
    assert not any(call.done() for call in waiting)
    assert holder.is_connected
    await end(client)
    for call in waiting:
        with pytest.raises(AlreadyClosedError):
            await asyncio.wait_for(call, 0.1)


async def test_waiting_for_room_ends_with_the_send_timeout_or_the_producer(brokers: Brokers) -> None:
    async with brokers.client(memory_limit=5_000) as client:
        holding = await client.create_producer(TOPIC, send_timeout=0, batching=False)
        await holding.send(b"x", key="a")
        producer = await client.create_producer(TOPIC, send_timeout=2.0, batching=False)
        brokers.kill()
        held = [await holding.enqueue(b"v" * 1000, key="a") for _ in range(5)]
        for call in (producer.send(b"y", key="a"), producer.send_many([b"y"] * 10)):
            began = brokers.loop.time()
            with pytest.raises(SendTimeoutError, match="left no room within 2 s"):
                await call
            assert 1.9 < brokers.loop.time() - began < 2.1
        waiting = asyncio.ensure_future(producer.enqueue(b"z", key="a"))
        await asyncio.sleep(0.1)
        await producer.close(timeout=1.0)
        with pytest.raises(AlreadyClosedError):
            await asyncio.wait_for(waiting, 0.1)
        await holding.close(timeout=1.0)
        assert all(isinstance(one.exception(), AlreadyClosedError) for one in held)


async def test_waiting_for_room_counts_for_the_send_timeout(brokers: Brokers) -> None:
    async with brokers.client(memory_limit=5_000) as client:
        holding = await client.create_producer(TOPIC, send_timeout=0, batching=False)
        await holding.send(b"x", key="a")
        producer = await client.create_producer(TOPIC, send_timeout=2.0)
        brokers.kill()
        for _ in range(5):
            await holding.enqueue(b"v" * 1000, key="a")
        began = brokers.loop.time()
        sending = asyncio.ensure_future(producer.send(b"y", key="a"))
        await asyncio.sleep(1.5)
        await holding.close(timeout=0)
        with pytest.raises(SendTimeoutError, match="not stored within 2 s"):
            await sending
        assert 1.9 < brokers.loop.time() - began < 2.1


async def test_a_list_that_does_not_fit_fails_with_its_first_message(brokers: Brokers) -> None:
    async with brokers.client(memory_limit=5_000) as client:
        producer = await client.create_producer(TOPIC, send_timeout=2.0, batching=False)
        await producer.send(b"x", key="a")
        brokers.kill()
        for _ in range(3):
            await producer.enqueue(b"v" * 1000, key="a")
        await asyncio.sleep(1.0)
        began = brokers.loop.time()
        with pytest.raises(SendTimeoutError):
            await producer.send_many([b"v" * 1000] * 100, keys=["a"] * 100)
        assert brokers.loop.time() - began < 4.1


async def test_flush_takes_a_timeout_and_the_messages_go_on(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"x", key="a")
        brokers.kill()
        waiting = await producer.enqueue(b"y", key="a")
        with pytest.raises(OperationTimeoutError, match="not stored after 1 s"):
            await producer.flush(timeout=1.0)
        await brokers.start()
        await producer.flush(timeout=5.0)
        assert waiting.done()
