"""The check of rights before a command is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from anabranch.errors import MetadataError
from anabranch.metadata.namespaces import NamespaceStore
from anabranch.metadata.records import NamespaceRecord
from anabranch.metadata.store import MetadataStore, Stored
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights import table
from tests.harness.cluster import Brokers
from tests.harness.rights import RIGHTS, connect_as, grant
from tests.harness.wire import error_of, look_up

TOPIC = "persistent://shop/prod/orders"
APP = {"auth_policies": {"namespace_auth": {"app": ["produce"], "reader": ["consume"]}}}

pytestmark = pytest.mark.brokers(**RIGHTS)


async def test_a_role_does_what_it_was_granted_and_nothing_else(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    app, reader = await connect_as(brokers, "app"), await connect_as(brokers, "reader")
    assert isinstance(await app.producer(TOPIC), pb.CommandProducerSuccess)
    assert error_of(await app.subscribe(TOPIC)) == pb.AuthorizationError
    assert isinstance(await reader.subscribe(TOPIC), pb.CommandSuccess)
    assert error_of(await reader.producer(TOPIC)) == pb.AuthorizationError


async def test_the_answer_is_the_same_for_missing_and_existing_topics(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    root, other = await connect_as(brokers, "root"), await connect_as(brokers, "other")
    assert isinstance(await root.producer(TOPIC), pb.CommandProducerSuccess)
    missing = "persistent://no/where/orders"
    refusals = [await other.producer(name) for name in (TOPIC, missing)]
    assert {error_of(refusal) for refusal in refusals} == {pb.AuthorizationError}
    assert refusals[0].message.replace(TOPIC, missing) == refusals[1].message


async def test_a_grant_and_its_end_count_at_once(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    app = await connect_as(brokers, "app")
    assert error_of(await app.producer(TOPIC)) == pb.AuthorizationError
    await grant(brokers, "shop/prod", APP)
    assert isinstance(await app.producer(TOPIC), pb.CommandProducerSuccess)
    await grant(brokers, "shop/prod")
    assert error_of(await app.producer(TOPIC, 2)) == pb.AuthorizationError


class SlowGets:
    """Stands before a metadata store, and awaits a function between a read and its answer."""

    def __init__(self, inner: MetadataStore, between: Callable[[str], Awaitable[object]]) -> None:
        self._inner = inner
        self._between = between

    async def get(self, path: str) -> Stored | None:
        found = await self._inner.get(path)
        await self._between(path)
        return found


@contextmanager
def slow_reads(brokers: Brokers, between: Callable[[str], Awaitable[object]]) -> Iterator[None]:
    """Await a function between each read of grants and its answer."""
    namespaces = brokers[0].records.namespaces
    sound = namespaces.store
    namespaces.store = SlowGets(sound, between)  # type: ignore[assignment]
    yield
    namespaces.store = sound


async def test_a_command_behind_one_whose_grants_are_read_waits_for_it(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    app = await connect_as(brokers, "app")
    with slow_reads(brokers, lambda _: asyncio.sleep(0.5)):
        app.send(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
        app.send(pb.CommandCloseProducer(producer_id=1, request_id=2))
        app.send(pb.CommandProducer(topic=TOPIC, producer_id=2, request_id=3))
        await app.take(lambda c: getattr(c, "request_id", None) == 3)
    (connection,) = brokers[0].connections
    assert list(connection.producers) == [2]


async def test_a_connection_that_ends_while_grants_are_read_opens_nothing(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    app = await connect_as(brokers, "app")
    with slow_reads(brokers, lambda _: asyncio.sleep(0.5)):
        app.send(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
        await asyncio.sleep(0.1)
        (connection,) = brokers[0].connections
        connection.hang_up()
        await asyncio.sleep(2.0)
    assert not brokers[0].connections
    assert not await brokers[0].classic.list("shop/prod")


async def test_a_role_is_refused_while_its_grants_cannot_be_read(brokers: Brokers) -> None:
    async def fail(path: str) -> None:
        raise MetadataError("the store cannot be read")

    await grant(brokers, "shop/prod", APP)
    app = await connect_as(brokers, "app")
    with slow_reads(brokers, fail):
        assert error_of(await app.producer(TOPIC)) == pb.MetadataError
    assert isinstance(await app.producer(TOPIC), pb.CommandProducerSuccess)


async def test_grants_that_change_while_they_are_read_are_read_again(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    app = await connect_as(brokers, "app")
    elsewhere = NamespaceStore(brokers.stores[0])

    async def revoke(path: str) -> None:
        if path == "/namespaces/shop/prod":
            await elsewhere.update_namespace("shop/prod", lambda r: NamespaceRecord() if r.policies else r)
            await asyncio.sleep(0.1)

    with slow_reads(brokers, revoke):
        await app.producer(TOPIC)
    assert error_of(await app.producer(TOPIC, 2)) == pb.AuthorizationError


async def test_a_first_subscription_needs_the_right_to_consume(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    app = await connect_as(brokers, "app")
    refused = await app.producer(TOPIC, initial_subscription_name="billing")
    assert error_of(refused) == pb.AuthorizationError


async def test_layouts_are_watched_with_a_right_on_the_topic(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    app, other = await connect_as(brokers, "app"), await connect_as(brokers, "other")
    topic = "topic://shop/prod/orders"
    assert (await look_up(app, topic, create_if_missing=True)).dag.segments
    assert (await look_up(other, topic)).error == pb.AuthorizationError


async def test_a_command_without_a_line_in_the_table_is_not_served(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await connect_as(brokers, "root")
    monkeypatch.delitem(table.COMMANDS, pb.CommandLookupTopic)
    answer = await root.request(pb.CommandLookupTopic(topic=TOPIC, request_id=0))
    assert answer.error == pb.AuthorizationError


ONE_TOPIC = {
    "auth_policies": {
        "destination_auth": {"persistent://public/default/orders": {"app": ["produce", "consume"]}}
    }
}


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "public/default/orders",
        "persistent://public/default/orders",
        "persistent://public/default/orders-partition-12",
    ],
)
async def test_every_spelling_of_a_granted_topic_is_the_granted_topic(brokers: Brokers, name: str) -> None:
    await grant(brokers, "public/default", ONE_TOPIC)
    app = await connect_as(brokers, "app")
    assert isinstance(await app.producer(name), pb.CommandProducerSuccess)


@pytest.mark.parametrize(
    "name",
    [
        "Orders",
        "orders2",
        "orders-partition-",
        "orders-partition-01",
        "orders-partition-1-partition-2",
        "%6frders",
        "persistent://public/default/%6frders",
        "persistent://public/Default/orders",
        "segment://public/default/orders/x/0000-ffff-0",
        "topic://public/default/orders/x",
    ],
)
async def test_no_spelling_of_another_topic_is_the_granted_topic(brokers: Brokers, name: str) -> None:
    await grant(brokers, "public/default", ONE_TOPIC)
    app = await connect_as(brokers, "app")
    assert error_of(await app.producer(name)) == pb.AuthorizationError


@pytest.mark.parametrize(
    "name", ["public//orders", " orders", "a/b", "topic://public/default/../orders", "x://a/b/c"]
)
async def test_a_text_that_is_no_name_is_refused_as_such(brokers: Brokers, name: str) -> None:
    app = await connect_as(brokers, "app")
    assert error_of(await app.producer(name)) == pb.InvalidTopicName


async def test_a_segment_needs_the_rights_of_its_topic(brokers: Brokers) -> None:
    await grant(brokers, "public/default", ONE_TOPIC)
    app, other = await connect_as(brokers, "app"), await connect_as(brokers, "other")
    await look_up(app, create_if_missing=True)
    segment = "segment://public/default/orders/0000-ffff-0"
    assert isinstance(await app.producer(segment), pb.CommandProducerSuccess)
    assert error_of(await other.producer(segment)) == pb.AuthorizationError
    assert error_of(await other.subscribe(segment)) == pb.AuthorizationError


async def test_a_subscription_of_a_whole_topic_needs_more_than_a_right_on_one_partition(
    brokers: Brokers,
) -> None:
    name = "persistent://shop/prod/orders-partition-1"
    await grant(brokers, "shop/prod", {"auth_policies": {"destination_auth": {name: {"app": ["consume"]}}}})
    app = await connect_as(brokers, "app")
    assert isinstance(await app.subscribe(name), pb.CommandSuccess)
    assert error_of(await app.subscribe(name, consumer_id=2, opened_in=0)) == pb.AuthorizationError


@pytest.mark.brokers(**RIGHTS, count=2)
async def test_all_brokers_follow_the_grants(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    clients = [await connect_as(brokers, "app", number) for number in (0, 1)]
    lookup = pb.CommandLookupTopic(topic=TOPIC, request_id=0)
    for policies, expected in (({}, pb.AuthorizationError), (APP, 0), ({}, pb.AuthorizationError)):
        await grant(brokers, "shop/prod", policies)
        assert [(await client.request(lookup)).error for client in clients] == [expected] * 2
