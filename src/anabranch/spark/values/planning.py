"""Decides which type the value column has, and with which schema a task decodes it.

The driver asks the broker for a registered schema once and sends it to the tasks, so that all tasks of a
query use the same schema. A task asks only for the schemas of writers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from anabranch.client.net.topics.schemas import TopicSchema
from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.primitives import DECODERS
from anabranch.schemas.protobuf import MessageType
from anabranch.spark.options.values import ValueOptions
from anabranch.spark.values.avro_rows import AvroRows
from anabranch.spark.values.avro_types import avro_schema, spark_type
from anabranch.spark.values.ddl import check_ddl
from anabranch.spark.values.decoder import ValueDecoder
from anabranch.spark.values.formats import Getter, RowFormat
from anabranch.spark.values.formats import Path as FieldPath
from anabranch.spark.values.json_rows import JsonRows
from anabranch.spark.values.protobuf_rows import ProtobufRows, spark_type_of
from anabranch.spark.values.value_types import check_value_type

SchemaOf = Callable[[str], TopicSchema | None]
"""Returns the newest registered schema of a topic."""

_PRIMITIVES: Mapping[str, DataType] = {
    "String": StringType(),
    "Bool": BooleanType(),
    "Int8": ByteType(),
    "Int16": ShortType(),
    "Int32": IntegerType(),
    "Int64": LongType(),
    "Float": FloatType(),
    "Double": DoubleType(),
}


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A schema that tasks decode with. It is picklable."""

    kind: str
    """Pulsar's name: Json, Avro, ProtobufNative or a primitive type."""
    definition: bytes = b""
    """Avro and Json: the Avro schema as JSON; ProtobufNative: the FileDescriptorSet."""
    message: str = ""
    derived: bool = False
    """Whether the Avro schema was made from the column's type; then a writer's schema is used as it is."""

    def spark_type(self) -> DataType:
        """Return the type of a column with all fields of the schema."""
        if self.kind in _PRIMITIVES:
            return _PRIMITIVES[self.kind]
        if self.kind == "ProtobufNative":
            return spark_type_of(MessageType(self.definition, self.message).descriptor())
        return spark_type(json.loads(self.definition))

    def rows(self, kind: Any, writer: TopicSchema | None) -> RowFormat:
        """Return the format for an Arrow type; `writer` is the schema that the entry names."""
        if self.kind in _PRIMITIVES:
            return PrimitiveRows(self.kind)
        if self.kind == "ProtobufNative":
            return ProtobufRows(MessageType(self.definition, self.message), kind)
        if self.kind == "Json":
            return JsonRows(kind)
        written = self.definition if writer is None else writer.data
        return AvroRows(written, written if self.derived else self.definition)


def value_type(options: ValueOptions, topics: Sequence[str], schema_of: SchemaOf) -> DataType | str:
    """Return the type of the value column, or its DDL, for a query without a user-defined schema."""
    found = _stated_schema(options, topics, schema_of)
    if options.schema is not None and not options.registered and not _is_json(options.schema):
        check_ddl(options.schema)
        return f"struct<{options.schema}>"
    if found is None:
        raise InvalidConfigurationError(
            f"valueFormat={options.format} needs valueSchema: a DDL such as 'id bigint, name string', "
            "or registered for the topic's own schema"
        )
    return found.spark_type()


def plan_values(
    options: ValueOptions, kind: DataType, topics: Sequence[str], schema_of: SchemaOf
) -> ValueSchema:
    """Return the schema to decode with into a column of this type."""
    found = _stated_schema(options, topics, schema_of)
    check_value_type(kind, None if found is None else found.spark_type())
    if found is not None:
        return found
    if options.format == "avro":
        return ValueSchema("Avro", json.dumps(avro_schema(kind)).encode(), derived=True)
    return ValueSchema("Json")


def decoder_of(
    values: ValueSchema, kind: Any, schema_of_version: Callable[[bytes], TopicSchema | None]
) -> ValueDecoder:
    """Return the decoder of one topic into an Arrow type."""

    def format_of(version: bytes) -> RowFormat:
        # Only Avro values need the schema of their writer; other formats name or number their fields.
        if not version or values.kind != "Avro":
            return values.rows(kind, None)
        written = schema_of_version(version)
        if written is None:
            raise LookupError(f"the broker has no version {version.hex()} of the topic's schema")
        return values.rows(kind, written)

    return ValueDecoder(kind, format_of)


def _stated_schema(options: ValueOptions, topics: Sequence[str], schema_of: SchemaOf) -> ValueSchema | None:
    """Return the schema that the options or the registry define, or None if only the column's type does."""
    if options.registered:
        return _registered(options, topics, schema_of)
    if options.format == "protobuf":
        return _described(options)
    if options.schema is not None and _is_json(options.schema):
        if options.format != "avro":
            raise InvalidConfigurationError("valueSchema is the JSON of an Avro schema; set valueFormat=avro")
        return ValueSchema("Avro", options.schema.encode())
    return None


def _is_json(text: str) -> bool:
    return text.startswith(("{", "[", '"'))


def _described(options: ValueOptions) -> ValueSchema:
    if options.descriptor is None or options.message is None:
        raise InvalidConfigurationError(
            "valueFormat=protobuf needs valueDescriptor, the file that protoc --include_imports "
            "--descriptor_set_out wrote, and valueMessage, the full name of the message; "
            "or valueSchema=registered for a topic with a native protobuf schema"
        )
    try:
        files = Path(options.descriptor).read_bytes()
    except OSError as error:
        raise InvalidConfigurationError(f"valueDescriptor cannot be read: {error}") from error
    return ValueSchema("ProtobufNative", files, options.message)


def _registered(options: ValueOptions, topics: Sequence[str], schema_of: SchemaOf) -> ValueSchema:
    found = {topic: _of_registry(topic, schema_of(topic)) for topic in topics}
    kinds = {topic: schema.spark_type() for topic, schema in found.items()}
    first = topics[0]
    for topic in topics[1:]:
        if kinds[topic] != kinds[first] or found[topic].kind != found[first].kind:
            raise InvalidConfigurationError(
                f"the schemas of the topics {first} and {topic} differ; read the topics one by one, or give "
                "valueSchema as DDL"
            )
    named = {"Json": "json", "Avro": "avro", "ProtobufNative": "protobuf"}.get(found[first].kind)
    if options.format is not None and options.format != named:
        raise InvalidConfigurationError(
            f"valueFormat is {options.format}, but the schema of topic {first} is of type {found[first].kind}"
        )
    return found[first]


def _of_registry(topic: str, schema: TopicSchema | None) -> ValueSchema:
    if schema is None:
        raise InvalidConfigurationError(
            f"topic {topic} has no registered schema; give valueFormat and valueSchema, such as "
            "valueFormat=json and valueSchema='id bigint, name string'"
        )
    if schema.kind in _PRIMITIVES:
        return ValueSchema(schema.kind)
    if schema.kind == "ProtobufNative":
        message = MessageType.registered(schema.data)
        return ValueSchema(schema.kind, message.files, message.name)
    if schema.kind in ("Json", "Avro"):
        return ValueSchema(schema.kind, schema.data)
    raise InvalidConfigurationError(
        f"the schema of topic {topic} is of type {schema.kind}, which the source cannot decode; "
        "read the bytes of the values without valueSchema"
    )


class PrimitiveRows:
    """Decodes values of a primitive schema, given by Pulsar's name: one number or text per message."""

    def __init__(self, name: str) -> None:
        self._decode = DECODERS[name]

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        return list(map(self._decode, values))

    def getters(self, kind: Any, path: FieldPath) -> Sequence[Getter]:
        raise TypeError("a primitive value has no fields")

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        return pa.array(values, kind)
