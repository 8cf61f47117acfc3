"""Ordered consumers of `persistent://` topics, against a real broker on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from anabranch import AsyncClient, Batching, Checkpoint
from anabranch.client.net.topics.classic_layout import ClassicTopicError
from anabranch.errors import NotAllowedError
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers

NAME = "persistent://public/default/orders"
CLASSIC = "/admin/v2/persistent/public/default/orders"
KEYS = [f"key-{n}" for n in range(20)]

Seen = dict[str, list[int]]


async def publish(client: AsyncClient, lo: int, hi: int) -> None:
    async with await client.create_producer(NAME, batching=Batching(max_messages=7)) as producer:
        for number in range(lo, hi):
            await producer.send_many([b"%d" % number] * len(KEYS), keys=KEYS)


async def subscribe(client: AsyncClient, kind: str, **more: Any) -> Any:
    if kind == "stream":
        return await client.subscribe_stream(NAME, "s", initial_position="earliest", **more)
    return await client.subscribe_queue(NAME, "s", initial_position="earliest", order="key", **more)


async def take(consumer: Any, seen: Seen, count: int | None = None, timeout: float = 2.0) -> None:
    """Take messages and acknowledge them, until `count` came or none comes in time."""
    left = count
    while messages := await consumer.receive_many(10 if left is None else min(left, 10), timeout=timeout):
        for message in messages:
            seen[message.key].append(int(message.value))
        if hasattr(consumer, "acknowledge_cumulative"):
            await consumer.acknowledge_cumulative(messages[-1])
        else:
            await consumer.acknowledge(messages)
        if left is not None:
            left -= len(messages)
            if not left:
                return


async def partition(brokers: Brokers, partitions: int) -> Admin:
    admin = Admin(brokers)
    if partitions:
        assert (await admin.ask("PUT", f"{CLASSIC}/partitions", partitions)).status == 204
    return admin


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_consumer_reads_every_key_in_order_through_a_restart(
    brokers: Brokers, kind: str, partitions: int
) -> None:
    await partition(brokers, partitions)
    seen: Seen = defaultdict(list)
    async with brokers.client() as client:
        await publish(client, 0, 10)
        async with await subscribe(client, kind) as consumer:
            await take(consumer, seen, count=90)
            await consumer.flush_acks()
            await brokers.restart()
            await publish(client, 10, 20)
            await take(consumer, seen)
        assert seen == {key: list(range(20)) for key in KEYS}
        async with await subscribe(client, kind) as again:
            assert await again.receive_many(10, timeout=1.0) == []


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_consumers_share_partitions_and_take_over_from_one_that_leaves(
    brokers: Brokers, kind: str
) -> None:
    await partition(brokers, 3)
    seen: Seen = defaultdict(list)
    async with brokers.client() as one, brokers.client() as two:
        first, second = await subscribe(one, kind, name="a"), await subscribe(two, kind, name="b")
        await publish(one, 0, 10)
        async with asyncio.TaskGroup() as group:
            group.create_task(take(first, seen))
            group.create_task(take(second, seen))
        if kind == "stream":
            await asyncio.sleep(0.1)
            assert sorted(first.assignment + second.assignment) == [f"{NAME}-partition-{n}" for n in range(3)]
            assert set(first.awaited) == set(second.assignment)
        await first.close()
        await publish(one, 10, 20)
        await take(second, seen)
    assert seen == {key: list(range(20)) for key in KEYS}


async def test_the_callback_names_partitions_that_come_and_go(brokers: Brokers) -> None:
    calls: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    async with brokers.client() as one, brokers.client() as two:
        await subscribe(one, "stream", name="b", on_assignment=lambda *change: calls.append(change))
        await asyncio.sleep(1.0)
        assert calls == [((NAME,), ())]
        await subscribe(two, "stream", name="a")
        await asyncio.sleep(1.0)
        assert calls == [((NAME,), ()), ((), (NAME,))]


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_what_is_not_handed_out_goes_to_the_consumer_that_takes_over(
    brokers: Brokers, kind: str
) -> None:
    first_seen: Seen = defaultdict(list)
    second_seen: Seen = defaultdict(list)
    async with brokers.client() as one, brokers.client() as two:
        await publish(one, 0, 10)
        first = await subscribe(one, kind, name="b")
        await take(first, first_seen, count=30)
        await first.flush_acks()
        second = await subscribe(two, kind, name="a")
        await take(second, second_seen, timeout=1.0)
        assert await first.receive_many(100, timeout=0.5) == []
        await second.close()
        await publish(one, 10, 11)
        await take(first, first_seen)
    for key in KEYS:
        assert first_seen[key][:-1] + second_seen[key] + first_seen[key][-1:] == list(range(11))


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_consumers_follow_a_topic_that_is_migrated_under_them(
    brokers: Brokers, kind: str, partitions: int
) -> None:
    admin = await partition(brokers, partitions)
    seen: Seen = defaultdict(list)
    async with brokers.client() as one, brokers.client() as two:
        first, second = await subscribe(one, kind), await subscribe(two, kind)
        await publish(one, 0, 10)
        await take(first, seen, count=30, timeout=1.0)
        await first.flush_acks()
        answer = await admin.ask("POST", "/admin/v2/scalable/public/default/orders/migrate", None)
        assert answer.status == 204, answer.body
        await publish(one, 10, 20)
        async with asyncio.TaskGroup() as group:
            group.create_task(take(first, seen, timeout=8.0))
            group.create_task(take(second, seen, timeout=8.0))
    assert seen == {key: list(range(20)) for key in KEYS}


async def test_a_checkpoint_group_needs_a_migration_first(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 1)
        reader = await client.create_checkpoint_consumer(NAME, start=Checkpoint.earliest())
        assert len(await reader.receive_many(100, timeout=1.0)) > 0
        with pytest.raises(ClassicTopicError, match="migrate"):
            await client.create_checkpoint_consumer(NAME, group="g")


@pytest.mark.parametrize("partitions", [0, 3])
async def test_messages_name_the_topic_as_the_application_does(brokers: Brokers, partitions: int) -> None:
    await partition(brokers, partitions)
    async with brokers.client() as client:
        await publish(client, 0, 1)
        consumers: list[Any] = [
            await subscribe(client, "stream"),
            await client.subscribe_queue(NAME, "q", initial_position="earliest"),
            await client.create_checkpoint_consumer(NAME, start=Checkpoint.earliest()),
            await client.subscribe_topics([NAME], "several", initial_position="earliest"),
        ]
        for consumer in consumers:
            message = await consumer.receive(timeout=5)
            assert message.topic == NAME
            assert repr(message).endswith(f" of {NAME}>")
            await consumer.close()


async def test_a_bare_name_of_a_classic_topic_is_answered_with_its_whole_name(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 1)
        for call in (client.create_producer("orders"), client.subscribe_queue("orders", "s")):
            with pytest.raises(NotAllowedError, match=f"^{NAME} exists; use that name"):
                await call
