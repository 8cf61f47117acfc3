"""Many layout changes under attached clients leak no memory in broker and clients."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest

from anabranch.model import pruned
from tests.harness.cluster import TOPIC, Brokers

KEYS = [f"key-{n}" for n in range(8)]


def objects_of_ours() -> Counter[str]:
    gc.collect()
    found: Counter[str] = Counter()
    for item in gc.get_objects():
        kind = type(item)
        if str(kind.__module__).startswith("anabranch."):
            found[f"{kind.__module__}.{kind.__name__}"] += 1
        elif isinstance(item, asyncio.Task | asyncio.TimerHandle):
            found[kind.__name__] += 1
    return found


@pytest.mark.virtual_time(limit_s=3000)
@pytest.mark.brokers(segment_retention_s=0.0, auto_scale_interval_s=1.0)
async def test_nothing_grows_with_the_number_of_splits_and_merges(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A topic remembers some pruned segments; fewer here, so that the first cycles reach that number.
    monkeypatch.setattr(pruned, "PRUNED_MAX", 8)
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        stream = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        queue = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        reader = await client.create_checkpoint_consumer(TOPIC)
        controller = await brokers.controller()

        async def take(consumer: Any) -> None:
            while got := await consumer.receive_many(1000, timeout=0.3):
                if consumer is stream:
                    await stream.acknowledge_cumulative(got[-1])
                elif consumer is queue:
                    await queue.acknowledge(got)

        async def cycle() -> None:
            await controller.split(controller.layout.active[0].id)
            await producer.send_many([b"x"] * len(KEYS), keys=KEYS)
            await controller.merge([s.id for s in controller.layout.active])
            await producer.send_many([b"y"] * len(KEYS), keys=KEYS)
            await asyncio.gather(*(take(consumer) for consumer in (stream, queue, reader)))
            await asyncio.sleep(3)

        counts = []
        for cycles in (10, 40):
            for _ in range(cycles):
                await cycle()
            await asyncio.sleep(30)
            counts.append(objects_of_ours())
        assert len(controller.layout.segments) == 1
        grown = {kind: (counts[0][kind], n) for kind, n in counts[1].items() if n > counts[0][kind] + 10}
        assert not grown
