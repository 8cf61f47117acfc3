"""Which schemas fit together: one table for the rules of Avro, one for each strategy, one for each kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.errors import IncompatibleSchemaError
from anabranch.schemas.avro import parse_avro
from anabranch.schemas.avro_resolution import unreadable
from anabranch.schemas.compatibility import (
    STRATEGIES,
    Strategy,
    check_compatible,
    compares,
    consumer_strategy,
)
from anabranch.schemas.definitions import Definition, join
from anabranch.schemas.protobuf import MessageType

from .messages import message_definition

NULLABLE = ["null", "string"]


def fixed(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": 4, **more}


def record(*fields: Any, name: str = "Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


ONE = record(field("id"))
WITH_REQUIRED = record(field("id"), field("note"))
WITH_DEFAULT = record(field("id"), field("note", default=""))
LIST = record(field("v", "int"), field("next", ["null", "Node"], default=None), name="Node")
LONG_LIST = record(field("v", "long"), field("next", ["null", "Node"], default=None), name="Node")
BAD_LIST = record(field("v", "int"), field("next", ["null", record(field("x"), name="Other")]), name="Node")
A_OR_B = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        (ONE, ONE, None),
        (ONE, WITH_REQUIRED, None),
        (WITH_DEFAULT, ONE, None),
        (WITH_REQUIRED, ONE, "value.note is missing"),
        (record(field("id"), name="shop.Order"), ONE, None),
        (record(field("id"), name="Bill"), ONE, None),
        (fixed("Bill"), fixed("Order"), "is Order, not Bill"),
        (fixed("Bill", aliases=["Order"]), fixed("Order"), None),
        (record(field("name", aliases=["id"])), ONE, None),
        ("long", "int", None),
        ("int", "long", "is long, not int"),
        ("double", "float", None),
        ("float", "double", "is double, not float"),
        ("float", "long", None),
        ("string", "bytes", None),
        ("bytes", "string", None),
        ("int", "string", "is string, not int"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "int", None),
        (NULLABLE, "string", None),
        ("string", NULLABLE, "is null, not string"),
        (["null", "string", "int"], NULLABLE, None),
        (NULLABLE, ["null", "string", "int"], "has no type for"),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, None),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, r"value\[\]"),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, r"value\{\}"),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "is array, not map"),
        (A_OR_B, {**A_OR_B, "symbols": ["A"]}, None),
        ({**A_OR_B, "symbols": ["A"]}, A_OR_B, "may be B"),
        ({**A_OR_B, "symbols": ["A"], "default": "A"}, A_OR_B, None),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, "8 bytes"),
        (LONG_LIST, LIST, None),
        (LIST, LONG_LIST, "is long, not int"),
        (BAD_LIST, LIST, "no type for"),
    ],
)
def test_a_reader_resolves_what_a_writer_wrote_by_the_rules_of_avro(
    reader: Any, writer: Any, why: str | None
) -> None:
    found = unreadable(parse_avro(json.dumps(reader)), parse_avro(json.dumps(writer)))
    if why is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(found)


def avro(schema: Any, kind: str = "Avro") -> Definition:
    return Definition(kind, json.dumps(schema).encode(), {})


def allowed(strategy: Strategy, new: Definition, *known: Definition) -> bool:
    try:
        check_compatible(strategy, new, known)
    except IncompatibleSchemaError:
        return False
    return True


NEW_REQUIRED = {"ALWAYS_COMPATIBLE", "FORWARD", "FORWARD_TRANSITIVE"}
LOST_REQUIRED = {"ALWAYS_COMPATIBLE", "BACKWARD", "BACKWARD_TRANSITIVE"}
ALL = set(STRATEGIES)
CHANGES = {
    "the same": (ONE, ONE, ALL),
    "the same in other words": (ONE, {**ONE, "doc": "an order"}, ALL),
    "a field with a default more": (ONE, WITH_DEFAULT, ALL - {"ALWAYS_INCOMPATIBLE"}),
    "a field with a default less": (WITH_DEFAULT, ONE, ALL - {"ALWAYS_INCOMPATIBLE"}),
    "a required field more": (ONE, WITH_REQUIRED, NEW_REQUIRED),
    "a required field less": (WITH_REQUIRED, ONE, LOST_REQUIRED),
    "a wider number": ("int", "long", LOST_REQUIRED),
    "a narrower number": ("long", "int", NEW_REQUIRED),
    "another type": ("int", "string", {"ALWAYS_COMPATIBLE"}),
}


@pytest.mark.parametrize("kind", ["Avro", "Json", "Protobuf"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", CHANGES)
def test_each_strategy_allows_its_changes(change: str, strategy: Strategy, kind: str) -> None:
    old, new, strategies = CHANGES[change]
    assert allowed(strategy, avro(new, kind), avro(old, kind)) == (strategy in strategies)


def test_another_kind_is_compatible_only_always() -> None:
    for strategy in STRATEGIES:
        assert allowed(strategy, avro(ONE, "Json"), avro(ONE)) == (strategy == "ALWAYS_COMPATIBLE")


def test_every_known_version_counts() -> None:
    assert not allowed("BACKWARD_TRANSITIVE", avro(WITH_REQUIRED), avro(WITH_REQUIRED), avro(ONE))


def test_transitive_strategies_compare_with_all_versions() -> None:
    found = {strategy: compares(strategy) for strategy in STRATEGIES}
    assert found == {
        "ALWAYS_COMPATIBLE": "none",
        "ALWAYS_INCOMPATIBLE": "newest",
        "BACKWARD": "newest",
        "FORWARD": "newest",
        "FULL": "newest",
        "BACKWARD_TRANSITIVE": "all",
        "FORWARD_TRANSITIVE": "all",
        "FULL_TRANSITIVE": "all",
    }


def test_a_consumer_has_to_read_what_is_stored() -> None:
    found = {strategy: consumer_strategy(strategy) for strategy in STRATEGIES}
    assert found == {
        "ALWAYS_COMPATIBLE": "ALWAYS_COMPATIBLE",
        "ALWAYS_INCOMPATIBLE": "ALWAYS_INCOMPATIBLE",
        "BACKWARD": "BACKWARD",
        "FORWARD": "BACKWARD",
        "FULL": "BACKWARD",
        "BACKWARD_TRANSITIVE": "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE": "BACKWARD",
        "FULL_TRANSITIVE": "FULL_TRANSITIVE",
    }


def test_a_native_protobuf_schema_keeps_its_message() -> None:
    old = Definition("ProtobufNative", message_definition("shop.Order", "id"), {})
    more = Definition("ProtobufNative", message_definition("shop.Order", "id", "note"), {})
    other = Definition("ProtobufNative", message_definition("shop.Bill", "id"), {})
    assert MessageType.registered(old.data).descriptor().full_name == "shop.Order"
    for strategy in STRATEGIES:
        always = strategy == "ALWAYS_COMPATIBLE"
        assert allowed(strategy, more, old) == (strategy != "ALWAYS_INCOMPATIBLE")
        assert allowed(strategy, other, old) == always


def pair(key: Any, value: Any, kinds: tuple[str, str] = ("STRING", "AVRO")) -> Definition:
    names = {"key.schema.type": kinds[0], "value.schema.type": kinds[1]}
    return Definition("KeyValue", join(key, json.dumps(value)), names)


def test_both_halves_of_a_key_value_schema_count() -> None:
    assert allowed("BACKWARD", pair("", WITH_DEFAULT), pair("", ONE))
    assert not allowed("BACKWARD", pair("", WITH_REQUIRED), pair("", ONE))
    assert not allowed("BACKWARD", pair("", ONE, ("INT32", "AVRO")), pair("", ONE))
    keyed = ("AVRO", "AVRO")
    assert not allowed("FULL", pair('"int"', ONE, keyed), pair('"string"', ONE, keyed))
