"""Layout changes that clients miss because their connections are lost at that moment."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from anabranch import AsyncClient, Checkpoint
from tests.harness.cluster import TOPIC, Brokers

KEYS = [f"key-{n}" for n in range(10)]


async def open_consumer(client: AsyncClient, kind: str) -> Any:
    if kind == "queue":
        return await client.subscribe_queue(TOPIC, "s", initial_position="earliest")
    if kind == "stream":
        return await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
    return await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())


async def take(consumer: Any, kind: str, seen: dict[str, list[int]]) -> None:
    while got := await consumer.receive_many(1000, timeout=3):
        for message in got:
            seen[message.key].append(int(message.value))
        if kind == "queue":
            await consumer.acknowledge(got)
        elif kind == "stream":
            await consumer.acknowledge_cumulative(got[-1])


@pytest.mark.parametrize("kind", ["queue", "stream", "checkpoint"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_clients_go_on_after_a_split_that_they_missed(brokers: Brokers, kind: str, when: str) -> None:
    async with brokers.client() as client, brokers.client() as sender:
        producer = await sender.create_producer(TOPIC)
        consumer = await open_consumer(client, kind)
        controller = await brokers.controller()
        seen: dict[str, list[int]] = defaultdict(list)
        for step in range(4):
            await producer.send_many([b"%d" % step] * len(KEYS), keys=KEYS)
            await take(consumer, kind, seen)
            if when == "before":
                brokers.reset_links()
            await controller.split(controller.layout.active[0].id)
            if when == "after":
                brokers.reset_links()
        await producer.send_many([b"4"] * len(KEYS), keys=KEYS)
        await asyncio.sleep(5)
        await take(consumer, kind, seen)
        for key in KEYS:
            assert sorted(set(seen[key])) == list(range(5))
            assert kind == "queue" or seen[key] == list(range(5))
