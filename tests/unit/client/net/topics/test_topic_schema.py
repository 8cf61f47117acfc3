"""The registered schema of a topic, as applications ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client.net.topics.schemas import has_own_schemas
from anabranch.errors import IncompatibleSchemaError, InvalidConfigurationError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import TOPIC, Brokers


async def test_the_newest_schema_is_returned_unless_a_version_is_named(brokers: Brokers) -> None:
    wire = await brokers.connect()
    client = brokers.client()
    assert await client.topic_schema(TOPIC) is None
    for number, definition in enumerate((b'"int"', b'{"type":"int","a":1}')):
        schema = pb.Schema(name="", schema_data=definition, type=pb.Schema.Avro)
        schema.properties.add(key="number", value=str(number))
        await wire.producer(producer_id=number, schema=schema)
    newest = await client.topic_schema(TOPIC)
    assert newest is not None
    assert (newest.kind, newest.data, newest.properties) == ("Avro", b'{"type":"int","a":1}', {"number": "1"})
    oldest = await client.topic_schema(TOPIC, version=bytes(8))
    assert oldest is not None
    assert (oldest.data, oldest.version) == (b'"int"', bytes(8))
    assert await client.topic_schema(TOPIC, version=0) == oldest
    assert await client.topic_schema(TOPIC, version=1) == newest
    assert await client.topic_schema(TOPIC, version=bytes(7) + b"\x05") is None
    wrong: Any
    for wrong in (-1, 2**63, "1"):
        with pytest.raises(InvalidConfigurationError, match="version must be a whole number"):
            await client.topic_schema(TOPIC, version=wrong)
    with pytest.raises(IncompatibleSchemaError):
        await client.topic_schema(TOPIC, version=b"\x01")


@pytest.mark.parametrize(
    ("segment_topic", "own"),
    [
        ("segment://public/default/orders/0000-7fff-1", False),
        ("persistent://public/default/orders", False),
        ("persistent://public/default/orders-partition-2", False),
        ("persistent://public/default/orders.segment-0000-7fff-1", True),
    ],
)
def test_only_a_topic_that_holds_a_segment_numbers_schemas_itself(segment_topic: str, own: bool) -> None:
    assert has_own_schemas(TopicName.parse(TOPIC), segment_topic) is own
    assert not has_own_schemas(TopicName.parse(segment_topic).topic, segment_topic)
