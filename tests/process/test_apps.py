"""Handlers of an application at a broker: retries, order, publishing, and the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from anabranch import AsyncClient, Backoff, DeadLetter, Schema
from anabranch.apps import App, HandlerOptions
from anabranch.errors import InvalidConfigurationError
from anabranch.testing.local_broker import LocalBroker

pytest_plugins = ["anabranch.testing.pytest_broker"]


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_handler_retries_publishes_and_leaves(anabranch_broker: LocalBroker, kind: Any) -> None:
    steps: list[str] = []
    paid = asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("open")
        try:
            yield
        finally:
            steps.append("close")

    app = App(anabranch_broker.url, lifespan=lifespan)
    options = HandlerOptions(kind=kind, schema=Schema.string(), retry=Backoff(0.01, 0.01))

    @app.subscriber("orders", subscription="billing", options=options)
    async def charge(message: Any) -> None:
        steps.append(message.value)
        if steps.count(message.value) == 1:
            raise RuntimeError("the first attempt fails")
        await app.publish("receipts", message.value.encode(), key=message.key)

    @app.subscriber("receipts", subscription="mail")
    async def mail(message: Any) -> None:
        steps.append(f"mail {message.value.decode()}")
        paid.set()

    async with AsyncClient(anabranch_broker.url) as client:
        producer = await client.create_producer("orders", schema=Schema.string())
        await producer.send("tea", key="alice")
        running = asyncio.ensure_future(app.run())
        await asyncio.wait_for(paid.wait(), 20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert steps == ["open", "tea", "tea", "mail tea", "close"]
        consumer = await client.subscribe_stream("receipts", "mail")
        assert await consumer.receive_many(1, timeout=0.2) == [], "the run has acknowledged its messages"


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_message_whose_handler_always_fails_goes_to_the_dead_letter_topic(
    anabranch_broker: LocalBroker, kind: Any
) -> None:
    app = App(anabranch_broker.url)
    options = HandlerOptions(
        kind=kind, retry=Backoff(0.01, 0.01), dead_letter=DeadLetter(max_redeliveries=1, topic="dead")
    )
    attempts: list[bytes] = []

    @app.subscriber("orders", subscription="billing", options=options)
    async def charge(message: Any) -> None:
        attempts.append(message.data)
        raise RuntimeError("never")

    async with AsyncClient(anabranch_broker.url) as client:
        dead = await client.subscribe_queue("dead", "look", initial_position="earliest")
        await (await client.create_producer("orders")).send(b"bad tea", key="alice")
        running = asyncio.ensure_future(app.run())
        letter = await dead.receive(timeout=20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (letter.data, letter.key) == (b"bad tea", "alice")
    assert attempts == [b"bad tea"] * 2


@pytest.mark.real_time
async def test_typed_values_are_published_with_their_schema(anabranch_broker: LocalBroker) -> None:
    app = App(anabranch_broker.url)
    schema = Schema.json(dict[str, int])

    @app.subscriber("orders", subscription="billing")
    async def charge(message: Any) -> None:
        for number in range(2):
            await app.publish("receipts", {"paid": number}, schema=Schema.json(dict[str, int]))

    async with AsyncClient(anabranch_broker.url) as client:
        receipts = await client.subscribe_queue("receipts", "look", schema=schema)
        await (await client.create_producer("orders")).send(b"tea", key="alice")
        running = asyncio.ensure_future(app.run())
        found = [await receipts.receive(timeout=20) for _ in range(2)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [message.value for message in found] == [{"paid": 0}, {"paid": 1}]
    assert len({message.producer_name for message in found}) == 1, "equal schemas share a producer"


@pytest.mark.real_time
async def test_a_run_that_is_stopped_lets_its_handlers_end(anabranch_broker: LocalBroker) -> None:
    app, began, stop = App(anabranch_broker.url), asyncio.Event(), asyncio.Event()
    handled: list[bytes] = []

    @app.subscriber("orders", subscription="billing")
    async def charge(message: Any) -> None:
        began.set()
        await asyncio.sleep(0.3)
        handled.append(message.data)

    async with AsyncClient(anabranch_broker.url) as client:
        await (await client.create_producer("orders")).send(b"tea", key="alice")
        running = asyncio.ensure_future(app.run(stop=stop))
        await asyncio.wait_for(began.wait(), 20)
        with pytest.raises(InvalidConfigurationError, match="already running"):
            await app.run()
        stop.set()
        await asyncio.wait_for(running, 20)
        assert handled == [b"tea"]
        consumer = await client.subscribe_stream("orders", "billing")
        assert await consumer.receive_many(1, timeout=0.2) == [], "the run has acknowledged the message"
