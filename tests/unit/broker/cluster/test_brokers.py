"""Brokers that work together: each takes requests for segments and topics of the other."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from anabranch.broker.cluster import peer_link
from anabranch.controller import lifecycle
from anabranch.errors import (
    LayoutError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.model.names import Place, TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, settle, value_of

pytestmark = pytest.mark.brokers(count=2)

ORDERS = TopicName.parse("topic://public/default/orders")


async def hand_over() -> None:
    """Let the stores of a broker that went or came find their owners."""
    await asyncio.sleep(10.0)


async def watch(client: WireClient, topic: TopicName = ORDERS, session: int = 1) -> pb.ScalableTopicDAG:
    client.send(pb.CommandScalableTopicLookup(session_id=session, topic=str(topic), create_if_missing=True))
    return (await client.expect(pb.CommandScalableTopicUpdate)).dag


async def look_up(client: WireClient, topic: str) -> str:
    answer = await client.request(pb.CommandLookupTopic(topic=topic, request_id=0))
    assert answer.response == pb.CommandLookupTopicResponse.Connect, answer
    return str(answer.brokerServiceUrl)


def segments_of(dag: pb.ScalableTopicDAG) -> dict[str, int]:
    """The number of the owner of each segment, by the segment's name."""
    urls = {owner.segment_id: owner.broker_url for owner in dag.segment_brokers}
    names = {
        s.segment_id: f"segment://public/default/orders/{s.hash_start:04x}-{s.hash_end:04x}-{s.segment_id}"
        for s in dag.segments
    }
    return {names[id_]: int(url.split("-")[1].split(":")[0]) for id_, url in urls.items()}


async def test_segments_of_a_topic_are_spread_over_brokers_and_every_broker_says_where(
    brokers: Brokers,
) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 4)
    dags = [await watch(await brokers.connect(number)) for number in (0, 1)]
    owners = [segments_of(dag) for dag in dags]
    assert owners[0] == owners[1]
    assert sorted(owners[0].values()) == [0, 0, 1, 1]
    leader = brokers[brokers.leader_of(ORDERS)].url
    assert {dag.controller_broker_url for dag in dags} == {leader}
    for number in (0, 1):
        client = await brokers.connect(number)
        for name, owner in owners[0].items():
            assert await look_up(client, name) == brokers[owner].url
        assert await look_up(client, str(ORDERS)) == leader


async def test_any_broker_takes_any_change_and_raises_what_the_leader_raised(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    other = brokers[1 - brokers.leader_of(ORDERS)]
    controller = await other.controllers.controller(ORDERS)
    layout = await controller.split(0)
    assert (layout.epoch, len(layout.active)) == (1, 3)
    with pytest.raises(LayoutError, match="sealed"):
        await controller.split(0)
    with pytest.raises(SubscriptionNotFoundError):
        await controller.skip_all("nobody")
    await controller.ensure_subscription("s", "STREAM", "earliest")
    await controller.set_properties({"team": "blue"})
    assert (await controller.stats())["activeSegments"] == 3
    assert (await controller.explain())["epoch"] == 1
    merged = await controller.merge([segment.id for segment in layout.active])
    assert len(merged.active) == 1
    assert (await other.records.load(ORDERS)).properties == {"team": "blue"}
    await other.controllers.delete_topic(ORDERS)
    with pytest.raises(TopicNotFoundError):
        await other.controllers.controller(ORDERS)
    await settle()
    assert [name for s in brokers.storages.values() for name in s.names()] == []


async def test_brokers_that_have_as_many_calls_under_way_as_they_may_do_not_wait_for_each_other(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "PENDING_MAX", 3)

    names = [TopicName.parse(f"topic://public/default/t{number}") for number in range(16)]
    for name in names:
        await brokers[0].controllers.create_topic(name, 2)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def subscribe(name: TopicName) -> None:
        other = brokers[1 - brokers.leader_of(name)]
        controller = await other.controllers.controller(name)
        await controller.ensure_subscription("s", "STREAM", "earliest")

    await asyncio.gather(*(subscribe(name) for name in names))
    assert loop.time() - began < 5.0


async def test_a_layout_is_told_by_every_broker_as_it_is_committed(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    here, there = await brokers.connect(leader), await brokers.connect(1 - leader)
    for client in (here, there):
        assert (await watch(client)).epoch == 0
    controller = await brokers[leader].controllers.controller(ORDERS)
    for epoch in (1, 2, 3):
        layout = await controller.split(brokers[leader].controllers.layouts()[ORDERS].active[0].id)
        for client in (here, there):
            update = await client.expect(pb.CommandScalableTopicUpdate)
            assert update.dag.epoch == layout.epoch == epoch
    for client in (here, there):
        assert not client.has(pb.CommandScalableTopicUpdate)
    await controller.delete()
    for client in (here, there):
        assert (await client.expect(pb.CommandScalableTopicUpdate)).error == pb.TopicNotFound


async def test_messages_go_to_the_owner_and_another_broker_sends_clients_there(brokers: Brokers) -> None:
    dag = await watch(await brokers.connect(0))
    (name, owner), *_ = segments_of(dag).items()
    client, wrong = await brokers.connect(owner), await brokers.connect(1 - owner)
    refused = await wrong.producer(name)
    assert refused.error == pb.ServiceNotReady
    assert "look it up again" in refused.message
    await client.producer(name)
    await client.publish_all([b"one", b"two"])
    assert isinstance(await client.subscribe(name, subscription="q", kind=1), pb.CommandSuccess)
    assert [value_of(d) for d in await client.deliveries(2)] == [b"one", b"two"]


async def test_a_layout_is_told_again_when_owners_change_and_never_an_older_one(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 4)
    client = await brokers.connect(0)
    first = await watch(client)
    await brokers.stop(1)
    await hand_over()
    updates = [u.dag for u in client.has(pb.CommandScalableTopicUpdate)]
    assert {dag.epoch for dag in updates} == {first.epoch}
    assert set(segments_of(updates[-1]).values()) == {0}
    assert updates[-1].controller_broker_url == brokers[0].url
    client.inbox.clear()
    await brokers.start(1)
    await hand_over()
    last = [u.dag for u in client.has(pb.CommandScalableTopicUpdate)][-1]
    assert (last.epoch, segments_of(last)) == (first.epoch, segments_of(first))


async def test_a_topic_lives_on_with_its_messages_when_its_broker_is_stopped(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    owners = segments_of(await watch(await brokers.connect(0)))
    for name, owner in owners.items():
        client = await brokers.connect(owner)
        await client.producer(name)
        await client.publish_all([name.encode()])
    await brokers.stop(1)
    await hand_over()
    client = await brokers.connect(0)
    for number, name in enumerate(owners):
        assert await look_up(client, name) == brokers[0].url
        await client.subscribe(name, "q", kind=1, consumer_id=number)
        (delivery,) = await client.deliveries(1, consumer_id=number)
        assert value_of(delivery) == name.encode()
    layout = await (await brokers[0].controllers.controller(ORDERS)).split(0)
    assert layout.epoch == 1


async def test_a_drain_at_one_broker_reaches_the_leader_at_another(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    owners = segments_of(await watch(await brokers.connect(0)))
    name = next(name for name, owner in owners.items() if owner != leader)
    parent = int(name.rpartition("-")[2])
    controller = await brokers[leader].controllers.lead(ORDERS)
    await controller.ensure_subscription("s", "QUEUE", "earliest")
    client = await brokers.connect(1 - leader)
    await client.producer(name)
    await client.publish_all([b"one"])
    await controller.split(parent)
    await client.subscribe(name, "s", kind=1)
    (delivery,) = await client.deliveries(1)
    assert parent not in controller.records["s"].drained
    await client.acknowledge_durably(delivery)
    await settle()
    assert parent in controller.records["s"].drained


async def test_classic_topics_are_spread_and_each_broker_says_where(brokers: Brokers) -> None:
    topic = TopicName.parse("persistent://public/default/parts")
    await brokers[0].classic.create(topic, 4)
    clients = [await brokers.connect(number) for number in (0, 1)]
    names = [str(topic.partition_name(index)) for index in range(4)]
    urls = [[await look_up(client, name) for name in names] for client in clients]
    assert urls[0] == urls[1]
    assert sorted(urls[0]) == sorted([brokers[0].url, brokers[1].url] * 2)
    refused = await clients[0].producer(names[urls[0].index(brokers[1].url)])
    assert refused.error == pb.ServiceNotReady
    for name, url in zip(names, urls[0], strict=True):
        client = clients[0 if url == brokers[0].url else 1]
        made = await client.producer(name, producer_id=int(name[-1]))
        assert isinstance(made, pb.CommandProducerSuccess)
    # A topic that does not exist yet is made at the broker to which every broker sends its clients.
    fresh = "persistent://public/default/fresh"
    url = await look_up(clients[0], fresh)
    assert url == await look_up(clients[1], fresh)
    client = clients[0 if url == brokers[0].url else 1]
    assert isinstance(await client.producer(fresh, producer_id=9), pb.CommandProducerSuccess)


async def test_a_client_that_a_lookup_sent_to_a_broker_creates_its_topic_there(
    brokers: Brokers,
) -> None:
    clients = [await brokers.connect(number) for number in (0, 1)]
    for number in range(8):
        name = f"persistent://public/default/fresh-{number}"
        made = await clients[1].producer(name, producer_id=number)
        assert isinstance(made, pb.CommandProducerSuccess)
        assert [await look_up(client, name) for client in clients] == [brokers[1].url] * 2


async def test_a_change_that_was_begun_is_finished_by_the_next_owner_of_the_home_store(
    brokers: Brokers,
) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    controller = await brokers[leader].controllers.lead(ORDERS)
    split = asyncio.get_running_loop().create_task(controller.split(0))
    async with asyncio.timeout(10.0):
        while controller.record.intent is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await brokers.stop(leader)
    await asyncio.gather(split, return_exceptions=True)
    await hand_over()
    record = await brokers[1 - leader].records.load(ORDERS)
    assert (record.epoch, record.intent) == (1, None)
    assert brokers.leader_of(ORDERS) == 1 - leader


async def test_a_topic_that_is_deleted_and_made_again_elsewhere_is_another_one(brokers: Brokers) -> None:
    client = await brokers.connect(0, "Pulsar-Java-v5.0.0-M1")
    epochs = [(await watch(client)).epoch]
    for number in (1, 0, 1):
        await brokers[number].controllers.delete_topic(ORDERS)
        await brokers[1 - number].controllers.create_topic(ORDERS, 2)
        epochs.append((await client.expect(pb.CommandScalableTopicUpdate)).dag.epoch)
    assert epochs == sorted(set(epochs))
    await settle()
    names = sorted(name for storage in brokers.storages.values() for name in storage.names())
    assert len(names) == 2, "the deleted topic is swept"


async def test_requests_wait_for_a_leader_and_fail_politely_when_none_comes(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    other = brokers[1 - leader]
    await brokers.stop(leader)
    asked = asyncio.get_running_loop().time()
    controller = await other.controllers.controller(ORDERS)
    assert asyncio.get_running_loop().time() - asked < 10.0
    assert (await controller.stats())["epoch"] == 0
    record = await other.records.load(ORDERS)
    await other.records.update(ORDERS, lambda r: msgspec.structs.replace(record, store=7))
    await other.controllers.store_closing(record.store)
    with pytest.raises(ServiceNotReadyError, match="store 7"):
        await other.controllers.controller(ORDERS)


async def test_a_topic_that_many_make_at_once_by_looking_is_made_once(brokers: Brokers) -> None:
    clients = [await brokers.connect(number % 2) for number in range(6)]
    dags = await asyncio.gather(*(watch(client) for client in clients))
    assert len({(dag.epoch, dag.controller_broker_url) for dag in dags}) == 1
    names = [name for storage in brokers.storages.values() for name in storage.names()]
    assert len(names) == 1


@pytest.mark.parametrize("number", [0, 1])
async def test_a_topic_whose_creator_died_is_finished_by_a_lookup_at_any_broker(
    brokers: Brokers, number: int
) -> None:
    await lifecycle.record_topic(brokers[0].controllers.context, ORDERS, 4, {})
    dag = await watch(await brokers.connect(number))
    assert sorted(segments_of(dag).values()) == [0, 0, 1, 1]
    record = await brokers[0].records.load(ORDERS)
    assert record.intent is None


@pytest.mark.parametrize("what", ["created", "migrated"])
async def test_a_topic_whose_creator_died_is_finished_at_its_home_without_a_lookup(
    brokers: Brokers, what: str
) -> None:
    await hand_over()
    context = brokers[0].controllers.context
    if what == "created":
        await lifecycle.record_topic(context, ORDERS, 4, {})
    else:
        old = TopicName.parse("persistent://public/default/orders")
        await brokers[1].logs.make(old, 1)
        await lifecycle.record_migration(context, ORDERS, lifecycle.Migration([Place(old, 1)], {}, {}))
    await asyncio.sleep(30.0)
    record = await brokers[0].records.load(ORDERS)
    assert record.intent is None
    assert brokers.leader_of(ORDERS) == record.store
