"""Calls that are cancelled half-way leave no consumer or producer at the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch import AsyncClient
from tests.harness.cluster import TOPIC, Brokers

OPENERS: dict[str, Callable[[AsyncClient], Coroutine[Any, Any, Any]]] = {
    "producer": lambda client: client.create_producer(TOPIC, name="me"),
    "stream": lambda client: client.subscribe_stream(TOPIC, "s", name="me"),
    "queue": lambda client: client.subscribe_queue(TOPIC, "s"),
    "checkpoint": lambda client: client.create_checkpoint_consumer(TOPIC),
}


def left_behind(brokers: Brokers) -> list[object]:
    """All producers, consumers and watches that the broker believes to be connected."""
    found: list[object] = []
    for connection in brokers[0].connections:
        found += connection.producers.values()
        found += connection.consumers.values()
    return found


@pytest.mark.parametrize("kind", OPENERS)
async def test_a_cancelled_opening_leaves_nothing_behind(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"x")
        await producer.close()
        finished = 0
        for step in range(60):
            opening = asyncio.ensure_future(OPENERS[kind](client))
            await asyncio.sleep(step * 0.0004)
            opening.cancel()
            try:
                handle = await opening
            except asyncio.CancelledError:
                pass
            else:
                finished += 1
                await handle.close()
            await asyncio.sleep(0.1)
            assert left_behind(brokers) == []
        assert 0 < finished < 60, "some calls were cancelled in time and some were not"
        if kind == "stream":
            controller = await brokers.controller()
            assert not any(record.consumers for record in controller.records.values())
