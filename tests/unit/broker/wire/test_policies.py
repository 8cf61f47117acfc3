"""Policies that clients notice when they attach: what they may open, and what they may send."""

from __future__ import annotations

import pytest

from anabranch import AsyncClient
from anabranch.errors import SubscriptionNotFoundError
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, error_of, settle

NAMESPACE = "/admin/v2/namespaces/public/default"
CLASSIC = "/admin/v2/persistent/public/default/orders"
SCALABLE = "/admin/v2/scalable/public/default/orders"


async def set_policy(brokers: Brokers, path: str, body: object) -> None:
    assert (await Admin(brokers).ask("POST", path, body)).status == 204
    await settle()


async def made(brokers: Brokers) -> Admin:
    """The fixture `admin`, after the classic topic was made."""
    admin = Admin(brokers)
    assert (await admin.ask("PUT", CLASSIC)).status == 204
    return admin


async def test_deduplication_can_be_turned_off_for_connected_producers_too(brokers: Brokers) -> None:
    await made(brokers)
    client = await brokers.connect()
    await client.producer(producer_name="p")
    await client.publish_all([b"one"])
    client.publish(b"one", 0)
    assert (await client.receipt()).ledger == NO_ID
    await set_policy(brokers, f"{CLASSIC}/deduplicationEnabled", False)
    await client.expect(pb.CommandCloseProducer)
    assert (await client.producer(producer_id=2, producer_name="p")).last_sequence_id == -1
    client.publish(b"one", 0, producer_id=2)
    assert (await client.receipt()).ledger != NO_ID
    await set_policy(brokers, f"{CLASSIC}/deduplicationEnabled", True)
    assert (await client.producer(producer_id=3, producer_name="p")).last_sequence_id == 0


async def test_a_change_of_another_policy_disconnects_no_producer(brokers: Brokers) -> None:
    await made(brokers)
    client = await brokers.connect()
    await client.producer()
    await set_policy(brokers, f"{NAMESPACE}/messageTTL", 100)
    assert not client.has(pb.CommandCloseProducer)


async def test_without_automatic_creation_a_subscription_has_to_exist(brokers: Brokers) -> None:
    admin = await made(brokers)
    await set_policy(
        brokers, f"{NAMESPACE}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}
    )
    client = await brokers.connect()
    assert error_of(await client.subscribe(subscription="new")) == pb.SubscriptionNotFound
    assert isinstance(await client.subscribe(subscription="reader", durable=False), pb.CommandSuccess)
    first = await client.producer(producer_id=2, initial_subscription_name="new")
    assert error_of(first) == pb.NotAllowedError
    assert (await admin.ask("PUT", f"{CLASSIC}/subscription/new", "earliest")).status == 204
    assert isinstance(await client.subscribe(subscription="new", consumer_id=3), pb.CommandSuccess)


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_scalable_topic_has_no_automatic_subscriptions_either(brokers: Brokers, kind: str) -> None:
    admin = Admin(brokers)
    name = SCALABLE.replace("orders", "streams")
    assert (await admin.ask("PUT", name)).status == 204
    await set_policy(brokers, f"{name}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    async with brokers.client() as client:
        with pytest.raises(SubscriptionNotFoundError):
            await _open(client, kind)
        wanted = f"{name}/subscriptions/s?type={kind.upper()}"
        assert (await admin.ask("PUT", wanted)).status == 204
        await _open(client, kind)


async def _open(client: AsyncClient, kind: str) -> None:
    open_ = client.subscribe_stream if kind == "stream" else client.subscribe_queue
    await open_("topic://public/default/streams", "s")


async def test_only_the_types_of_subscriptions_that_are_enabled_can_be_used(brokers: Brokers) -> None:
    await made(brokers)
    await set_policy(brokers, f"{CLASSIC}/subscriptionTypesEnabled", ["Shared"])
    client = await brokers.connect()
    refused = await client.subscribe()
    assert error_of(refused) == pb.NotAllowedError
    assert "subscriptionTypesEnabled" in refused.message
    shared = await client.subscribe(kind=pb.CommandSubscribe.Shared, consumer_id=2)
    assert isinstance(shared, pb.CommandSuccess)


async def test_a_namespace_may_demand_encryption_of_producers_and_of_each_entry(brokers: Brokers) -> None:
    await set_policy(brokers, f"{NAMESPACE}/encryptionRequired", True)
    client = await brokers.connect()
    refusal = await client.producer()
    assert error_of(refusal) == pb.MetadataError
    assert refusal.message.startswith("Encryption is required in persistent://public/default/")
    assert isinstance(await client.producer(producer_id=2, encrypted=True), pb.CommandProducerSuccess)
    client.publish(b"plain", 0, producer_id=2)
    refused = await client.expect(pb.CommandSendError)
    assert refused.error == pb.NotAllowedError
    assert "encrypted" in refused.message


async def test_a_topic_may_take_only_small_messages(brokers: Brokers) -> None:
    await made(brokers)
    client = await brokers.connect()
    await client.producer()
    await set_policy(brokers, f"{CLASSIC}/maxMessageSize", 100)
    await client.expect(pb.CommandCloseProducer)
    await client.producer(producer_id=2)
    await client.publish_all([bytes(100)], producer_id=2)
    client.publish(bytes(101), 1, producer_id=2)
    refused = await client.expect(pb.CommandSendError)
    assert "maxMessageSize=100" in refused.message


async def test_a_topic_may_have_other_counts_than_its_namespace(brokers: Brokers) -> None:
    await made(brokers)
    await set_policy(brokers, f"{NAMESPACE}/maxProducersPerTopic", 1)
    await set_policy(brokers, f"{CLASSIC}/maxProducers", 2)
    await set_policy(brokers, f"{CLASSIC}/maxSubscriptionsPerTopic", 1)
    client = await brokers.connect()
    for number, granted in ((1, True), (2, True), (3, False)):
        answer = await client.producer(producer_id=number)
        assert isinstance(answer, pb.CommandProducerSuccess) == granted
    other = "persistent://public/default/other"
    assert isinstance(await client.producer(other, 4), pb.CommandProducerSuccess)
    assert error_of(await client.producer(other, 5)) == pb.ProducerBusy
    assert isinstance(await client.subscribe(), pb.CommandSuccess)
    assert error_of(await client.subscribe(subscription="more", consumer_id=2)) == pb.NotAllowedError


async def test_unacknowledged_messages_of_a_consumer_and_a_subscription_are_limited(brokers: Brokers) -> None:
    await made(brokers)
    await set_policy(brokers, f"{CLASSIC}/maxUnackedMessagesOnConsumer", 3)
    await set_policy(brokers, f"{CLASSIC}/maxUnackedMessagesOnSubscription", 5)
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % n for n in range(20)])
    for number in (1, 2):
        await client.subscribe(TOPIC, kind=pb.CommandSubscribe.Shared, consumer_id=number)
    await settle()
    held = await client.deliveries(5)
    await settle()
    assert max(sum(one.consumer_id == number for one in held) for number in (1, 2)) <= 3
    assert not client.has(type(held[0]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("maxUnackedMessagesOnConsumer", pb.CommandSubscribe.Shared),
        ("maxUnackedMessagesOnConsumer", pb.CommandSubscribe.Key_Shared),
        ("maxUnackedMessagesOnSubscription", pb.CommandSubscribe.Shared),
        ("maxUnackedMessagesOnSubscription", pb.CommandSubscribe.Key_Shared),
    ],
)
async def test_connected_consumers_follow_another_limit_of_unacknowledged_messages(
    brokers: Brokers, name: str, kind: int
) -> None:
    await made(brokers)
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(TOPIC, kind=kind)
    await set_policy(brokers, f"{CLASSIC}/{name}", 3)
    await client.publish_all([b"%d" % n for n in range(20)])
    await settle()
    held = await client.deliveries(3)
    assert not client.has(type(held[0]))
    await set_policy(brokers, f"{CLASSIC}/{name}", 5)
    await settle()
    held += await client.deliveries(2)
    assert not client.has(type(held[0]))
    client.acknowledge(*held)
    await settle()
    await client.deliveries(5)
    await set_policy(brokers, f"{CLASSIC}/{name}", 0)
    await client.deliveries(10)
