"""Subscriptions that are made by an administrator before a consumer reads them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.harness.cluster import TOPIC, Brokers

KEYS = [f"key-{n}" for n in range(12)]


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
async def test_messages_published_before_the_first_consumer_are_read(brokers: Brokers, kind: Any) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        controller = await brokers.controller()
        await controller.ensure_subscription("s", kind, "earliest")
        sent = 0
        for step in range(5):
            await producer.send_many([b"%d" % step] * len(KEYS), keys=KEYS)
            sent += len(KEYS)
            if step == 3:
                await controller.merge([s.id for s in controller.layout.active])
            else:
                await controller.split(controller.layout.active[0].id)
        # At the end, where the subscription was not there already.
        subscribe = client.subscribe_queue if kind == "QUEUE" else client.subscribe_stream
        consumer: Any = await subscribe(TOPIC, "s", initial_position="latest")
        seen: dict[str, list[int]] = defaultdict(list)
        while got := await consumer.receive_many(1000, timeout=3):
            for message in got:
                seen[message.key].append(int(message.value))
                if kind == "QUEUE":
                    await consumer.acknowledge(message)
            if kind == "STREAM":
                await consumer.acknowledge_cumulative(got[-1])
        assert sorted(seen) == sorted(KEYS)
        for numbers in seen.values():
            assert (numbers if kind == "STREAM" else sorted(numbers)) == list(range(5))
