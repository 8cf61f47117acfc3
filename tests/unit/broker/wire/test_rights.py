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
