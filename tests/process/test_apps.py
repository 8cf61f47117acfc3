"""Handlers of an application at a broker: retries, order, publishing, and the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from anabranch import AsyncClient, Backoff, Schema
from anabranch.apps import App, HandlerOptions
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
