"""A sender that restarts after a broker was killed within a layout change: each number is stored once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

import pytest

from anabranch import AsyncClient, Checkpoint
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

from .conftest import MakeBroker
from .stored import keys_over_the_ring

TOPIC = TopicName.parse("topic://public/default/resent")
KEYS = keys_over_the_ring(16)
STEPS = [
    (kind, step)
    for kind in ("split", "merge", "rebucket")
    for step in ("sealed", "inherited.first", "inherited")
]


async def send(url: str, numbers: range, *, keyless: int = 3) -> None:
    """Send numbers from one producer name. Every third number has no key."""
    async with AsyncClient(url) as client:
        producer = await client.create_producer(str(TOPIC), name="sender")
        for n in numbers:
            key = KEYS[n % len(KEYS)] if n % keyless else None
            await producer.enqueue(str(n).encode(), key=key, sequence_id=n)
        await producer.flush()
        await producer.close()


async def stored(url: str, count: int) -> Counter[int]:
    """All stored numbers, after `count` arrived and no more follow."""
    found: Counter[int] = Counter()
    async with AsyncClient(url) as client:
        consumer = await client.create_checkpoint_consumer(str(TOPIC), start=Checkpoint.earliest())
        while messages := await consumer.receive_many(1000, timeout=1.0 if found.total() >= count else 20.0):
            found.update(int(message.data) for message in messages)
        await consumer.close()
    return found


def active(admin: AdminClient) -> list[int]:
    """Ids of the active segments in the order of their ranges."""
    segments = plain(admin.topic_metadata(TOPIC))["segments"].values()
    found = [segment for segment in segments if segment["state"] == "ACTIVE"]
    return [segment["segmentId"] for segment in sorted(found, key=lambda s: s["hashRange"]["start"])]


def change(admin: AdminClient, kind: str, ids: list[int]) -> None:
    if kind == "split":
        admin.split(TOPIC, ids[0])
    elif kind == "merge":
        admin.merge(TOPIC, ids[:2])
    else:
        admin.rebucket(TOPIC, ids[0], bucket_count=3)


async def insist(admin: AdminClient, kind: str) -> None:
    """Change the layout after a worker was killed; the change may be made although its answer is lost."""
    deadline = time.monotonic() + 20
    before: list[int] = []
    while True:
        try:
            ids = active(admin)
            if before in ([], ids):
                before = ids
                change(admin, kind, ids)
            return
        except AnabranchError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(("kind", "step"), STEPS)
async def test_a_message_sent_again_after_a_kill_is_stored_once(
    make_broker: MakeBroker, kind: str, step: str
) -> None:
    broker = make_broker(scalableTopicAutoScaleEnabled="false")
    broker.start(failpoints=f"{kind}.{step}=kill")
    with AdminClient(broker.http_url) as admin:
        admin.create_topic(TOPIC, 2)
        await send(broker.url, range(40))
        await send(broker.url, range(50, 60))
        with pytest.raises(AnabranchError):
            change(admin, kind, [0, 1])
    assert broker.wait(10) == -9
    broker.start()
    await send(broker.url, range(40))
    await send(broker.url, range(50, 80))
    broker.stop()
    broker.start()
    with AdminClient(broker.http_url) as admin:
        ids = active(admin)
        change(admin, "merge" if len(ids) > 1 else "split", ids)
    await send(broker.url, range(40))
    await send(broker.url, range(50, 90))
    assert await stored(broker.url, 80) == Counter([*range(40), *range(50, 90)])


async def test_children_inherit_from_parents_of_other_workers(make_broker: MakeBroker) -> None:
    """Segments of one topic lie in different stores, and their owners change meanwhile."""
    broker = make_broker(workers=2, lease_s=1, scalableTopicAutoScaleEnabled="false").start()
    with AdminClient(broker.http_url) as admin:
        admin.create_topic(TOPIC, 4)
        await send(broker.url, range(40))
        change(admin, "merge", active(admin)[1:])
        await send(broker.url, range(50))
        os.kill(broker.worker(1), signal.SIGKILL)
        await insist(admin, "split")
        await insist(admin, "merge")
        await send(broker.url, range(60))
        stores = {segment["store"] for segment in plain(admin.topic_metadata(TOPIC))["segments"].values()}
    assert await stored(broker.url, 60) == Counter(range(60))
    assert len(stores) > 1
