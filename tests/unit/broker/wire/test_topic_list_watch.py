"""Watches of topic lists (64-67): the names of a pattern first, then those that came and went."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.wire.handlers.lookup import topics_hash
from anabranch.model.names import TopicName
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, error_of, settle

ORDERS = "persistent://public/default/orders-{}"
PATTERN = "persistent://public/default/orders-.*"


async def create(brokers: Brokers, name: str, *, at: int = 0, partitions: int = 0) -> None:
    await brokers[at].classic.create(TopicName.parse(name), partitions, {})


async def watch(client: WireClient, pattern: str = PATTERN, watcher_id: int = 1, **options: Any) -> Any:
    return await client.request(
        pb.CommandWatchTopicList(
            request_id=0,
            watcher_id=watcher_id,
            namespace="public/default",
            topics_pattern=pattern,
            **options,
        )
    )


async def test_the_feature_is_announced(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert client.pump is not None
    assert isinstance(client.pump.machine, ClientMachine)
    assert client.pump.machine.server_features.supports_topic_watchers


async def test_a_watch_begins_with_the_names_of_its_pattern(brokers: Brokers) -> None:
    client = await brokers.connect()
    for name in (
        ORDERS.format(1),
        "persistent://public/default/other",
        "non-persistent://public/default/orders-9",
    ):
        await create(brokers, name)
    await create(brokers, ORDERS.format("p"), partitions=2)
    answer = await watch(client)
    names = [ORDERS.format(1), ORDERS.format("p-partition-0"), ORDERS.format("p-partition-1")]
    assert isinstance(answer, pb.CommandWatchTopicListSuccess)
    assert (answer.watcher_id, list(answer.topic), answer.topics_hash) == (1, names, topics_hash(names))
    again = await watch(client, topics_hash=answer.topics_hash)
    assert (list(again.topic), again.topics_hash) == ([], answer.topics_hash)


@pytest.mark.brokers(count=2)
async def test_new_and_deleted_topics_are_sent_also_those_of_another_broker(brokers: Brokers) -> None:
    client = await brokers.connect()
    await create(brokers, ORDERS.format(1))
    await watch(client)
    await create(brokers, "persistent://public/default/other", at=1)
    await create(brokers, ORDERS.format(2), at=1)
    update = await client.expect(pb.CommandWatchTopicUpdate)
    assert (update.watcher_id, list(update.new_topics), list(update.deleted_topics)) == (
        1,
        [ORDERS.format(2)],
        [],
    )
    assert update.topics_hash == topics_hash([ORDERS.format(1), ORDERS.format(2)])
    await brokers[1].records.delete_classic(TopicName.parse(ORDERS.format(1)))
    update = await client.expect(pb.CommandWatchTopicUpdate)
    assert (list(update.new_topics), list(update.deleted_topics)) == ([], [ORDERS.format(1)])
    assert update.topics_hash == topics_hash([ORDERS.format(2)])


async def test_a_topic_that_its_first_use_makes_is_sent(brokers: Brokers) -> None:
    client = await brokers.connect()
    await watch(client)
    await client.producer(ORDERS.format("new"))
    assert list((await client.expect(pb.CommandWatchTopicUpdate)).new_topics) == [ORDERS.format("new")]


async def test_a_closed_watch_sends_nothing(brokers: Brokers) -> None:
    client = await brokers.connect()
    await watch(client)
    closed = await client.request(pb.CommandWatchTopicListClose(request_id=0, watcher_id=1))
    assert isinstance(closed, pb.CommandSuccess)
    await create(brokers, ORDERS.format(1))
    await settle()
    assert client.has(pb.CommandWatchTopicUpdate) == []


@pytest.mark.brokers(max_message_bytes=1024)
async def test_names_that_do_not_fit_into_one_frame_follow_in_updates(brokers: Brokers) -> None:
    client = await brokers.connect()
    for name in "abcdefg":
        await create(brokers, ORDERS.format(name * 150))
    answer = await watch(client)
    update = await client.expect(pb.CommandWatchTopicUpdate)
    assert (len(answer.topic), len(update.new_topics)) == (5, 2)
    assert answer.topics_hash == update.topics_hash


@pytest.mark.parametrize("pattern", ["(?=a).*", "a" * 201, "("])
async def test_a_pattern_that_brokers_do_not_match_is_refused(brokers: Brokers, pattern: str) -> None:
    client = await brokers.connect()
    assert error_of(await watch(client, pattern)) == pb.NotAllowedError
    assert not client.hung_up


async def test_a_namespace_that_does_not_exist_is_refused(brokers: Brokers) -> None:
    client = await brokers.connect()
    answer = await client.request(
        pb.CommandWatchTopicList(request_id=0, watcher_id=1, namespace="public/no", topics_pattern=".*")
    )
    assert error_of(answer) == pb.TopicNotFound


async def test_watches_of_a_connection_are_bounded(brokers: Brokers) -> None:
    client = await brokers.connect()
    answers = [await watch(client, ".*", number) for number in range(101)]
    assert isinstance(answers[0], pb.CommandWatchTopicListSuccess)
    assert error_of(answers[-1]) == pb.TooManyRequests
