"""A right that is taken away ends open producers, consumers, registrations and watches."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from anabranch.broker.wire.revocation import concerns, open_objects
from anabranch.errors import AuthorizationError, MetadataError
from anabranch.metadata import records
from anabranch.model.names import TopicName
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.decide import RightsRules
from anabranch.rights.needs import Need, Right
from tests.harness.cluster import Brokers
from tests.harness.rights import RIGHTS, connect_as, grant
from tests.harness.security import token_for
from tests.harness.wire import WireClient, error_of, settle

CLASSIC = "persistent://shop/prod/orders"
SCALABLE = "topic://shop/prod/clicks"
SEGMENT = "segment://shop/prod/clicks/0000-ffff-0"
ALL = {"auth_policies": {"namespace_auth": {"app": ["produce", "consume"], "other": ["produce", "consume"]}}}
OTHERS = {"auth_policies": {"namespace_auth": {"other": ["produce", "consume"]}}}

pytestmark = pytest.mark.brokers(**RIGHTS)


async def make_scalable(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(TopicName.parse(SCALABLE), 1)


async def register(client: WireClient, name: str) -> Any:
    return await client.request(
        pb.CommandScalableTopicSubscribe(
            request_id=0,
            topic=SCALABLE,
            subscription="sub",
            consumer_name=name,
            consumer_id=5,
            consumer_type=pb.STREAM,
            initial_position=pb.CommandSubscribe.Earliest,
        )
    )


async def test_a_producer_is_closed_and_cannot_come_back(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    app, other = await connect_as(brokers, "app"), await connect_as(brokers, "other")
    await app.producer(CLASSIC, producer_name="a")
    await other.producer(CLASSIC, producer_name="b")
    await app.publish_all([b"0"])
    await grant(brokers, "shop/prod", OTHERS)
    closed = await app.expect(pb.CommandCloseProducer)
    assert (closed.producer_id, closed.request_id) == (1, NO_ID)
    app.publish(b"too late", 1)
    assert error_of(await app.producer(CLASSIC, producer_name="a", epoch=1)) == pb.AuthorizationError
    await other.publish_all([b"1"])
    assert not app.hung_up
    assert not other.has(pb.CommandCloseProducer)
    (noted,) = [event for event in brokers.audit.events if event.action == "revoke"]
    assert (noted.caller.role, noted.resource) == ("app", CLASSIC)


async def test_entries_taken_before_are_stored_and_answered(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    await app.producer(CLASSIC)
    for number in range(20):
        app.publish(b"x", number)
    await grant(brokers, "shop/prod", OTHERS)
    await app.expect(pb.CommandCloseProducer)
    (log,) = brokers[0].logs.served
    receipts = [await app.receipt() for _ in range(log.log.extent.next_ordinal)]
    assert [receipt.sequence_id for receipt in receipts] == list(range(len(receipts)))


async def test_a_waiting_producer_is_closed(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    app, other = await connect_as(brokers, "app"), await connect_as(brokers, "other")
    await other.producer(CLASSIC, producer_access_mode=pb.Exclusive)
    await app.producer(CLASSIC, producer_access_mode=pb.WaitForExclusive)
    await grant(brokers, "shop/prod", OTHERS)
    await app.expect(pb.CommandCloseProducer)
    (log,) = brokers[0].logs.served
    assert not log.producers.waiting


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared])
async def test_a_consumer_is_closed_and_gets_nothing_more(brokers: Brokers, kind: int) -> None:
    await grant(brokers, "shop/prod", ALL)
    app, other = await connect_as(brokers, "app"), await connect_as(brokers, "other")
    await app.subscribe(CLASSIC, "sub", kind)
    await other.producer(CLASSIC)
    await grant(brokers, "shop/prod", OTHERS)
    closed = await app.expect(pb.CommandCloseConsumer)
    assert (closed.consumer_id, closed.request_id) == (1, NO_ID)
    await other.publish_all([b"0"])
    await settle()
    assert not app.inbox
    assert error_of(await app.subscribe(CLASSIC, "sub", kind, permits=0)) == pb.AuthorizationError
    assert isinstance(await other.subscribe(CLASSIC, "sub", kind), pb.CommandSuccess)


async def test_a_reader_is_closed(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    await app.producer(CLASSIC, 9)
    assert isinstance(await app.subscribe(CLASSIC, "reader-1", durable=False), pb.CommandSuccess)
    await grant(brokers, "shop/prod", OTHERS)
    await app.expect(pb.CommandCloseConsumer)


async def test_a_registration_ends_and_its_segments_go_to_the_others(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    await make_scalable(brokers)
    app, other = await connect_as(brokers, "app"), await connect_as(brokers, "other")
    given = (await register(app, "a")).assignment
    await app.subscribe(SEGMENT, "sub", name="a", generation=given.generation)
    assert not (await register(other, "b")).HasField("error")
    await grant(brokers, "shop/prod", OTHERS)
    await settle()
    assert sorted(closed.consumer_id for closed in app.has(pb.CommandCloseConsumer)) == [1, 5]
    assert (await register(app, "a")).error == pb.AuthorizationError
    newest = other.has(pb.CommandScalableTopicAssignmentUpdate)[-1].assignment
    assert [segment.segment_topic for segment in newest.segments] == [SEGMENT]


async def test_watches_end_with_the_reason(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    await make_scalable(brokers)
    app = await connect_as(brokers, "app")
    app.send(pb.CommandScalableTopicLookup(session_id=1, topic=SCALABLE))
    assert not (await app.expect(pb.CommandScalableTopicUpdate)).HasField("error")
    app.send(pb.CommandWatchScalableTopics(watch_id=2, namespace="shop/prod"))
    await app.expect(pb.CommandWatchScalableTopicsUpdate)
    await grant(brokers, "shop/prod", OTHERS)
    layout = await app.expect(pb.CommandScalableTopicUpdate)
    assert (layout.session_id, layout.error) == (1, pb.AuthorizationError)
    topics = await app.expect(pb.CommandWatchScalableTopicsUpdate)
    assert (topics.watch_id, topics.error) == (2, pb.AuthorizationError)
    await brokers[0].controllers.create_topic(TopicName.parse("topic://shop/prod/new"), 1)
    controller = await brokers[0].controllers.controller(TopicName.parse(SCALABLE))
    await controller.split(0)
    await settle()
    assert not app.inbox, "ended watches tell nothing more"


async def test_a_subscription_that_others_get_alone_is_closed(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    await app.subscribe(CLASSIC, "theirs", consumer_id=1)
    await app.subscribe(CLASSIC, "free", consumer_id=2)
    policies = {"auth_policies": {**ALL["auth_policies"], "subscription_auth_roles": {"theirs": ["other"]}}}
    await grant(brokers, "shop/prod", policies)
    assert (await app.expect(pb.CommandCloseConsumer)).consumer_id == 1
    await settle()
    assert not app.has(pb.CommandCloseConsumer)


async def test_a_grant_on_a_topic_ends_alone(brokers: Brokers) -> None:
    topics = {name: {"app": ["produce"]} for name in (CLASSIC, "persistent://shop/prod/bills")}
    await grant(brokers, "shop/prod", {"auth_policies": {"destination_auth": topics}})
    app = await connect_as(brokers, "app")
    await app.producer(CLASSIC, 1)
    await app.producer("persistent://shop/prod/bills", 2)
    del topics[CLASSIC]
    await grant(brokers, "shop/prod", {"auth_policies": {"destination_auth": topics}})
    assert (await app.expect(pb.CommandCloseProducer)).producer_id == 1
    await settle()
    assert not app.has(pb.CommandCloseProducer)


async def test_an_admin_of_a_tenant_loses_its_rights_with_the_office(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    await grant(brokers, "shop/test")
    admin = await connect_as(brokers, "shop-admin")
    await admin.producer(CLASSIC, 1)
    await admin.producer("persistent://shop/test/orders", 2)
    namespaces = brokers[0].records.namespaces
    await namespaces.update_tenant("shop", lambda one: msgspec.structs.replace(one, admin_roles=()))
    closed = {(await admin.expect(pb.CommandCloseProducer)).producer_id for _ in range(2)}
    assert closed == {1, 2}


async def test_a_deleted_namespace_gives_no_rights(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    await app.producer(CLASSIC)
    namespaces = brokers[0].records.namespaces
    await namespaces.delete_record(records.namespace_path(records.NAMESPACES, "shop/prod"))
    await app.expect(pb.CommandCloseProducer)


async def test_superusers_and_roles_with_another_grant_stay(brokers: Brokers) -> None:
    both = {"namespace_auth": {"app": ["produce"]}, "destination_auth": {CLASSIC: {"app": ["produce"]}}}
    await grant(brokers, "shop/prod", {"auth_policies": both})
    app, root = await connect_as(brokers, "app"), await connect_as(brokers, "root")
    await app.producer(CLASSIC, producer_name="a")
    await root.producer(CLASSIC, producer_name="r")
    await grant(brokers, "shop/prod", {"auth_policies": {**both, "namespace_auth": {}}})
    await settle()
    await app.publish_all([b"0"])
    await root.publish_all([b"1"])


@pytest.mark.brokers(count=2, **RIGHTS)
async def test_every_broker_ends_the_objects_of_its_own_connections(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    await make_scalable(brokers)
    clients = [await connect_as(brokers, "app", number) for number in (0, 1)]
    for client in clients:
        client.send(pb.CommandScalableTopicLookup(session_id=1, topic=SCALABLE))
        await client.expect(pb.CommandScalableTopicUpdate)
        assert not (await register(client, f"c{clients.index(client)}")).HasField("error")
    await grant(brokers, "shop/prod", OTHERS)
    for client in clients:
        assert (await client.take(lambda c: getattr(c, "session_id", 0) == 1)).error == pb.AuthorizationError
        assert (await client.expect(pb.CommandCloseConsumer)).consumer_id == 5


class Held:
    """Stands before a coroutine function and holds its calls up until it is released."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._go = asyncio.Event()
        self.calls = 0

    def release(self) -> None:
        self._go.set()

    async def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        await self._go.wait()
        return await self._inner(*args, **options)


async def test_an_object_that_was_being_opened_is_ended_too(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    held = Held(brokers[0].classic.open)
    monkeypatch.setattr(brokers[0].classic, "open", held)
    app.send(pb.CommandProducer(topic=CLASSIC, producer_id=1, request_id=1))
    await settle()
    assert held.calls == 1
    await grant(brokers, "shop/prod", OTHERS)
    await settle()
    held.release()
    await app.expect(pb.CommandProducerSuccess)
    await app.expect(pb.CommandCloseProducer)


async def test_grants_that_change_while_they_are_read_are_read_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grant(brokers, "shop/prod")
    admin = await connect_as(brokers, "shop-admin")
    namespaces = brokers[0].records.namespaces
    held = Held(namespaces.load_namespace)
    monkeypatch.setattr(namespaces, "load_namespace", held)
    admin.send(pb.CommandProducer(topic=CLASSIC, producer_id=1, request_id=1))
    await settle()
    assert held.calls == 1, "the admins of the tenant are read, its grants are not"
    await namespaces.update_tenant("shop", lambda one: msgspec.structs.replace(one, admin_roles=()))
    held.release()
    assert error_of(await admin.expect(pb.CommandError)) == pb.AuthorizationError


async def test_a_layout_watch_that_was_being_opened_tells_nothing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    held = Held(brokers[0].classic.partitions)
    monkeypatch.setattr(brokers[0].classic, "partitions", held)
    app.send(pb.CommandScalableTopicLookup(session_id=1, topic=CLASSIC))
    await settle()
    assert held.calls == 1
    await grant(brokers, "shop/prod", OTHERS)
    await settle()
    held.release()
    await settle()
    assert [update.HasField("error") for update in app.has(pb.CommandScalableTopicUpdate)] == [True]


async def test_an_object_in_the_place_of_a_judged_one_stays(brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    await app.producer(CLASSIC)
    await app.subscribe(CLASSIC)
    (connection,) = brokers[0].connections
    judged = list(open_objects(connection, brokers[0].spawn))
    await app.request(pb.CommandCloseProducer(producer_id=1, request_id=0))
    await app.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
    await app.producer(CLASSIC)
    await app.subscribe(CLASSIC)
    for one in judged:
        one.end(AuthorizationError("too late"))
    await app.publish_all([b"0"])
    assert await app.deliveries(1)


async def test_fresh_credentials_have_the_rights_judged_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grant(brokers, "shop/prod")
    root = await connect_as(brokers, "root")
    await root.producer(CLASSIC)
    monkeypatch.setattr(brokers[0].authorizer, "rules", RightsRules())
    fresh = pb.AuthData(auth_method_name="token", auth_data=token_for("root").encode())
    root.send(pb.CommandAuthResponse(response=fresh))
    await root.expect(pb.CommandCloseProducer)


async def test_a_grant_that_cannot_be_read_ends_nothing_until_it_can(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grant(brokers, "shop/prod", ALL)
    app = await connect_as(brokers, "app")
    await app.producer(CLASSIC)
    load, failing = brokers[0].authorizer.grants.load, True

    async def load_or_fail(need: Need) -> Any:
        if failing:
            raise MetadataError("the store cannot be read")
        return await load(need)

    monkeypatch.setattr(brokers[0].authorizer.grants, "load", load_or_fail)
    await grant(brokers, "shop/prod", OTHERS)
    await settle()
    await app.publish_all([b"0"])
    failing = False
    await app.expect(pb.CommandCloseProducer)


def test_a_change_concerns_its_tenant_or_namespace_only() -> None:
    need = Need(Right.PRODUCE, "shop", "prod")
    assert all(concerns({name}, need) for name in ("", "shop", "shop/prod"))
    assert not concerns({"shop/test", "prod", "shopper", "other"}, need)
