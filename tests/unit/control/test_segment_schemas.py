"""Schemas through a control process: each segment's topic at Pulsar numbers its versions itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from anabranch import AsyncClient, Backoff, Checkpoint, DeadLetter, Schema
from anabranch.control.cluster_admin import PulsarOwner
from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.cluster.pulsar import SimPulsar
from simulation.world.loop import SimLoop
from tests.harness.cluster import PORT, TOPIC, Brokers, host_of
from tests.harness.control_plane import ControlProcesses

HOLDER = 9
LOWER = "persistent://public/default/orders.segment-0000-7fff-0"
UPPER = "persistent://public/default/orders.segment-8000-ffff-1"
CLASSIC = "persistent://public/default/returns"
FIRST, SECOND = bytes(8), bytes(7) + b"\x01"


@dataclass
class Tin:
    weight: int


@dataclass
class NewTin:
    """A later version of Tin."""

    weight: int
    colour: str = "brown"


Tin.__name__ = NewTin.__name__ = "Tin"
OLD, NEW = Schema.avro(Tin), Schema.avro(NewTin)


def data_of(schema: Schema[Any]) -> bytes:
    assert schema.definition is not None
    return schema.definition.data


class HeldPulsar(SimPulsar):
    """A cluster whose topics are those of another broker of the simulation."""

    async def owner(self, topic: TopicName) -> PulsarOwner:
        await super().owner(topic)
        return PulsarOwner(f"pulsar://{host_of(HOLDER)}:{PORT}")


class HeldTopics:
    """A control process, and the broker that holds the messages of its topics."""

    def __init__(self, loop: SimLoop) -> None:
        self.holder = Brokers(loop)
        # Both are on the network that was made last.
        self.control = ControlProcesses(loop)
        self.control.pulsar = HeldPulsar()

    def client(self) -> AsyncClient:
        return self.control.client()

    async def write(self, topic: str, schema: Schema[Any], *values: Any) -> None:
        """Send values to a topic of the broker; another schema is a new version of this topic alone."""
        async with (
            self.holder.client(HOLDER) as client,
            await client.create_producer(topic, schema=schema) as producer,
        ):
            for value in values:
                await producer.send(value, key="k")


@pytest.fixture
async def held(loop: SimLoop) -> AsyncIterator[HeldTopics]:
    """A scalable topic of two segments: the first knows two schemas, the other one the second of them."""
    held = HeldTopics(loop)
    await held.control.start_all()
    await held.holder.start(HOLDER)
    await held.control[0].controllers.create_topic(TopicName.parse(TOPIC), 2)
    await held.write(LOWER, OLD, Tin(1))
    await held.write(LOWER, NEW, NewTin(2, "red"))
    await held.write(UPPER, NEW, NewTin(3, "blue"))
    yield held
    await held.control.stop_all()
    await held.holder.stop_all()


async def values(consumer: Any, count: int) -> list[Any]:
    found = [(await consumer.receive(timeout=10)).value for _ in range(count)]
    return sorted(found, key=lambda value: value["weight"] if isinstance(value, dict) else value.weight)


async def test_the_same_version_of_two_segments_is_two_schemas(held: HeldTopics) -> None:
    async with held.client() as client:
        queue = await client.subscribe_queue(
            TOPIC, "q", schema=Schema.auto_consume(), initial_position="earliest"
        )
        assert await values(queue, 3) == [
            {"weight": 1},
            {"weight": 2, "colour": "red"},
            {"weight": 3, "colour": "blue"},
        ]
        typed = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest(), schema=NEW)
        assert await values(typed, 3) == [NewTin(1), NewTin(2, "red"), NewTin(3, "blue")]


async def test_a_version_of_a_segment_is_asked_for_once(held: HeldTopics) -> None:
    async with held.client() as client:
        queue = await client.subscribe_queue(TOPIC, "q", schema=NEW, initial_position="earliest")
        await values(queue, 3)
        await held.write(LOWER, OLD, Tin(4))
        held.holder.ignored = frozenset({pb.CommandGetSchema})
        await held.write(UPPER, NEW, NewTin(5))
        assert await values(queue, 2) == [NewTin(4), NewTin(5)]


async def test_dead_letters_carry_the_schemas_of_their_segments(held: HeldTopics) -> None:
    async with held.client() as client:
        queue = await client.subscribe_queue(
            TOPIC, "q", initial_position="earliest", redelivery=Backoff(0.1, 0.1), dead_letter=DeadLetter(0)
        )
        for _ in range(3):
            await queue.negative_acknowledge(await queue.receive(timeout=10))
        assert await queue.receive_many(1, timeout=5) == []
        letters = await client.subscribe_queue(
            f"{TOPIC}-DLQ", "look", schema=Schema.auto_consume(), initial_position="earliest"
        )
        assert await values(letters, 3) == [
            {"weight": 1},
            {"weight": 2, "colour": "red"},
            {"weight": 3, "colour": "blue"},
        ]


async def test_the_schema_of_a_topic_is_that_of_an_active_segment(held: HeldTopics) -> None:
    async with held.client() as client:
        newest = await client.topic_schema(TOPIC)
        assert newest is not None
        assert newest.data == data_of(NEW)
        for topic, version, schema in ((LOWER, FIRST, OLD), (LOWER, SECOND, NEW), (UPPER, FIRST, NEW)):
            found = await client.topic_schema(topic, version=version)
            assert found is not None
            assert found.data == data_of(schema)
        assert await client.topic_schema(UPPER, version=SECOND) is None
        assert await client.topic_schema("topic://public/default/missing") is None
        with pytest.raises(InvalidConfigurationError, match=f"name one, such as {LOWER}"):
            await client.topic_schema(TOPIC, version=FIRST)


async def test_children_without_a_schema_leave_that_of_the_sealed_parent(held: HeldTopics) -> None:
    await (await held.control.controller()).split(1)
    await (await held.control.controller()).split(0)
    async with held.client() as client:
        newest = await client.topic_schema(TOPIC)
    assert newest is not None
    assert (newest.data, newest.version) == (data_of(NEW), FIRST), "the sealed segment made last"


async def test_values_of_a_classic_topic_are_read_by_their_writers(held: HeldTopics) -> None:
    await held.control.pulsar.create(TopicName.parse(CLASSIC), {})
    await held.write(CLASSIC, OLD, Tin(1))
    await held.write(CLASSIC, NEW, NewTin(2, "red"))
    async with held.client() as client:
        queue = await client.subscribe_queue(
            CLASSIC, "q", schema=Schema.auto_consume(), initial_position="earliest"
        )
        assert await values(queue, 2) == [{"weight": 1}, {"weight": 2, "colour": "red"}]
        found = await client.topic_schema(CLASSIC, version=FIRST)
        assert found is not None
        assert found.data == data_of(OLD)


async def test_a_producer_stamps_the_version_of_each_segment(held: HeldTopics) -> None:
    keys = [f"k{n}" for n in range(20)]
    async with held.client() as client:
        producer = await client.create_producer(TOPIC, schema=NEW)
        # Both segments have told their version before the second call.
        for first in (4, 24):
            await producer.send_many([NewTin(n, "green") for n in range(first, first + 20)], keys=keys)
        queue = await client.subscribe_queue(
            TOPIC, "q", schema=Schema.auto_consume(), initial_position="earliest"
        )
        found = await values(queue, 43)
    assert found[3:] == [{"weight": n, "colour": "green"} for n in range(4, 44)]
