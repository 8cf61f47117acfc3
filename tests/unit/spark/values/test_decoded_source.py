"""Queries that decode values, as Spark calls the source, without Spark: topics and schemas in files."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from io import BytesIO
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.client.net.topics.schemas import TopicSchema
from anabranch.errors import InvalidConfigurationError
from anabranch.spark.values.avro_types import avro_schema, spark_type
from anabranch.spark.values.value_columns import BadValueError
from tests.spark.files import FilesSource, FileTopic


def struct(**kinds: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


ORDER = struct(id=LongType(), name=StringType())


def source(topic: FileTopic, **options: str) -> FilesSource:
    return FilesSource({"service.url": str(topic.root), "subscribe": topic.name, **options})


def json_schema(**options: Any) -> StructType:
    names = ["key", "value", "position", *options]
    kinds = {"key": BinaryType(), "value": ORDER, "position": LongType(), **options}
    return StructType([StructField(name, kinds[name]) for name in names])


def rows_of(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    task = pickle.loads(pickle.dumps(reader))
    return [row for partition in partitions for batch in task.read(partition) for row in batch.to_pylist()]


def read(topic: FileTopic, schema: Any, **options: str) -> list[dict[str, Any]]:
    reader = source(topic, **options).reader(schema)
    return rows_of(reader, reader.partitions())


def register(topic: FileTopic, kind: str, definition: Any) -> bytes:
    return topic.register(TopicSchema(kind, json.dumps(definition).encode()))


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": n, "type": t, **more} for n, t in fields]}


def avro(definition: Any, row: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), row)
    return out.getvalue()


def test_a_ddl_becomes_the_type_of_the_value_column(topic: FileTopic) -> None:
    given = {"valueFormat": "json", "valueSchema": "id bigint, `a b` array<string>"}
    text = source(topic, **given, badRows="column").schema()
    assert text.startswith("key binary, value struct<id bigint, `a b` array<string>>, topic string,")
    assert text.endswith(", _corrupt_record binary")


@pytest.mark.parametrize("policy", ["fail", "null", "column"])
def test_bad_rows_follow_the_policy(topic: FileTopic, policy: str) -> None:
    topic.send([("a", b'{"id": 1, "name": "x"}'), ("b", b"{nonsense"), ("c", None)])
    options = {"valueFormat": "json", "valueSchema": "id bigint, name string", "badRows": policy}
    schema = json_schema(**({"_corrupt_record": BinaryType()} if policy == "column" else {}))
    if policy == "fail":
        with pytest.raises(BadValueError, match=r"position 1 of segment 0 of topic orders.*badRows=null"):
            read(topic, schema, **options)
        return
    rows = read(topic, schema, **options)
    assert [row["value"] for row in rows] == [{"id": 1, "name": "x"}, None, None]
    if policy == "column":
        assert [row["_corrupt_record"] for row in rows] == [None, b"{nonsense", None]


def test_a_query_without_the_value_decodes_nothing(topic: FileTopic) -> None:
    topic.send([("a", b"{nonsense")])
    schema = struct(key=BinaryType())
    assert read(topic, schema, valueFormat="json", valueSchema="id bigint") == [{"key": b"a"}]


def test_bad_bytes_without_the_value_are_refused_at_planning(topic: FileTopic) -> None:
    schema = struct(key=BinaryType(), _corrupt_record=BinaryType())
    with pytest.raises(InvalidConfigurationError, match="_corrupt_record is filled together with value"):
        read(topic, schema, valueFormat="json", valueSchema="id bigint", badRows="column")


def test_a_stream_decodes_too(topic: FileTopic) -> None:
    topic.send([("a", b'{"id": 1}')])
    reader = source(topic, valueFormat="json", startingOffsets="earliest").streamReader(json_schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [row["value"] for row in rows_of(reader, reader.partitions(start, end))] == [
        {"id": 1, "name": None}
    ]


def test_a_registered_avro_schema_evolves(topic: FileTopic) -> None:
    old = record(("id", "int"), ("gone", "string"))
    new = record(("id", "long"), ("kind", ["null", "string"]))
    new["fields"][1]["default"] = None
    first = register(topic, "Avro", old)
    second = register(topic, "Avro", new)
    topic.send_versioned([avro(old, {"id": 1, "gone": "x"})], first)
    topic.send_versioned([avro(new, {"id": 2, "kind": "k"}), None], second)
    schema = source(topic, valueSchema="registered").schema()
    assert schema["value"].dataType == struct(id=LongType(), kind=StringType())
    rows = read(topic, schema, valueSchema="registered")
    assert [row["value"] for row in rows] == [{"id": 1, "kind": None}, {"id": 2, "kind": "k"}, None]


def test_a_schema_registered_while_a_query_runs_is_resolved_to_that_of_the_query(topic: FileTopic) -> None:
    old = record(("id", "long"))
    first = register(topic, "Avro", old)
    given = source(topic, valueSchema="registered")
    schema = given.schema()
    reader = given.reader(schema)
    new = record(("id", "long"), ("more", "string"))
    second = register(topic, "Avro", new)
    topic.send_versioned([avro(new, {"id": 2, "more": "m"})], second)
    topic.send_versioned([avro(old, {"id": 3})], first)
    rows = rows_of(reader, reader.partitions())
    assert [row["value"] for row in rows] == [{"id": 2}, {"id": 3}]


def test_a_registered_json_schema_names_the_columns(topic: FileTopic) -> None:
    register(topic, "Json", record(("id", ["null", "long"]), ("name", ["null", "string"])))
    topic.send([("a", b'{"id": 1, "later": true}')])
    schema = source(topic, valueSchema="Registered", valueFormat="json").schema()
    assert schema["value"].dataType == ORDER
    assert read(topic, schema, valueSchema="registered")[0]["value"] == {"id": 1, "name": None}


def test_registered_protobuf_and_primitives_have_their_types(topic: FileTopic) -> None:
    topic.register(TopicSchema("Int64", b""))
    assert source(topic, valueSchema="registered").schema()["value"].dataType == LongType()
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    register(
        topic,
        "ProtobufNative",
        {"fileDescriptorSet": b64encode(files).decode(), "rootMessageTypeName": "Order"},
    )
    topic.send([("a", b"\x08\x05")])
    schema = source(topic, valueSchema="registered").schema()
    assert read(topic, schema, valueSchema="registered")[0]["value"] == {"id": 5}
    path = topic.root / "descriptor"
    path.write_bytes(files)
    named = {"valueFormat": "protobuf", "valueDescriptor": str(path), "valueMessage": "Order"}
    assert source(topic, **named).schema()["value"].dataType == struct(id=LongType())
    assert read(topic, schema, **named)[0]["value"] == {"id": 5}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueSchema": "id bigint"}, "valueSchema needs valueFormat"),
        ({"badRows": "null"}, "badRows needs valueFormat"),
        ({"valueFormat": "xml"}, "json, avro, protobuf"),
        ({"valueFormat": "json"}, "needs valueSchema"),
        ({"valueFormat": "json", "valueSchema": '{"type": "long"}'}, "set valueFormat=avro"),
        ({"valueFormat": "json", "valueSchema": "id bigin"}, "valueSchema 'id bigin' is not valid DDL"),
        ({"valueFormat": "protobuf"}, "needs valueDescriptor"),
        ({"valueFormat": "protobuf", "valueDescriptor": "/no", "valueMessage": "M"}, "cannot be read"),
        ({"valueSchema": "registered"}, "topic orders has no registered schema"),
    ],
)
def test_options_that_do_not_describe_values_are_refused(
    topic: FileTopic, options: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=words):
        source(topic, **options).schema()


def test_schemas_that_cannot_be_decoded_are_refused_by_name(topic: FileTopic) -> None:
    topic.register(TopicSchema("KeyValue", b""))
    with pytest.raises(InvalidConfigurationError, match="of type KeyValue"):
        source(topic, valueSchema="registered").schema()


def test_topics_with_different_schemas_are_refused(topic: FileTopic) -> None:
    register(topic, "Json", record(("id", "long")))
    register(FileTopic(topic.root, "other").create(), "Json", record(("id", "string")))
    with pytest.raises(InvalidConfigurationError, match="orders and other differ"):
        source(topic, valueSchema="registered", subscribe="orders,other").schema()
    with pytest.raises(InvalidConfigurationError, match="valueFormat is avro"):
        source(topic, valueSchema="registered", valueFormat="avro").schema()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (StructType([StructField("id", LongType(), nullable=False)]), r"value\.id may be null"),
        (struct(ids=ArrayType(LongType(), containsNull=False)), r"items of value\.ids may be null"),
        (struct(ids=MapType(LongType(), LongType())), "keys are not of type string"),
        (struct(other=LongType()), "has no field other; it has id, name"),
        (struct(id=StringType()), r"value\.id is of type bigint in the schema, not string"),
    ],
)
def test_a_requested_type_that_the_schema_cannot_fill_is_refused(
    topic: FileTopic, kind: StructType, words: str
) -> None:
    register(topic, "Json", record(("id", "long"), ("name", "string")))
    options = {"valueFormat": "json"} if "null" in words or "keys" in words else {"valueSchema": "registered"}
    with pytest.raises(InvalidConfigurationError, match=words):
        source(topic, **options).reader(struct(value=kind))


def test_types_of_avro_have_counterparts_in_spark() -> None:
    inner = {"type": "record", "name": "shop.Inner", "fields": [{"name": "x", "type": "int"}]}
    definition = record(
        ("a", inner),
        ("again", "shop.Inner"),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A"]}),
        ("u", ["int", "null", "long"]),
        ("m", {"type": "map", "values": {"type": "array", "items": "string"}}),
    )
    x = struct(x=IntegerType())
    assert spark_type(definition) == struct(
        a=x,
        again=x,
        day=DateType(),
        at=TimestampType(),
        price=DecimalType(9, 2),
        e=StringType(),
        u=LongType(),
        m=MapType(StringType(), ArrayType(StringType())),
    )
    assert spark_type(avro_schema(ORDER)) == ORDER
    for odd in (["string", "int"], "Unknown", record(("me", "Order"))):
        with pytest.raises(InvalidConfigurationError):
            spark_type(odd)


def test_a_version_of_a_segment_with_schemas_of_its_own_is_that_of_the_segment(topic: FileTopic) -> None:
    topic.split(0)
    fields = ("id", "long"), ("name", "string")
    # The same fields in another order are other bytes.
    for segment, definition in ((0, record(*fields)), (1, record(*reversed(fields)))):
        own = FileTopic(topic.root, f"{topic.name}.segment-{segment}").create()
        version = register(own, "Avro", definition)
        topic.send_versioned([avro(definition, {"id": segment, "name": "tea"})], version, segment)
    options = {"valueFormat": "avro", "valueSchema": "id bigint, name string", "maxPartitions": "1"}
    reader = source(topic, **options).reader(json_schema())
    (planned,) = reader.partitions()
    found = [row["value"] for row in rows_of(reader, [planned])]
    assert found == [{"id": 0, "name": "tea"}, {"id": 1, "name": "tea"}]
