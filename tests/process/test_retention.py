"""A topic that may keep so much and no more, on two workers, through a split and the death of its leader."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from anabranch import AsyncClient
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName

from .conftest import MakeBroker

TOPIC = TopicName.parse("topic://public/default/orders")
MEGABYTE = 1024 * 1024
KEPT_BYTES = 2 * MEGABYTE
PATIENCE_S = 20.0


async def pass_on(url: str, megabytes: int, *, acknowledge: bool = True) -> None:
    """Publish this much, evenly over the keys, and read it."""
    async with AsyncClient(url) as client:
        producer = await client.create_producer(str(TOPIC))
        count = megabytes * 16
        values = [os.urandom(MEGABYTE // 16) for _ in range(count)]
        await asyncio.gather(*(producer.send(value, key=f"key-{n}") for n, value in enumerate(values)))
        if acknowledge:
            consumer = await client.subscribe_queue(str(TOPIC), "s", initial_position="earliest")
            for _ in range(count):
                await consumer.acknowledge(await consumer.receive(timeout=PATIENCE_S))
            await consumer.close()


async def soon(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.05)


def ledger_bytes(data: Path) -> int:
    return sum(file.stat().st_size for file in data.glob("stores/*/ledgers/**/*") if file.is_file())


async def test_a_topic_keeps_its_size_of_what_is_acknowledged_and_all_that_is_not(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker(workers=2, auto_scale_interval_s=0.2, **{"auto_scale.enabled": "false"}).start()
    with AdminClient(broker.http_url) as admin:
        admin.call(
            "POST",
            "/admin/v2/namespaces/public/default/retention",
            body={"retentionTimeInMinutes": -1, "retentionSizeInMB": KEPT_BYTES // MEGABYTE},
        )
        admin.create_topic(TOPIC)
        admin.create_subscription(TOPIC, "s", "QUEUE")

        def stored() -> dict[str, int]:
            """Sizes of the segments, as soon as each segment has an owner."""
            while True:
                segments = plain(admin.topic_stats(TOPIC))["segments"]
                if all("storageSize" in segment for segment in segments.values()):
                    return {id_: segment["storageSize"] for id_, segment in segments.items()}
                time.sleep(0.05)

        await pass_on(broker.url, 3)
        admin.split(TOPIC, 0)
        await asyncio.sleep(1)
        assert "0" in stored(), "without it there would be too little"
        await pass_on(broker.url, 3, acknowledge=False)
        await soon(lambda: "0" not in stored())
        assert 3 * MEGABYTE <= sum(stored().values()) < 4 * MEGABYTE
        for number in (0, 1):
            broker.kill_owner(number)
            broker.worker(number)
        await asyncio.sleep(1)
        assert sum(stored().values()) >= 3 * MEGABYTE, "no consumer has read it"
        # The process that died left its ledgers; later ledgers have other numbers.
        admin.skip_all(TOPIC, "s")
        await pass_on(broker.url, 3)
        await soon(lambda: sum(stored().values()) < 4 * MEGABYTE)
        await asyncio.sleep(1)
        assert sum(stored().values()) >= KEPT_BYTES
    assert broker.stop() == 0
    assert KEPT_BYTES <= ledger_bytes(broker.data) < 4 * MEGABYTE
