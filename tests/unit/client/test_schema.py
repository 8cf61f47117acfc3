"""Schemas of applications: values to bytes and back, and one error for those that do not fit."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from datetime import UTC, date, datetime
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from anabranch.client.schema import Schema
from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.definitions import Definition
from anabranch.schemas.schema_errors import SchemaError
from tests.unit.schemas.messages import message_class


class SchemaSize(enum.Enum):
    SMALL = "small"


@dataclasses.dataclass
class SchemaLine:
    item: str
    count: int = 1


@dataclasses.dataclass
class SchemaOrder:
    id: int
    lines: list[SchemaLine]
    at: datetime
    day: date
    key: UUID
    raw: bytes
    size: SchemaSize
    note: str | None = None


class StructOrder(msgspec.Struct):
    id: int
    note: str | None = None


class DictOrder(TypedDict):
    id: int


class ModelOrder(pydantic.BaseModel):
    id: int
    size: SchemaSize = SchemaSize.SMALL
    note: str | None = None


ORDER = SchemaOrder(
    7,
    [SchemaLine("tea"), SchemaLine("cup", 2)],
    datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    date(2026, 1, 2),
    UUID(int=5),
    b"\x00\xff",
    SchemaSize.SMALL,
)
VALUES: list[tuple[type, Any]] = [
    (SchemaOrder, ORDER),
    (StructOrder, StructOrder(1, "x")),
    (DictOrder, DictOrder(id=1)),
    (ModelOrder, ModelOrder(id=1, note="x")),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_values_survive_json_and_avro(kind: type, value: Any) -> None:
    schemas: list[Schema[Any]] = [Schema.json(kind), Schema.avro(kind)]
    for schema in schemas:
        assert schema.decode(schema.encode(value)) == value
        assert schema.definition is not None
        assert json.loads(schema.definition.data)["name"] == kind.__name__


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_bytes_that_do_not_fit_raise_one_error(kind: type, value: Any) -> None:
    in_json: Schema[Any] = Schema.json(kind)
    in_avro: Schema[Any] = Schema.avro(kind)
    for schema, bad in (
        (in_json, b'{"id": "x"}'),
        (in_json, b"\xff"),
        (in_avro, b""),
        (in_avro, in_avro.encode(value) + b"more"),
    ):
        with pytest.raises(SchemaError, match=kind.__name__):
            schema.decode(bad)


def test_a_value_of_another_type_is_refused_when_it_is_sent() -> None:
    for schema in (Schema.json(SchemaOrder), Schema.avro(SchemaOrder)):
        with pytest.raises(TypeError, match="takes SchemaOrder, not SchemaLine"):
            schema.encode(SchemaLine("tea"))  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="SchemaLine"):
        Schema.avro(SchemaLine).encode(SchemaLine("tea", count="two"))  # type: ignore[arg-type]


def test_protobuf_messages_survive() -> None:
    kind = message_class("shop.Order", "id", "note")
    schema = Schema.protobuf(kind)
    assert schema.definition is not None
    assert schema.definition.kind == "ProtobufNative"
    assert schema.decode(schema.encode(kind(id="1"))) == kind(id="1")
    with pytest.raises(SchemaError, match="Order"):
        schema.decode(b"\xff\xff")
    with pytest.raises(InvalidConfigurationError, match="protoc"):
        Schema.protobuf(SchemaOrder)


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        (Schema.string(), "tea", b"tea"),
        (Schema.bool(), True, b"\x01"),
        (Schema.int8(), -1, b"\xff"),
        (Schema.int16(), 258, b"\x01\x02"),
        (Schema.int32(), 1, b"\x00\x00\x00\x01"),
        (Schema.int64(), 1, b"\x00" * 7 + b"\x01"),
        (Schema.float32(), 1.0, b"\x3f\x80\x00\x00"),
        (Schema.float64(), 1.0, b"\x3f\xf0" + b"\x00" * 6),
    ],
)
def test_primitives_have_pulsars_form(schema: Schema[Any], value: Any, data: bytes) -> None:
    assert schema.encode(value) == data
    assert schema.decode(data) == value
    with pytest.raises(TypeError):
        schema.encode([])
    with pytest.raises(SchemaError):
        schema.decode(b"\xff" * 9)


def test_a_number_that_is_too_large_is_refused() -> None:
    with pytest.raises(SchemaError, match="Int8"):
        Schema.int8().encode(128)
    with pytest.raises(TypeError, match="bool"):
        Schema.int64().encode(True)


def test_avro_is_read_with_the_schema_that_wrote_it() -> None:
    older: Schema[Any] = Schema.avro(dataclasses.make_dataclass("SchemaLine", [("item", str)]))
    newer = Schema.avro(SchemaLine)
    data = b"\x06tea"
    assert newer.decoder(older.definition)(data) == SchemaLine("tea", 1)
    with pytest.raises(SchemaError, match="Json"):
        newer.decoder(Definition("Json", b"{}", {}))


def test_auto_consume_decodes_by_the_schema_of_the_writer() -> None:
    auto = Schema.auto_consume()
    line = SchemaLine("tea", 2)
    for schema in (Schema.json(SchemaLine), Schema.avro(SchemaLine)):
        assert auto.decoder(schema.definition)(schema.encode(line)) == {"item": "tea", "count": 2}
    message = message_class("shop.Order", "id")
    found = auto.decoder(Schema.protobuf(message).definition)(message(id="7").SerializeToString())
    assert found.id == "7"
    assert auto.decoder(Schema.int32().definition)(b"\x00\x00\x00\x05") == 5
    assert auto.decoder(None)(b"raw") == b"raw"
    with pytest.raises(SchemaError, match="Avro"):
        auto.decoder(Schema.avro(SchemaLine).definition)(b"")
    with pytest.raises(TypeError, match="for consumers"):
        auto.encode(line)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(InvalidConfigurationError, match=r"fastavro: pip install 'anabranch\[avro\]'"):
        Schema.avro(SchemaLine)


def test_values_without_a_stored_form_raise_the_error_of_schemas() -> None:
    endless: list[Any] = []
    endless.append(endless)
    cases: list[tuple[Schema[Any], Any]] = [
        (Schema.string(), "\ud800"),
        (Schema.json(), "\ud800"),
        (Schema.json(), endless),
    ]
    for schema, value in cases:
        with pytest.raises(SchemaError, match="cannot be encoded"):
            schema.encode(value)
