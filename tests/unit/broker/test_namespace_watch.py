"""Namespace watches (76-78), also when the metadata store is slow or silent, and when names come again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from anabranch.errors import MetadataError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import World
from tests.harness.wire import (
    WireClient,
    settle,
)

A, B = "topic://public/default/a", "topic://public/default/b"


async def create(world: World, name: str) -> None:
    await world.broker.controllers.create_topic(TopicName.parse(name))


async def delete(world: World, name: str) -> None:
    await world.broker.controllers.delete_topic(TopicName.parse(name))


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


def look_by(world: World, look: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
    """Let `look` decide how the next reads of the namespace go."""
    topics = world.broker.records
    load_all = topics.load_all
    topics.load_all = lambda namespace: look(lambda: load_all(namespace))  # type: ignore[assignment,return-value]


async def test_a_topic_deleted_and_made_again_in_one_moment_is_gone_and_new(world: World) -> None:
    client = await world.connect()
    await create(world, A)
    watch(client)
    await settle()
    client.inbox.clear()
    await delete(world, A)
    await create(world, A)
    await settle()
    (update,) = client.has(pb.CommandWatchScalableTopicsUpdate)
    assert (list(update.diff.removed), list(update.diff.added)) == ([A], [A])


async def test_a_topic_comes_and_goes_with_the_property_that_is_asked_for(world: World) -> None:
    client = await world.connect()
    await create(world, A)
    await create(world, B)
    blue = [pb.KeyValue(key="team", value="blue")]
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default", property_filters=blue))
    await settle()
    controller = await world.broker.controllers.controller(TopicName.parse(A))
    for value in ("blue", "red", "blue", None):
        await controller.set_properties({"team": value})
        await settle()
    assert told(client) == [set(), {A}, set(), {A}, set()]


async def test_a_slow_look_never_tells_what_is_over_by_then(world: World) -> None:
    client = await world.connect()
    watch(client)
    await settle()
    waits_s = iter((1.0, 0.0))

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        found = await load()
        await asyncio.sleep(next(waits_s, 0.0))
        return found

    look_by(world, look)
    await create(world, A)
    await asyncio.sleep(0.2)
    await create(world, B)
    await asyncio.sleep(3)
    assert told(client) == [set(), {A}, {A, B}]


async def test_a_change_before_the_snapshot_is_sent_is_announced_after_it(world: World) -> None:
    client = await world.connect()
    waits_s = iter((1.0, 0.0))

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        found = await load()
        await asyncio.sleep(next(waits_s, 0.0))
        return found

    look_by(world, look)
    watch(client)
    await asyncio.sleep(0.2)
    await create(world, A)
    await asyncio.sleep(3)
    assert told(client) == [set(), {A}]


async def test_a_change_that_could_not_be_read_is_told_when_it_can(world: World) -> None:
    client = await world.connect()
    watch(client)
    await settle()
    fails = iter((True, True))

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        if next(fails, False):
            raise MetadataError("the store is down")
        return await load()

    look_by(world, look)
    await create(world, A)
    await asyncio.sleep(3)
    assert told(client) == [set(), {A}]


async def test_a_namespace_is_not_read_again_for_what_happens_within_its_topics(world: World) -> None:
    client = await world.connect()
    await create(world, A)
    watch(client)
    await settle()

    looks = 0

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal looks
        looks += 1
        return await load()

    look_by(world, look)
    controller = await world.broker.controllers.controller(TopicName.parse(A))
    await controller.ensure_subscription("sub", "STREAM", "earliest")
    await asyncio.sleep(3)
    assert looks == 0


async def test_a_watch_that_is_closed_during_a_look_hears_nothing_more(world: World) -> None:
    client = await world.connect()
    watch(client)
    await settle()

    async def look(load: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(1)
        return await load()

    look_by(world, look)
    await create(world, A)
    await asyncio.sleep(0.2)
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=1))
    await asyncio.sleep(3)
    assert told(client) == [set()]


async def test_a_thousand_watches_that_came_and_went_leave_nothing(world: World) -> None:
    await create(world, A)
    await settle()
    before = len(world.stores[0].watches)
    for _ in range(10):
        client = await world.connect()
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
    assert len(world.stores[0].watches) == before


async def test_a_namespace_watch_starts_with_all_topics_and_tells_what_changes(world: World) -> None:
    client = await world.connect()
    service = world.broker.controllers
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


async def test_a_namespace_watch_stays_silent_for_a_client_that_is_up_to_date(world: World) -> None:
    client = await world.connect()
    client.send(
        pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default", current_hash="00000000")
    )
    client.send(pb.CommandWatchScalableTopics(watch_id=2, namespace="nowhere"))
    client.send(pb.CommandWatchScalableTopics(watch_id=3, namespace="public/absent"))
    await settle()
    answers = {c.watch_id: c.error for c in client.has(pb.CommandWatchScalableTopicsUpdate)}
    assert answers == {2: pb.InvalidTopicName, 3: pb.TopicNotFound}
