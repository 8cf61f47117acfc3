"""Namespace watches (76-78), also when the metadata store is slow or silent, and when names come again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from anabranch.errors import MetadataError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import (
    WireClient,
    settle,
)

A, B = "topic://public/default/a", "topic://public/default/b"


async def create(brokers: Brokers, name: str) -> None:
    await brokers[0].controllers.create_topic(TopicName.parse(name))


async def delete(brokers: Brokers, name: str) -> None:
    await brokers[0].controllers.delete_topic(TopicName.parse(name))


def watch(client: WireClient) -> None:
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default"))


def told(client: WireClient) -> list[set[str]]:
    """The topics that the client knows after each update; the first update must be a snapshot."""
    known: list[set[str]] = []
    for update in client.has(pb.CommandWatchScalableTopicsUpdate):
        if update.HasField("snapshot"):
            known.append(set(update.snapshot.topics))
            continue
        assert set(update.diff.removed) <= known[-1]
        known.append(known[-1] - set(update.diff.removed) | set(update.diff.added))
    return known


def look_by(brokers: Brokers, look: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
    """Let `look` decide how the next reads of the namespace go."""
    topics = brokers[0].records
    load_all = topics.load_all
    topics.load_all = lambda namespace: look(lambda: load_all(namespace))  # type: ignore[assignment,return-value]


async def test_a_topic_deleted_and_made_again_in_one_moment_is_gone_and_new(brokers: Brokers) -> None:
    client = await brokers.connect()
    await create(brokers, A)
    watch(client)
    await settle()
    client.inbox.clear()
    await delete(brokers, A)
    await create(brokers, A)
    await settle()
    (update,) = client.has(pb.CommandWatchScalableTopicsUpdate)
    assert (list(update.diff.removed), list(update.diff.added)) == ([A], [A])


async def test_a_topic_comes_and_goes_with_the_property_that_is_asked_for(brokers: Brokers) -> None:
    client = await brokers.connect()
    await create(brokers, A)
    await create(brokers, B)
    blue = [pb.KeyValue(key="team", value="blue")]
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default", property_filters=blue))
    await settle()
    controller = await brokers[0].controllers.controller(TopicName.parse(A))
    for value in ("blue", "red", "blue", None):
        await controller.set_properties({"team": value})
        await settle()
    assert told(client) == [set(), {A}, set(), {A}, set()]


async def test_a_slow_look_never_tells_what_is_over_by_then(brokers: Brokers) -> None:
    client = await brokers.connect()
    watch(client)
    await settle()
    waits_s = iter((1.0, 0.0))

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        found = await load()
        await asyncio.sleep(next(waits_s, 0.0))
        return found

    look_by(brokers, look)
    await create(brokers, A)
    await asyncio.sleep(0.2)
    await create(brokers, B)
    await asyncio.sleep(3)
    assert told(client) == [set(), {A}, {A, B}]


async def test_a_change_before_the_snapshot_is_sent_is_announced_after_it(brokers: Brokers) -> None:
    client = await brokers.connect()
    waits_s = iter((1.0, 0.0))

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        found = await load()
        await asyncio.sleep(next(waits_s, 0.0))
        return found

    look_by(brokers, look)
    watch(client)
    await asyncio.sleep(0.2)
    await create(brokers, A)
    await asyncio.sleep(3)
    assert told(client) == [set(), {A}]


async def test_a_change_that_could_not_be_read_is_told_when_it_can(brokers: Brokers) -> None:
    client = await brokers.connect()
    watch(client)
    await settle()
    fails = iter((True, True))

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        if next(fails, False):
            raise MetadataError("the store is down")
        return await load()

    look_by(brokers, look)
    await create(brokers, A)
    await asyncio.sleep(3)
    assert told(client) == [set(), {A}]


async def test_a_namespace_is_not_read_again_for_what_happens_within_its_topics(brokers: Brokers) -> None:
    client = await brokers.connect()
    await create(brokers, A)
    watch(client)
    await settle()

    looks = 0

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal looks
        looks += 1
        return await load()

    look_by(brokers, look)
    controller = await brokers[0].controllers.controller(TopicName.parse(A))
    await controller.ensure_subscription("sub", "STREAM", "earliest")
    await asyncio.sleep(3)
    assert looks == 0


async def test_a_watch_that_is_closed_during_a_look_hears_nothing_more(brokers: Brokers) -> None:
    client = await brokers.connect()
    watch(client)
    await settle()

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(1)
        return await load()

    look_by(brokers, look)
    await create(brokers, A)
    await asyncio.sleep(0.2)
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=1))
    await asyncio.sleep(3)
    assert told(client) == [set()]


async def test_a_thousand_watches_that_came_and_went_leave_nothing(brokers: Brokers) -> None:
    await create(brokers, A)
    await settle()
    before = len(brokers.stores[0].watches)
    for _ in range(10):
        client = await brokers.connect()
        for number in range(100):
            client.send(pb.CommandWatchScalableTopics(watch_id=number, namespace="public/default"))
            client.send(pb.CommandScalableTopicLookup(session_id=number, topic=A))
        await settle()
        assert len(client.has(pb.CommandScalableTopicUpdate)) == 100
        for number in range(0, 100, 2):
            client.send(pb.CommandWatchScalableTopicsClose(watch_id=number))
            client.send(pb.CommandScalableTopicClose(session_id=number))
        await settle()
        client.close()
        await settle()
    assert len(brokers.stores[0].watches) == before


async def test_a_namespace_watch_starts_with_all_topics_and_tells_what_changes(brokers: Brokers) -> None:
    client = await brokers.connect()
    service = brokers[0].controllers
    await service.create_topic(TopicName.parse("topic://public/default/a"), 1, {"team": "x"})
    await service.create_topic(TopicName.parse("topic://public/default/b"), 1, {"team": "y"})
    mine = [pb.KeyValue(key="team", value="x")]
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default"))
    client.send(pb.CommandWatchScalableTopics(watch_id=2, namespace="public/default", property_filters=mine))
    neither = [pb.KeyValue(key="team", value="y"), *mine]
    client.send(
        pb.CommandWatchScalableTopics(watch_id=3, namespace="public/default", property_filters=neither)
    )
    everything = await client.take(lambda c: getattr(c, "watch_id", None) == 1)
    filtered = await client.take(lambda c: getattr(c, "watch_id", None) == 2)
    nothing = await client.take(lambda c: getattr(c, "watch_id", None) == 3)
    assert list(everything.snapshot.topics) == ["topic://public/default/a", "topic://public/default/b"]
    assert list(filtered.snapshot.topics) == ["topic://public/default/a"]
    assert list(nothing.snapshot.topics) == []
    await service.create_topic(TopicName.parse("topic://public/default/c"), 1, {"team": "x"})
    await service.delete_topic(TopicName.parse("topic://public/default/a"))
    await settle()
    updates = client.has(pb.CommandWatchScalableTopicsUpdate)
    changes = [update.diff for update in updates if update.watch_id == 2]
    assert [name for diff in changes for name in diff.added] == ["topic://public/default/c"]
    assert [name for diff in changes for name in diff.removed] == ["topic://public/default/a"]
    client.inbox.clear()
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=1))
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=2))
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=3))
    await settle()
    await service.delete_topic(TopicName.parse("topic://public/default/c"))
    await settle()
    assert client.inbox == []


async def test_a_namespace_watch_stays_silent_for_a_client_that_is_up_to_date(brokers: Brokers) -> None:
    client = await brokers.connect()
    client.send(
        pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default", current_hash="00000000")
    )
    client.send(pb.CommandWatchScalableTopics(watch_id=2, namespace="nowhere"))
    client.send(pb.CommandWatchScalableTopics(watch_id=3, namespace="public/absent"))
    await settle()
    answers = {c.watch_id: c.error for c in client.has(pb.CommandWatchScalableTopicsUpdate)}
    assert answers == {2: pb.InvalidTopicName, 3: pb.TopicNotFound}
