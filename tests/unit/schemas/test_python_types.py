"""Avro schemas of Python types, and what cannot have one."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.avro import parse_avro
from anabranch.schemas.python_types import avro_of


class TypeSize(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class TypeLine:
    item: str
    count: int = 1


@dataclasses.dataclass
class Basket:
    id: str
    lines: list[TypeLine]
    total: float = 0
    note: str | None = None
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    name: str | None = "none"
    made: str = dataclasses.field(default_factory=lambda: "now")


@dataclasses.dataclass
class TypeNode:
    value: int
    next: TypeNode | None = None


class StructLine(msgspec.Struct, rename="camel"):
    item_name: str
    count: int = 1


class DictLine(TypedDict):
    item: str
    count: int


class ModelLine(pydantic.BaseModel):
    item: str
    count: int = 1
    tags: list[str] = pydantic.Field(default_factory=list)


@dataclasses.dataclass
class Special:
    at: datetime
    day: date
    id: UUID
    raw: bytes
    size: TypeSize
    level: Level
    kind: Literal["a", "b"]
    noted: Annotated[int, "anything"]


LINE = {
    "type": "record",
    "name": "TypeLine",
    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "long", "default": 1}],
}


def test_a_dataclass_becomes_a_record_with_its_defaults() -> None:
    assert avro_of(Basket, "Avro") == {
        "type": "record",
        "name": "Basket",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "lines", "type": {"type": "array", "items": LINE}},
            {"name": "total", "type": "double", "default": 0.0},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "map", "values": "string"}, "default": {}},
            {"name": "name", "type": ["string", "null"], "default": "none"},
            # A default of a function may differ from call to call.
            {"name": "made", "type": "string"},
        ],
    }


def test_a_class_may_contain_itself() -> None:
    fields = avro_of(TypeNode, "Avro")["fields"]
    assert fields[1] == {"name": "next", "type": ["null", "TypeNode"], "default": None}


def test_structs_typed_dicts_and_models_have_schemas_too() -> None:
    assert avro_of(StructLine, "Json")["fields"] == [
        {"name": "itemName", "type": "string"},
        {"name": "count", "type": "long", "default": 1},
    ]
    assert avro_of(DictLine, "Json")["fields"] == [
        {"name": "item", "type": "string"},
        {"name": "count", "type": "long"},
    ]
    model = avro_of(ModelLine, "Avro")
    assert model["name"] == "ModelLine"
    assert model["fields"][1:] == [
        {"name": "count", "type": "long", "default": 1},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ]


def test_types_that_json_writes_as_text_are_text_there() -> None:
    avro = {one["name"]: one["type"] for one in avro_of(Special, "Avro")["fields"]}
    assert avro == {
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "day": {"type": "int", "logicalType": "date"},
        "id": {"type": "string", "logicalType": "uuid"},
        "raw": "bytes",
        "size": {"type": "enum", "name": "TypeSize", "symbols": ["small", "large"]},
        "level": "long",
        "kind": "string",
        "noted": "long",
    }
    in_json = {one["name"]: one["type"] for one in avro_of(Special, "Json")["fields"]}
    assert [in_json[name] for name in ("at", "day", "id", "raw")] == ["string"] * 4


@pytest.mark.parametrize("kind", [Basket, TypeNode, StructLine, DictLine, ModelLine, Special])
def test_every_schema_can_be_read(kind: type) -> None:
    for form in ("Json", "Avro"):
        parse_avro(json.dumps(avro_of(kind, form)))


class MaybeMissing(TypedDict, total=False):
    item: str


def made(kind: Any) -> type:
    return dataclasses.make_dataclass("Made", [("part", kind)])


class Other:
    TypeLine = dataclasses.make_dataclass("TypeLine", [("x", int)])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (object, "has no schema"),
        (made(Any), r"Made\.part"),
        (made(list), r"list\[str\]"),
        (made(dict[int, str]), "has no schema"),
        (made(TypeLine | TypeNode), "readers cannot tell"),
        (made(Decimal), "has no schema"),
        (MaybeMissing, "may be missing"),
        (made(dict[str, tuple[TypeLine, TypeLine]]), "one type of its items"),
        (dataclasses.make_dataclass("Both", [("a", TypeLine), ("b", Other.TypeLine)]), "are called TypeLine"),
    ],
)
def test_a_type_without_a_schema_is_refused_with_its_place(kind: Any, reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=reason):
        avro_of(kind, "Avro")
