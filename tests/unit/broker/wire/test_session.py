"""Lookups, topic lists, schemas, and answers to unsupported commands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.broker.wire.handlers.lookup import topics_hash
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.loop import SimLoop
from simulation.world.transport import Mode
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, error_of, settle


class SilentClient(asyncio.Protocol):
    """A client that sends nothing; it adds itself to `ended` when the broker hangs up."""

    def __init__(self, ended: list[asyncio.BaseProtocol]) -> None:
        self._ended = ended

    def itself(self) -> SilentClient:
        return self

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.append(self)


async def test_every_name_is_looked_up_here(brokers: Brokers) -> None:
    client = await brokers.connect()
    for name in (TOPIC, "x", "topic://public/default/x", "segment://public/default/x/0000-ffff-0"):
        found = await client.request(pb.CommandLookupTopic(topic=name, request_id=0))
        assert found.response == pb.CommandLookupTopicResponse.Connect
        assert found.brokerServiceUrl == brokers[0].url
        assert found.authoritative
    bad = await client.request(pb.CommandLookupTopic(topic="a/b", request_id=0))
    assert (bad.response, bad.error) == (pb.CommandLookupTopicResponse.Failed, pb.InvalidTopicName)


async def test_an_unknown_listener_is_refused(brokers: Brokers) -> None:
    client = await brokers.connect()

    async def look_up(listener: str) -> Any:
        lookup = pb.CommandLookupTopic(topic=TOPIC, request_id=0, advertised_listener_name=listener)
        return await client.request(lookup)

    refused = await look_up("inside")
    assert (refused.response, refused.error) == (refused.Failed, pb.NotAllowedError)
    assert "inside" in refused.message
    # The C++ client sends an empty name for none.
    assert (await look_up(" ")).response == pb.CommandLookupTopicResponse.Connect


async def test_partitions_are_those_that_are_recorded(brokers: Brokers) -> None:
    client = await brokers.connect()
    await brokers[0].classic.create(TopicName.parse("persistent://public/default/four"), partitions=4)

    async def ask(topic: str, **options: Any) -> pb.CommandPartitionedTopicMetadataResponse:
        answer = await client.request(
            pb.CommandPartitionedTopicMetadata(topic=topic, request_id=0, **options)
        )
        assert isinstance(answer, pb.CommandPartitionedTopicMetadataResponse)
        return answer

    assert (await ask("four")).partitions == 4
    assert (await ask("four-partition-1")).partitions == 0
    assert (await ask("absent")).partitions == 0
    assert (await ask("absent", metadata_auto_creation_enabled=False)).error == pb.TopicNotFound
    assert (await ask("topic://public/default/t")).partitions == 0
    assert (await ask("non-persistent://public/default/t")).partitions == 0
    assert error_of(await client.producer("four")) == pb.NotAllowedError
    assert isinstance(await client.producer("four-partition-3"), pb.CommandProducerSuccess)
    assert error_of(await client.producer("four-partition-4", producer_id=2)) == pb.TopicNotFound


async def test_topics_are_listed_with_a_hash_that_saves_the_next_list(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer("b", producer_id=1)
    await client.producer("a", producer_id=2)
    await brokers[0].classic.create(TopicName.parse("persistent://public/default/p"), partitions=2)
    first = await client.request(pb.CommandGetTopicsOfNamespace(request_id=0, namespace="public/default"))
    assert list(first.topics) == [
        f"persistent://public/default/{name}" for name in ("a", "b", "p-partition-0", "p-partition-1")
    ]
    assert not first.filtered
    again = await client.request(
        pb.CommandGetTopicsOfNamespace(
            request_id=0, namespace="public/default", topics_hash=first.topics_hash
        )
    )
    assert (again.changed, list(again.topics)) == (False, [])
    bad = await client.request(pb.CommandGetTopicsOfNamespace(request_id=0, namespace="x"))
    assert error_of(bad) == pb.InvalidTopicName


def test_the_hash_of_topic_names_is_the_upstream_one() -> None:
    names = [f"persistent://my-property/my-ns/pattern-topic-{n}" for n in (3, 1, 2)]
    assert topics_hash(names) == "90d4a04a"
    assert topics_hash(names[1:2]) == "0d0602ed"
    assert topics_hash([]) == "00000000"


async def test_schemas_are_numbered_and_shared_by_all_producers_of_a_topic(brokers: Brokers) -> None:
    client = await brokers.connect()
    text = pb.Schema(name="", schema_data=b'"int"', type=pb.Schema.Json)
    newer = pb.Schema(name="", schema_data=b'{"type":"int","a":1}', type=pb.Schema.Json)
    first = await client.producer(producer_id=1, schema=text)
    second = await client.producer(producer_id=2, schema=newer)
    third = await client.producer(producer_id=3, schema=text)
    assert (first.schema_version, second.schema_version) == (bytes(8), bytes(7) + b"\x01")
    assert third.schema_version == first.schema_version
    other = pb.Schema(name="", schema_data=b"", type=pb.Schema.String)
    assert error_of(await client.producer(producer_id=4, schema=other)) == pb.IncompatibleSchema
    latest = await client.request(pb.CommandGetSchema(request_id=0, topic=TOPIC))
    assert latest.schema.schema_data == b'{"type":"int","a":1}'
    old = await client.request(
        pb.CommandGetSchema(request_id=0, topic=TOPIC, schema_version=first.schema_version)
    )
    assert old.schema.schema_data == b'"int"'
    await brokers.restart()
    client = await brokers.connect()
    again = await client.request(pb.CommandGetOrCreateSchema(request_id=0, topic=TOPIC, schema=newer))
    assert again.schema_version == second.schema_version
    none = await client.request(pb.CommandGetSchema(request_id=0, topic="other"))
    assert none.error_code == pb.TopicNotFound
    absent = await client.request(pb.CommandGetOrCreateSchema(request_id=0, topic="other", schema=newer))
    assert absent.error_code == pb.TopicNotFound
    auto = pb.Schema(name="", schema_data=b"", type=pb.Schema.AutoConsume)
    assert isinstance(await client.subscribe(schema=auto), pb.CommandSuccess)


async def test_a_command_without_a_handler_is_answered_in_its_own_form(brokers: Brokers) -> None:
    client = await brokers.connect()
    new = await client.request(pb.CommandNewTxn(request_id=0, tc_id=3))
    assert (new.error, new.txnid_most_bits) == (pb.NotAllowedError, 3)
    for command in (
        pb.CommandTcClientConnectRequest(request_id=0, tc_id=0),
        pb.CommandAddPartitionToTxn(request_id=0),
        pb.CommandAddSubscriptionToTxn(request_id=0),
        pb.CommandEndTxn(request_id=0),
        pb.CommandEndTxnOnPartition(request_id=0),
        pb.CommandEndTxnOnSubscription(request_id=0),
    ):
        answer = await client.request(command)
        assert answer.error == pb.NotAllowedError
        assert answer.message
    client.send(pb.CommandWatchTcAssignments(watch_id=4))
    assert (await client.expect(pb.CommandWatchTcAssignmentsUpdate)).error == pb.NotAllowedError
    assert not client.hung_up


async def test_a_command_that_only_brokers_send_is_passed_over(brokers: Brokers) -> None:
    client = await brokers.connect()
    client.send(pb.CommandSuccess(request_id=1))
    client.flow(5, consumer_id=99)
    await settle()
    assert client.inbox == []
    assert isinstance(await client.producer(), pb.CommandProducerSuccess)


@pytest.mark.brokers(connections_max=2)
async def test_connections_beyond_the_limit_are_told_and_closed(brokers: Brokers) -> None:
    await brokers.connect()
    await brokers.connect()
    third = await brokers.connect()
    refused = await third.expect(pb.CommandError)
    assert refused.error == pb.NotAllowedError
    await settle()
    assert third.hung_up
    assert len(brokers[0].connections) == 2


@pytest.mark.brokers(connections_max=1, handshake_timeout_s=10)
async def test_silent_connections_make_room_and_end_in_time(brokers: Brokers) -> None:
    door = brokers[0].limits.door
    client = await brokers.connect()
    ended: list[asyncio.BaseProtocol] = []
    silent = [SilentClient(ended) for _ in range(2 * door.open_max)]
    config = brokers[0].config
    for one in silent:
        await asyncio.get_running_loop().create_connection(one.itself, config.host, config.port)
    await settle()
    assert set(ended) == set(silent[: door.open_max + 1])
    assert len(door) == door.open_max
    assert isinstance(await client.producer(), pb.CommandProducerSuccess)
    await asyncio.sleep(10)
    assert len(ended) == len(silent)
    assert (len(door), door.waiting) == (1, 0)
    client.send(pb.CommandPing())
    await settle()
    assert not client.hung_up


async def test_a_dead_holder_of_a_name_makes_room_after_a_question(brokers: Brokers) -> None:
    one = await brokers.connect()
    await one.producer(producer_name="p")
    await one.subscribe()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    assert loop.network is not None
    link = loop.network.links()[0]
    loop.network.set_mode(link, Mode.BLACK_HOLE)
    connection = next(iter(brokers[0].connections))
    connection.send(pb.CommandPing())
    await settle()
    loop.network.set_mode(link, Mode.OPEN)
    two = await brokers.connect()
    assert isinstance(await two.producer(producer_name="p"), pb.CommandProducerSuccess)
    assert isinstance(await two.subscribe(), pb.CommandSuccess)


async def test_a_producer_closed_while_it_opens_is_not_left_behind(brokers: Brokers) -> None:
    client = await brokers.connect()
    subscribe = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=1
    )
    client.send(subscribe)
    client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=2))
    client.send(pb.CommandProducer(topic=TOPIC, producer_name="p", producer_id=2, request_id=3))
    client.send(pb.CommandCloseProducer(producer_id=2, request_id=4))
    await settle()
    other = await brokers.connect()
    assert isinstance(await other.producer(producer_name="p"), pb.CommandProducerSuccess)
    assert isinstance(await other.request(subscribe), pb.CommandSuccess)
