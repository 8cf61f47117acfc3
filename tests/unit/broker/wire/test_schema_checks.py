"""Schemas of producers and consumers on the wire: registered, compared by policy, refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, error_of

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC_PATH = "/admin/v2/persistent/public/default/t"
TOPIC = "persistent://public/default/t"


def record(*names: str, default: bool = True) -> pb.Schema:
    """The schema of a record with fields of text."""
    more: dict[str, Any] = {"default": ""} if default else {}
    fields = [{"name": name, "type": "string", **more} for name in names]
    definition = json.dumps({"type": "record", "name": "Order", "fields": fields})
    return pb.Schema(name="", schema_data=definition.encode(), type=pb.Schema.Avro)


class Side:
    """Opens producers and consumers with schemas on one connection."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._id = 0

    async def produce(self, schema: pb.Schema | None) -> int | None:
        """Open a producer; return its schema version, -1 without one, or None if the schema was refused."""
        self._id += 1
        options = {} if schema is None else {"schema": schema}
        answer = await self._client.producer(TOPIC, producer_id=self._id, **options)
        if isinstance(answer, pb.CommandError):
            assert answer.error == pb.IncompatibleSchema
            return None
        version: bytes = answer.schema_version
        return int.from_bytes(version, "big") if version else -1

    async def consume(self, schema: pb.Schema) -> bool:
        self._id += 1
        answer = await self._client.subscribe(TOPIC, f"s{self._id}", consumer_id=self._id, schema=schema)
        if isinstance(answer, pb.CommandSuccess):
            return True
        assert error_of(answer) == pb.IncompatibleSchema
        return False


@pytest.fixture
async def side(brokers: Brokers) -> Side:
    return Side(await brokers.connect())


async def set_policy(brokers: Brokers, path: str, value: object) -> None:
    answer = await Admin(brokers).ask("PUT", path, value)
    assert answer.status == 204, answer


async def test_a_new_schema_has_to_be_fully_compatible_by_default(side: Side) -> None:
    assert await side.produce(record("id", default=False)) == 0
    more = record("id", "note")
    more.schema_data = more.schema_data.replace(
        b'"id", "type": "string", "default": ""', b'"id", "type": "string"'
    )
    assert await side.produce(more) == 1
    assert await side.produce(record("id", "note", "x", default=False)) is None
    assert await side.produce(pb.Schema(name="", schema_data=b"", type=pb.Schema.String)) is None
    assert await side.produce(record("id", default=False)) == 0


async def test_a_topic_goes_before_its_namespace_and_that_before_the_broker(
    brokers: Brokers, side: Side
) -> None:
    assert await side.produce(record("a", default=False)) == 0
    required = record("a", "b", default=False)
    await set_policy(brokers, f"{NAMESPACE}/schemaCompatibilityStrategy", "FORWARD")
    assert await side.produce(required) == 1
    await set_policy(brokers, f"{TOPIC_PATH}/schemaCompatibilityStrategy", "BACKWARD")
    assert await side.produce(record("a", "b", "c", default=False)) is None
    assert await side.produce(record("b", default=False)) == 2
    answer = await Admin(brokers).ask("DELETE", f"{TOPIC_PATH}/schemaCompatibilityStrategy")
    assert answer.status == 204
    assert await side.produce(record("b", "c", default=False)) == 3


async def test_transitive_strategies_see_older_versions(brokers: Brokers, side: Side) -> None:
    await set_policy(brokers, f"{NAMESPACE}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert await side.produce(record("a", default=False)) == 0
    assert await side.produce(record("b", default=False)) == 1
    await set_policy(brokers, f"{NAMESPACE}/schemaCompatibilityStrategy", "BACKWARD_TRANSITIVE")
    assert await side.produce(record("b")) is not None
    assert await side.produce(record("b", "b2", default=False)) is None
    await set_policy(brokers, f"{NAMESPACE}/schemaCompatibilityStrategy", "BACKWARD")
    assert await side.produce(record("b", "a", default=False)) is None


async def test_schemas_may_be_left_to_administrators(brokers: Brokers, side: Side) -> None:
    await set_policy(brokers, f"{NAMESPACE}/isAllowAutoUpdateSchema", False)
    assert await side.produce(None) == -1
    assert await side.produce(record("a")) is None
    body = {"type": "AVRO", "schema": record("a").schema_data.decode(), "properties": {}}
    added = await Admin(brokers).ask("POST", "/admin/v2/schemas/public/default/t/schema", body)
    assert added.json == {"version": 0}
    assert await side.produce(record("a")) == 0
    assert await side.produce(record("a", "b")) is None


async def test_producers_without_a_schema_can_be_refused(brokers: Brokers, side: Side) -> None:
    await set_policy(brokers, f"{NAMESPACE}/schemaValidationEnforced", True)
    assert await side.produce(None) == -1
    assert await side.produce(record("a")) == 0
    assert await side.produce(None) is None
    await set_policy(brokers, f"{NAMESPACE}/schemaValidationEnforced", False)
    assert await side.produce(None) == -1
    await set_policy(brokers, f"{TOPIC_PATH}/schemaValidationEnforced", True)
    assert await side.produce(None) is None


async def test_a_consumer_brings_the_schema_of_an_unused_topic(side: Side) -> None:
    assert await side.consume(record("a", default=False))
    assert await side.produce(record("a", default=False)) == 0


async def test_a_consumer_must_be_able_to_read(brokers: Brokers, side: Side) -> None:
    assert await side.produce(record("a", default=False)) == 0
    assert await side.consume(record("a", "b"))
    assert await side.consume(record("b"))
    assert not await side.consume(record("b", default=False))
    assert not await side.consume(pb.Schema(name="", schema_data=b"", type=pb.Schema.String))
    await set_policy(brokers, f"{NAMESPACE}/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    assert await side.consume(record("a", default=False))
    assert not await side.consume(record("a"))
    await set_policy(brokers, f"{NAMESPACE}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert await side.consume(record("c", default=False))


async def test_a_consumer_with_a_schema_cannot_read_a_topic_of_bytes(side: Side) -> None:
    assert await side.produce(None) == -1
    assert not await side.consume(record("a"))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (pb.Schema.Avro, b"{"),
        (pb.Schema.Avro, b'{"type": "no type"}'),
        (pb.Schema.Avro, b'["null", "string"]'),
        (pb.Schema.Json, b"{}"),
        (pb.Schema.Json, b"[" * 5000 + b"]" * 5000),
        (pb.Schema.ProtobufNative, b"{}"),
        (pb.Schema.KeyValue, b"\x00\x00"),
        (pb.Schema.External, b""),
    ],
)
async def test_a_definition_that_cannot_be_read_is_refused(
    side: Side, kind: pb.Schema.Type.ValueType, data: bytes
) -> None:
    assert await side.produce(pb.Schema(name="", schema_data=data, type=kind)) is None


async def test_bytes_have_a_version_unless_the_topic_has_another_type(brokers: Brokers, side: Side) -> None:
    plain = pb.Schema(name="Bytes", schema_data=b"", type=pb.Schema.Type.Value("None"))
    assert await side.consume(plain)
    assert await side.produce(plain) == 0
    assert await side.produce(plain) == 0
    assert await side.produce(None) == -1
    # As in Pulsar, the type of the values stays.
    assert await side.produce(record("id")) is None
    await set_policy(brokers, f"{TOPIC_PATH}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert await side.produce(record("id")) == 1
    assert await side.produce(plain) == -1
