"""The registered schema of a topic, as applications ask for it."""

from __future__ import annotations

import pytest

from anabranch.errors import IncompatibleSchemaError
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
    assert await client.topic_schema(TOPIC, version=bytes(7) + b"\x05") is None
    with pytest.raises(IncompatibleSchemaError):
        await client.topic_schema(TOPIC, version=b"\x01")
