"""Quotas that count clients, subscriptions, connections and topics, as clients of two brokers notice them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.errors import LimitExceededError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import SCALABLE_TOPIC, WireClient, register_consumer, settle

pytestmark = pytest.mark.brokers(count=2)

NAMESPACE = "/admin/v2/namespaces/public/default"
SHARED = pb.CommandSubscribe.Shared
CLASSIC = "persistent://public/default/classic"
ORDERS = TopicName.parse(SCALABLE_TOPIC)


async def limit(brokers: Brokers, **policies: int) -> None:
    for name, value in policies.items():
        assert (await Admin(brokers).ask("POST", f"{NAMESPACE}/{name}", value)).status == 204
    await settle()


async def limit_tenant(brokers: Brokers, **quotas: object) -> None:
    assert (await Admin(brokers).ask("POST", "/admin/v2/tenants/public/quotas", quotas)).status == 204
    await settle()


def refusal(answer: Any, code: int) -> str:
    """Return the text of a refusal with this code."""
    assert getattr(answer, "error", None) == code, answer
    return str(answer.message)


async def segments(brokers: Brokers, count: int = 2) -> list[tuple[WireClient, str]]:
    """Make a topic whose segments have different owners; return a client of each owner, and its segment."""
    await brokers[0].controllers.create_topic(ORDERS, count)
    record = await brokers[0].records.load(ORDERS)
    found = []
    for segment in record.segments.values():
        owner = brokers[0].directory.owner_of(segment.store)
        assert owner is not None
        start, end = segment.hash_range.start, segment.hash_range.end
        name = f"segment://public/default/orders/{start:04x}-{end:04x}-{segment.segment_id}"
        found.append((await brokers.connect(owner.id), name))
    return found


async def owner_of(brokers: Brokers, topic: str = CLASSIC) -> int:
    owner = await brokers[0].owners.owner_of(TopicName.parse(topic))
    return 0 if owner is None else owner.id


async def test_a_classic_topic_has_only_so_many_producers(brokers: Brokers) -> None:
    await limit(brokers, maxProducersPerTopic=2)
    client = await brokers.connect(await owner_of(brokers))
    for number in (1, 2):
        assert isinstance(await client.producer(CLASSIC, producer_id=number), pb.CommandProducerSuccess)
    text = refusal(await client.producer(CLASSIC, producer_id=3), pb.ProducerBusy)
    assert "maxProducersPerTopic=2" in text
    await client.request(pb.CommandCloseProducer(producer_id=1, request_id=0))
    assert isinstance(await client.producer(CLASSIC, producer_id=3), pb.CommandProducerSuccess)


async def test_producers_that_come_at_once_do_not_exceed_the_limit(brokers: Brokers) -> None:
    await limit(brokers, maxProducersPerTopic=3)
    owner = await owner_of(brokers)
    clients = [await brokers.connect(owner) for _ in range(10)]
    answers = await asyncio.gather(*(client.producer(CLASSIC) for client in clients))
    assert sum(isinstance(answer, pb.CommandProducerSuccess) for answer in answers) == 3


async def test_consumers_of_one_name_that_come_at_once_do_not_exceed_the_limit(brokers: Brokers) -> None:
    await limit_tenant(brokers, maxConsumers=3)
    clients = [await brokers.connect(await owner_of(brokers, CLASSIC)) for _ in range(8)]
    answers = await asyncio.gather(
        *(client.subscribe(CLASSIC, kind=SHARED, name="same") for client in clients)
    )
    assert sum(isinstance(answer, pb.CommandSuccess) for answer in answers) == 3


async def test_a_client_that_is_refused_for_another_reason_does_not_count(brokers: Brokers) -> None:
    await limit(brokers, maxProducersPerTopic=2, maxConsumersPerTopic=2)
    one, two = [await brokers.connect(await owner_of(brokers, CLASSIC)) for _ in range(2)]
    await one.producer(CLASSIC, producer_name="a")
    await one.subscribe(CLASSIC)
    for _ in range(2):
        assert "named a" in refusal(await two.producer(CLASSIC, producer_name="a"), pb.ProducerBusy)
        assert "exclusive" in refusal(await two.subscribe(CLASSIC), pb.ConsumerBusy)
    assert isinstance(await two.producer(CLASSIC, producer_name="b"), pb.CommandProducerSuccess)
    assert isinstance(await two.subscribe(CLASSIC, "other"), pb.CommandSuccess)


async def test_a_producer_counts_once_on_all_segments_of_all_brokers(brokers: Brokers) -> None:
    (one, first), (two, second) = await segments(brokers)
    await limit(brokers, maxProducersPerTopic=2)
    for name in ("a", "b"):
        number = ord(name)
        for client, segment in ((one, first), (two, second)):
            answer = await client.producer(segment, producer_id=number, producer_name=name)
            assert isinstance(answer, pb.CommandProducerSuccess)
    for client, segment in ((one, first), (two, second)):
        refusal(await client.producer(segment, producer_id=1, producer_name="c"), pb.ProducerBusy)
    two.close()
    await settle()
    # The producer is still attached to the other segment.
    refusal(await one.producer(first, producer_id=1, producer_name="c"), pb.ProducerBusy)
    one.close()
    await settle()
    again = await brokers.connect(0)
    here = first if await owner_of(brokers, first) == 0 else second
    assert isinstance(await again.producer(here, producer_name="c"), pb.CommandProducerSuccess)


async def test_the_counts_of_a_dead_broker_are_gone_with_it(brokers: Brokers) -> None:
    (one, first), (two, second) = await segments(brokers)
    await limit(brokers, maxProducersPerTopic=1)
    await two.producer(second, producer_name="a")
    refusal(await one.producer(first, producer_name="b"), pb.ProducerBusy)
    brokers.kill(await owner_of(brokers, second))
    await asyncio.sleep(10.0)
    assert isinstance(await one.producer(first, producer_name="b"), pb.CommandProducerSuccess)


@pytest.mark.parametrize("policy", ["maxConsumersPerTopic", "maxConsumersPerSubscription"])
async def test_a_classic_topic_has_only_so_many_consumers(brokers: Brokers, policy: str) -> None:
    await limit(brokers, **{policy: 2})
    client = await brokers.connect(await owner_of(brokers))
    for number in (1, 2):
        # Consumers of one name are several all the same.
        assert isinstance(
            await client.subscribe(CLASSIC, kind=SHARED, consumer_id=number, name="same"), pb.CommandSuccess
        )
    refused = await client.subscribe(CLASSIC, kind=SHARED, consumer_id=3)
    assert f"{policy}=2" in refusal(refused, pb.ConsumerBusy)
    other = await client.subscribe(CLASSIC, subscription="other", kind=SHARED, consumer_id=4)
    assert isinstance(other, pb.CommandSuccess) == (policy == "maxConsumersPerSubscription")
    client.close()
    await settle()
    client = await brokers.connect(await owner_of(brokers))
    assert isinstance(await client.subscribe(CLASSIC, kind=SHARED, consumer_id=3), pb.CommandSuccess)


async def test_a_refused_consumer_leaves_no_subscription_behind(brokers: Brokers) -> None:
    await limit(brokers, maxConsumersPerTopic=1)
    client = await brokers.connect(await owner_of(brokers))
    await client.subscribe(CLASSIC, kind=SHARED)
    refusal(
        await client.subscribe(CLASSIC, subscription="other", kind=SHARED, consumer_id=2), pb.ConsumerBusy
    )
    path = "/admin/v2/persistent/public/default/classic/subscriptions"
    assert (await Admin(brokers).ask("GET", path)).json == ["sub"]


async def test_queue_consumers_count_once_on_all_segments(brokers: Brokers) -> None:
    (one, first), (two, second) = await segments(brokers)
    await limit(brokers, maxConsumersPerSubscription=2)
    for name in ("a", "b"):
        for client, segment in ((one, first), (two, second)):
            answer = await client.subscribe(
                segment, kind=SHARED, consumer_id=ord(name), name=name, subscription="queue"
            )
            assert isinstance(answer, pb.CommandSuccess), answer
    refused = await two.subscribe(second, kind=SHARED, consumer_id=1, name="c", subscription="queue")
    assert "maxConsumersPerSubscription=2" in refusal(refused, pb.ConsumerBusy)


async def test_registered_consumers_count_and_need_no_place_for_their_segments(brokers: Brokers) -> None:
    (one, _), (two, _) = await segments(brokers)
    await limit(brokers, maxConsumersPerSubscription=2)
    for name, client in (("a", one), ("b", two)):
        registered = await register_consumer(client, name)
        assert not registered.HasField("error"), registered
        for at, assigned in enumerate(registered.assignment.segments):
            owner = await brokers[0].owners.owner_of(TopicName.parse(assigned.segment_topic))
            assert owner is not None
            reader = await brokers.connect(owner.id)
            answer = await reader.subscribe(
                assigned.segment_topic,
                subscription="stream",
                consumer_id=10 + at,
                name=name,
                generation=registered.assignment.generation,
            )
            assert isinstance(answer, pb.CommandSuccess), answer
            reader.close()
    refused = await register_consumer(two, "c", consumer_id=3)
    assert "maxConsumersPerSubscription=2" in refusal(refused, pb.ConsumerBusy)
    await one.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    await settle()
    assert not (await register_consumer(two, "c", consumer_id=3)).HasField("error")


async def test_a_topic_has_only_so_many_subscriptions(brokers: Brokers) -> None:
    (one, first), _ = await segments(brokers)
    await limit(brokers, maxSubscriptionsPerTopic=1)
    for client, topic in ((one, first), (await brokers.connect(await owner_of(brokers)), CLASSIC)):
        assert isinstance(await client.subscribe(topic, kind=SHARED), pb.CommandSuccess)
        for number in (2, 3):
            assert isinstance(
                await client.subscribe(topic, kind=SHARED, consumer_id=number), pb.CommandSuccess
            )
        refused = await client.subscribe(topic, subscription="other", kind=SHARED, consumer_id=4)
        assert "maxSubscriptionsPerTopic=1" in refusal(refused, pb.NotAllowedError)
    for path in (
        "persistent/public/default/classic/subscription",
        "scalable/public/default/orders/subscriptions",
    ):
        created = await Admin(brokers).ask("PUT", f"/admin/v2/{path}/other")
        assert created.status == 412
        assert "maxSubscriptionsPerTopic=1" in created.json["reason"]


@pytest.mark.parametrize("scalable", [True, False])
async def test_subscriptions_that_come_at_once_do_not_exceed_the_limit(
    brokers: Brokers, scalable: bool
) -> None:
    (_, first), _ = await segments(brokers)
    await limit(brokers, maxSubscriptionsPerTopic=2, maxConsumersPerTopic=100)
    topic = first if scalable else CLASSIC
    clients = [await brokers.connect(await owner_of(brokers, topic)) for _ in range(6)]
    answers = await asyncio.gather(
        *(client.subscribe(topic, f"s{number}", SHARED) for number, client in enumerate(clients))
    )
    assert sum(isinstance(answer, pb.CommandSuccess) for answer in answers) == 2, answers


async def test_a_tenant_has_only_so_many_subscriptions(brokers: Brokers) -> None:
    (one, first), _ = await segments(brokers)
    await limit_tenant(brokers, maxSubscriptions=2)
    classic = await brokers.connect(await owner_of(brokers))
    assert isinstance(await one.subscribe(first, kind=SHARED), pb.CommandSuccess)
    assert isinstance(await classic.subscribe(CLASSIC, kind=SHARED), pb.CommandSuccess)
    for client, topic in ((one, first), (classic, CLASSIC)):
        refused = await client.subscribe(topic, subscription="third", kind=SHARED, consumer_id=9)
        assert "tenant public has 2 subscriptions" in refusal(refused, pb.NotAllowedError)


async def test_a_tenant_has_only_so_many_clients_over_all_brokers(brokers: Brokers) -> None:
    (one, first), (two, second) = await segments(brokers)
    await limit_tenant(brokers, maxProducers=2, maxConsumers=1)
    for client, segment in ((one, first), (two, second)):
        answer = await client.producer(segment, producer_name="a")
        assert isinstance(answer, pb.CommandProducerSuccess)
    classic = await brokers.connect(await owner_of(brokers))
    assert isinstance(await classic.producer(CLASSIC), pb.CommandProducerSuccess)
    assert "maxProducers=2" in refusal(await classic.producer(CLASSIC, producer_id=2), pb.ProducerBusy)
    assert isinstance(await one.subscribe(first, kind=SHARED), pb.CommandSuccess)
    assert "maxConsumers=1" in refusal(await classic.subscribe(CLASSIC, kind=SHARED), pb.ConsumerBusy)


async def test_a_connection_counts_for_the_tenants_whose_topics_it_uses(brokers: Brokers) -> None:
    (one, first), (two, second) = await segments(brokers)
    idle = await brokers.connect(0)
    await limit_tenant(brokers, maxConnections=1)
    assert isinstance(await one.producer(first, producer_name="a"), pb.CommandProducerSuccess)
    assert isinstance(await one.subscribe(first, kind=SHARED), pb.CommandSuccess)
    refused = await two.producer(second, producer_name="a")
    assert "maxConnections=1" in refusal(refused, pb.ProducerBusy)
    one.close()
    await settle()
    assert isinstance(await two.producer(second, producer_name="a"), pb.CommandProducerSuccess)
    assert not idle.hung_up


async def test_topics_are_counted_exactly_over_all_brokers(brokers: Brokers) -> None:
    await limit(brokers, maxTopicsPerNamespace=3)
    names = [f"/admin/v2/scalable/public/default/t{n}" for n in range(4)]
    names += [f"/admin/v2/persistent/public/default/c{n}" for n in range(4)]
    admin = Admin(brokers)
    answers = await asyncio.gather(*(admin.ask("PUT", name) for name in names))
    assert sorted(answer.status for answer in answers) == [204] * 3 + [412] * 5
    assert all("maxTopicsPerNamespace=3" in a.json["reason"] for a in answers if a.status == 412)
    made = [name for name, answer in zip(names, answers, strict=True) if answer.status == 204]
    assert (await admin.ask("DELETE", made[0])).status == 204
    await settle()
    assert (await admin.ask("PUT", names[0])).status in (204, 409)


async def test_partitions_count_as_topics_as_in_pulsar(brokers: Brokers) -> None:
    await limit(brokers, maxTopicsPerNamespace=4)
    admin, path = Admin(brokers), "/admin/v2/persistent/public/default/parts/partitions"
    assert (await admin.ask("PUT", path, 5)).status == 412
    assert (await admin.ask("PUT", path, 3)).status == 204
    assert (await admin.ask("POST", path, 5)).status == 412
    assert (await admin.ask("POST", path, 4)).status == 204
    client = await brokers.connect(0)
    refusal(await client.producer("persistent://public/default/more"), pb.NotAllowedError)
    assert (await admin.ask("POST", "/admin/v2/scalable/public/default/parts/migrate")).status == 204


async def test_a_topic_is_not_created_on_first_use_beyond_the_limit(brokers: Brokers) -> None:
    await limit_tenant(brokers, maxTopics=1)
    client = await brokers.connect(0)
    client.send(pb.CommandScalableTopicLookup(session_id=1, topic=SCALABLE_TOPIC, create_if_missing=True))
    await client.expect(pb.CommandScalableTopicUpdate)
    client.send(
        pb.CommandScalableTopicLookup(session_id=2, topic=f"{SCALABLE_TOPIC}2", create_if_missing=True)
    )
    refused = await client.take(lambda command: getattr(command, "session_id", None) == 2)
    assert refused.error == pb.NotAllowedError
    assert "maxTopics=1" in refused.message


async def test_brokers_that_create_the_same_topic_at_once_need_one_place(brokers: Brokers) -> None:
    await limit_tenant(brokers, maxTopics=1)
    async with brokers[0].records.claim(ORDERS, 1), brokers[1].records.claim(ORDERS, 1):
        with pytest.raises(LimitExceededError, match="maxTopics=1"):
            await brokers[0].controllers.create_topic(TopicName.parse(f"{SCALABLE_TOPIC}2"))


async def test_the_claim_of_a_process_that_died_ends(brokers: Brokers) -> None:
    await limit(brokers, maxTopicsPerNamespace=1)
    room = brokers[0].records.room
    assert room is not None
    dead = room.claim(ORDERS, 1)
    await dead.__aenter__()
    admin, path = Admin(brokers), "/admin/v2/scalable/public/default/other"
    assert (await admin.ask("PUT", path)).status == 412
    await asyncio.sleep(61.0)
    assert (await admin.ask("PUT", path)).status == 204
    await dead.__aexit__(None, None, None)


@pytest.mark.brokers(count=1, connections_per_address_max=2)
async def test_one_address_has_only_so_many_connections(brokers: Brokers) -> None:
    clients = [await brokers.connect() for _ in range(3)]
    await settle()
    assert [client.hung_up for client in clients] == [False, False, True]
    assert "brokerMaxConnectionsPerIp=2" in clients[2].has(pb.CommandError)[0].message
    clients[0].close()
    await settle()
    clients.append(await brokers.connect())
    await settle()
    assert not clients[3].hung_up


async def test_refusals_and_use_are_visible(brokers: Brokers) -> None:
    await limit_tenant(brokers, maxProducers=1)
    client = await brokers.connect(await owner_of(brokers))
    await client.producer(CLASSIC)
    for number in (2, 3):
        refusal(await client.producer(CLASSIC, producer_id=number), pb.ProducerBusy)
    await client.subscribe(CLASSIC)
    admin = Admin(brokers)
    for _ in range(2):
        usage = await admin.ask("GET", "/admin/v2/tenants/public/usage")
        assert usage.json == {
            "connections": 1,
            "namespaces": 1,
            "topics": 1,
            "subscriptions": 1,
            "producers": 1,
            "consumers": 1,
        }
    owner = await owner_of(brokers)
    metrics = (await admin.ask("GET", "/metrics")).body.decode()
    labels = f'{{worker="{owner}",policy="maxProducers",tenant="public"}}'
    assert f"anabranch_quota_refusals_total{labels} 2" in metrics
    assert (await admin.ask("GET", "/admin/v2/tenants/absent/usage")).status == 404
