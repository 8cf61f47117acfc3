"""A classic topic becomes a scalable one: no message is lost, every key stays in order, clients follow."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from anabranch import Checkpoint
from anabranch.errors import SubscriptionNotFoundError
from anabranch.metadata.layouts import layout_of
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.judges.layout_checks import check
from tests.harness.admin import Admin

SCALABLE = "/admin/v2/scalable/public/default/orders"
CLASSIC = "/admin/v2/persistent/public/default/orders"
NAME = "persistent://public/default/orders"
TOPIC = TopicName.parse("topic://public/default/orders")
KEYS = [f"key-{n}" for n in range(20)]


async def publish(producer: Any, lo: int, hi: int) -> None:
    for number in range(lo, hi):
        await producer.send_many([b"%d" % number] * len(KEYS), keys=KEYS)


async def take(consumer: Any, seen: dict[str, list[int]], how: str = "") -> None:
    while messages := await consumer.receive_many(1000, timeout=2.0):
        for message in messages:
            seen[message.key].append(int(message.value))
            if how == "each":
                await consumer.acknowledge(message)
        if how == "cumulative":
            await consumer.acknowledge_cumulative(messages[-1])


@pytest.mark.parametrize("partitions", [0, 1, 3])
async def test_clients_follow_a_topic_that_is_migrated_under_them(admin: Admin, partitions: int) -> None:
    if partitions:
        assert (await admin.ask("PUT", f"{CLASSIC}/partitions", partitions)).status == 204
    else:
        assert (await admin.ask("PUT", CLASSIC, {"colour": "red"})).status == 204
    async with admin.brokers.client() as one:
        producer = await one.create_producer(NAME)
        queue = await one.subscribe_queue(NAME, "queue", initial_position="earliest")
        reader = await one.create_checkpoint_consumer(NAME, start=Checkpoint.earliest())
        seen: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        await publish(producer, 0, 5)
        await take(queue, seen["queue"], "each")
        await take(reader, seen["reader"])
        kept = Checkpoint.from_bytes(reader.checkpoint().to_bytes())
        await publish(producer, 5, 10)
        sending = asyncio.ensure_future(publish(producer, 10, 30))
        answer = await admin.ask("POST", f"{SCALABLE}/migrate", None)
        assert answer.status == 204, answer.body
        await sending
        await publish(producer, 30, 35)
        await take(queue, seen["queue"], "each")
        await take(reader, seen["reader"])
        restored = await one.create_checkpoint_consumer(TOPIC.local, start=kept)
        await take(restored, seen["restored"])
        stream = await one.subscribe_stream(TOPIC.local, "stream", initial_position="earliest")
        await take(stream, seen["stream"], "cumulative")
    count = max(partitions, 1)
    record = await admin.broker.records.load(TOPIC)
    layout = layout_of(record)
    assert check(layout) == ()
    assert record.properties == ({} if partitions else {"colour": "red"})
    assert [segment.legacy_topic is not None for segment in layout.sealed] == [True] * count
    assert len(layout.active) == count
    assert all(set(segment.parents) == {s.id for s in layout.sealed} for segment in layout.active)
    for key in KEYS:
        assert seen["reader"][key] == list(range(35))
        assert seen["restored"][key] == list(range(5, 35))
        assert seen["stream"][key] == list(range(35))
        assert sorted(seen["queue"][key]) == list(range(35))
    stats = (await admin.ask("GET", f"{SCALABLE}/stats", None)).json
    assert stats["subscriptions"]["queue"]["type"] == "QUEUE"
    assert stats["subscriptions"]["queue"]["backlog"] == 0


async def test_a_stream_goes_on_where_a_classic_subscription_was(admin: Admin) -> None:
    assert (await admin.ask("PUT", f"{CLASSIC}/partitions", 2)).status == 204
    async with admin.brokers.client() as one:
        producer = await one.create_producer(NAME)
        await publish(producer, 0, 5)
        for sub in ("skipped", "whole"):
            path = f"{CLASSIC}/subscription/{sub}"
            assert (await admin.ask("PUT", path, "earliest")).status == 204
        assert (await admin.ask("POST", f"{CLASSIC}/subscription/skipped/skip_all", None)).status == 204
        assert (await admin.ask("POST", f"{SCALABLE}/migrate", None)).status == 204
        await publish(producer, 5, 8)
        for sub, first in (("skipped", 5), ("whole", 0)):
            seen: dict[str, list[int]] = defaultdict(list)
            consumers = [await one.subscribe_stream(TOPIC.local, sub) for _ in range(2)]
            for _ in range(4):
                for consumer in consumers:
                    await take(consumer, seen, "cumulative")
            for key in KEYS:
                assert seen[key] == list(range(first, 8)), sub


async def test_the_segments_that_were_partitions_are_looked_at_where_they_are(admin: Admin) -> None:
    assert (await admin.ask("PUT", f"{CLASSIC}/partitions", 2)).status == 204
    async with admin.brokers.client() as one:
        await publish(await one.create_producer(NAME), 0, 5)
    assert (await admin.ask("PUT", f"{CLASSIC}/subscription/s", "earliest")).status == 204
    assert (await admin.ask("POST", f"{SCALABLE}/migrate", None)).status == 204
    layout = layout_of(await admin.broker.records.load(TOPIC))
    backlogs = []
    for segment in layout.sealed:
        stats = await admin.ask("GET", f"{SCALABLE}/segments/{segment.id}/stats", None)
        backlogs.append(stats.json["subscriptions"]["s"]["msgBacklog"])
        path = f"/admin/v2/segments/public/default/orders/{segment.range}-{segment.id}/subscription/s"
        assert (await admin.ask("GET", f"{path}/backlog", None)).json == backlogs[-1]
    assert len(backlogs) == 2
    assert all(backlogs)
    assert (await admin.ask("POST", f"{path}/skip-all", None)).status == 204
    stats = await admin.ask("GET", f"{SCALABLE}/stats", None)
    assert stats.json["subscriptions"]["s"]["backlog"] == 0


async def test_a_subscription_made_while_a_topic_is_migrated_loses_nothing(admin: Admin) -> None:
    assert (await admin.ask("PUT", f"{CLASSIC}/partitions", 2)).status == 204
    async with admin.brokers.client() as one:
        producer = await one.create_producer(NAME)
        await publish(producer, 0, 5)
        mark = admin.broker.classic.mark_migrated

        async def slowly(name: TopicName) -> None:
            log = admin.broker.logs.get(name.partition_name(0))
            assert log is not None
            await log.subscription("late", durable=True, ordinal=log.log.extent.next_ordinal)
            await mark(name)

        admin.broker.classic.mark_migrated = slowly  # type: ignore[method-assign]
        assert (await admin.ask("POST", f"{SCALABLE}/migrate", None)).status == 204
        await publish(producer, 5, 8)
        seen: dict[str, list[int]] = defaultdict(list)
        await take(await one.subscribe_stream(TOPIC.local, "late"), seen, "cumulative")
        for key in KEYS:
            assert seen[key] == [5, 6, 7], "messages since the subscription was made, and none from before"


async def test_old_clients_are_in_the_way_unless_forced(admin: Admin) -> None:
    assert (await admin.ask("POST", f"{SCALABLE}/migrate", None)).status == 404
    assert (await admin.ask("PUT", CLASSIC, None)).status == 204
    old = await admin.brokers.connect(version="Pulsar-Java-v4.0.0")
    await old.producer(NAME, producer_name="from-before")
    refused = await admin.ask("POST", f"{SCALABLE}/migrate", None)
    assert refused.status == 409
    assert "from-before" in refused.json["reason"]
    await old.publish_all([b"one"])
    assert (await admin.ask("POST", f"{SCALABLE}/migrate?force=true", None)).status == 204
    await old.expect(pb.CommandCloseProducer)
    answer = await old.producer(NAME, producer_id=2)
    assert (type(answer), answer.error) == (pb.CommandError, pb.TopicTerminatedError)
    assert (await admin.ask("POST", f"{SCALABLE}/migrate", None)).status == 409
    await old.subscribe(NAME, "late", consumer_id=7)
    assert len(await old.deliveries(1)) == 1, "messages from before the migration can still be read"


async def test_a_migrated_topic_is_not_made_again_by_old_clients_once_retention_took_it(admin: Admin) -> None:
    assert (await admin.ask("PUT", f"{CLASSIC}/partitions", 2)).status == 204
    assert (await admin.ask("POST", f"{SCALABLE}/migrate", None)).status == 204
    retention = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    path = "/admin/v2/namespaces/public/default/retention"
    assert (await admin.ask("POST", path, retention)).status == 204
    await asyncio.sleep(600)
    layout = layout_of(await admin.broker.records.load(TOPIC))
    assert not layout.sealed, "retention deleted the segments that were classic topics"
    old = await admin.brokers.connect(version="Pulsar-Java-v4.0.0")
    answer = await old.producer(f"{NAME}-partition-0")
    assert (type(answer), answer.error) == (pb.CommandError, pb.TopicTerminatedError)
    for path in ("partitioned-stats", "partitioned-internalStats", "subscriptions"):
        await admin.ask("GET", f"{CLASSIC}/{path}", None)
    await admin.ask("PUT", f"{CLASSIC}/subscription/late", "earliest")
    assert admin.broker.logs.get(TopicName.parse(f"{NAME}-partition-0")) is None


def test_the_classic_name_of_a_migrated_topic_cannot_be_deleted(admin: Admin) -> None:
    assert admin("PUT", CLASSIC).status == 204
    assert admin("POST", f"{SCALABLE}/migrate").status == 204
    for path in (CLASSIC, f"{CLASSIC}?force=true"):
        refused = admin("DELETE", path)
        assert (refused.status, str(TOPIC) in refused.json["reason"]) == (412, True)
    assert admin("GET", f"{SCALABLE}/segments/0/stats").status == 200, "its messages are still there"
    assert admin("DELETE", SCALABLE).status == 204


def test_a_migrated_topic_gets_no_partitions(admin: Admin) -> None:
    assert admin("PUT", f"{CLASSIC}/partitions", 2).status == 204
    assert admin("POST", f"{SCALABLE}/migrate").status == 204
    refused = admin("POST", f"{CLASSIC}/partitions", 4)
    assert (refused.status, str(TOPIC) in refused.json["reason"]) == (409, True)
    assert admin("GET", f"{CLASSIC}/partitions").json["partitions"] == 2


def test_a_migrated_topic_that_was_deleted_can_be_made_again(admin: Admin) -> None:
    assert admin("PUT", CLASSIC).status == 204
    assert admin("POST", f"{SCALABLE}/migrate").status == 204
    assert admin("DELETE", SCALABLE).status == 204
    assert admin.broker.logs.get(TopicName.parse(NAME)) is None, "the old messages went with it"
    assert admin("PUT", SCALABLE).status == 204
    layout = layout_of(admin.loop.run(admin.broker.records.load(TOPIC)))
    assert all(segment.legacy_topic is None for segment in layout.segments.values())


@pytest.mark.parametrize("partitions", [0, 3])
def test_the_classic_name_leaves_the_lists_with_the_topic_that_replaced_it(
    admin: Admin, partitions: int
) -> None:
    path = f"{CLASSIC}/partitions" if partitions else CLASSIC
    assert admin("PUT", path, partitions or None).status == 204
    assert admin("PUT", f"{CLASSIC}/subscription/s", "earliest").status == 204
    assert admin("POST", f"{SCALABLE}/migrate").status == 204
    assert admin("DELETE", f"{SCALABLE}?force=true").status == 204
    namespace = CLASSIC.rpartition("/")[0]
    assert admin("GET", namespace).json == admin("GET", f"{namespace}/partitioned").json == []
    assert admin("PUT", path, partitions or None).status == 204, "the name is free again"


@pytest.mark.brokers(count=2)
@pytest.mark.parametrize("at", [0, 1])
async def test_any_broker_migrates_partitions_wherever_they_are(admin: Admin, at: int) -> None:
    assert (await admin.ask("PUT", f"{CLASSIC}/partitions", 4, at=at)).status == 204
    async with admin.brokers.client() as one:
        producer = await one.create_producer(NAME)
        await publish(producer, 0, 5)
        assert (await admin.ask("PUT", f"{CLASSIC}/subscription/s", "earliest", at=at)).status == 204
        sending = asyncio.ensure_future(publish(producer, 5, 20))
        answer = await admin.ask("POST", f"{SCALABLE}/migrate", at=at)
        assert answer.status == 204, answer.body
        await sending
        seen: dict[str, list[int]] = defaultdict(list)
        await take(await one.subscribe_stream(TOPIC.local, "s"), seen, "cumulative")
        for key in KEYS:
            assert seen[key] == list(range(20))


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_a_subscription_that_is_deleted_later_stays_gone_from_what_was_migrated(
    admin: Admin, kind: str
) -> None:
    assert (await admin.ask("PUT", f"{CLASSIC}/partitions", 2)).status == 204
    async with admin.brokers.client() as one:
        await publish(await one.create_producer(NAME), 0, 5)
        assert (await admin.ask("POST", f"{SCALABLE}/migrate", None)).status == 204
        subscribe: Any = one.subscribe_queue if kind == "queue" else one.subscribe_stream
        consumer = await subscribe(TOPIC.local, "s", initial_position="earliest")
        assert await consumer.receive_many(10, timeout=2)
        assert (await admin.ask("DELETE", f"{SCALABLE}/subscriptions/s?force=true", None)).status == 204
        with pytest.raises(SubscriptionNotFoundError):
            await take(consumer, defaultdict(list))
        await asyncio.sleep(3)
        for number in range(2):
            partition = admin.broker.logs.get(TopicName.parse(f"{NAME}-partition-{number}"))
            assert partition is not None
            assert partition.subscriptions == {}
