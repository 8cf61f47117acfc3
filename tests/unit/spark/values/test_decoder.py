"""Values become columns: each format, evolution, and rows that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.net.topics.schemas import TopicSchema
from anabranch.spark.values.decoder import DecodedValues, ValueDecoder
from anabranch.spark.values.json_rows import JsonRows
from anabranch.spark.values.planning import PrimitiveRows, ValueSchema, decoder_of

ORDER = pa.struct([("id", pa.int64()), ("name", pa.string())])
ALL = pa.struct(
    [
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("large", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("rates", pa.map_(pa.string(), pa.float64())),
        ("inner", pa.struct([("x y", pa.int64()), ("deep", pa.list_(pa.struct([("n", pa.int64())])))])),
    ]
)
FULL_ROW: dict[str, Any] = {
    "flag": True,
    "small": -5,
    "large": 2**62,
    "real": 1.5,
    "text": "日本",
    "raw": b"\x00\xff",
    "price": Decimal("12.34"),
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC),
    "tags": ["a", None],
    "rates": [("eur", 1.0), ("usd", None)],
    "inner": {"x y": 7, "deep": [{"n": 1}, None]},
}
NO_ROW = dict.fromkeys(FULL_ROW)


def as_json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def decode(
    decoder: ValueDecoder, values: list[bytes | None], versions: list[bytes] | None = None
) -> DecodedValues:
    """Decode the values; without versions, no entry names one."""
    distinct = sorted(set(versions or [b""]))
    of_row = [distinct.index(version) for version in versions or [b""] * len(values)]
    found = decoder.decode(pa.array(values, pa.binary()), distinct, np.array(of_row, np.int64))
    found.column.validate(full=True)
    return found


def json_decoder(kind: Any) -> ValueDecoder:
    return ValueDecoder(kind, lambda version: JsonRows(kind))


def test_json_fills_every_type_by_name() -> None:
    value = as_json(
        flag=True,
        small=-5,
        large=2**62,
        real=1.5,
        text="日本",
        raw="AP8=",
        price="12.34",
        day="2024-02-29",
        at="2024-02-29T12:00:00.000005Z",
        tags=["a", None],
        rates={"eur": 1, "usd": None},
        inner={"x y": 7, "deep": [{"n": 1, "unknown": 0}, None]},
        unknown=[1, 2],
    )
    found = decode(json_decoder(ALL), [value, b"{}", None])
    assert found.column.type == ALL
    assert found.column.to_pylist() == [FULL_ROW, NO_ROW, None]
    assert found.bad == {}


def test_json_takes_times_as_milliseconds_and_days() -> None:
    kind = pa.struct([("at", pa.timestamp("us", "UTC")), ("day", pa.date32())])
    found = decode(json_decoder(kind), [as_json(at=1_700_000_000_123, day=1)])
    at = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert found.column.to_pylist() == [{"at": at, "day": date(1970, 1, 2)}]


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"[]", b'{"id": "5"}', b'{"id": 99999999999999999999}', b'{"name": 5}', b"\xff", b"{}{}"],
)
def test_a_bad_row_is_null_and_named_while_its_neighbours_are_decoded(bad: bytes) -> None:
    found = decode(json_decoder(ORDER), [as_json(id=1), None, bad, as_json(id=2, name="b")])
    assert found.column.to_pylist() == [{"id": 1, "name": None}, None, None, {"id": 2, "name": "b"}]
    assert list(found.bad) == [2]
    assert found.bad[2]


@given(st.lists(st.sampled_from(["good", "bad", "null", "old"]), min_size=1, max_size=30))
def test_rows_keep_their_places_among_bad_ones_and_versions(kinds: list[str]) -> None:
    values: dict[str, bytes | None] = {"good": as_json(id=3), "bad": b"{", "null": None, "old": as_json(id=4)}
    versions = [b"\x01" if kind == "old" else b"\x02" for kind in kinds]
    found = decode(json_decoder(ORDER), [values[kind] for kind in kinds], versions)
    expected = {"good": {"id": 3, "name": None}, "old": {"id": 4, "name": None}}
    assert found.column.to_pylist() == [expected.get(kind) for kind in kinds]
    assert sorted(found.bad) == [row for row, kind in enumerate(kinds) if kind == "bad"]


def record(*fields: dict[str, Any]) -> bytes:
    return json.dumps({"type": "record", "name": "Order", "fields": fields}).encode()


def avro(schema: bytes, row: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), row)
    return out.getvalue()


V0 = record({"name": "id", "type": "int"}, {"name": "gone", "type": "string"})
V1 = record(
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "kind", "type": "string", "default": "usual"},
    {"name": "late", "type": ["string", "null"]},
)
VERSIONS = {b"\x00": V0, b"\x01": V1}


def of_version(version: bytes) -> TopicSchema | None:
    data = VERSIONS.get(version)
    return None if data is None else TopicSchema("Avro", data, version)


def test_avro_is_read_with_the_schema_of_its_writer_and_resolved_to_the_readers() -> None:
    names = [(name, pa.string()) for name in ("name", "kind", "late")]
    kind = pa.struct([("id", pa.int64()), *names])
    decoder = decoder_of(ValueSchema("Avro", V1), kind, of_version)
    old, new = avro(V0, {"id": 7, "gone": "x"}), avro(V1, {"id": 8, "name": "n", "kind": "k", "late": "l"})
    found = decode(decoder, [new, old, new, new], [b"\x01", b"\x00", b"\x01", b""])
    fresh = {"id": 8, "name": "n", "kind": "k", "late": "l"}
    aged = {"id": 7, "name": None, "kind": "usual", "late": None}
    assert found.column.to_pylist() == [fresh, aged, fresh, fresh]
    assert found.bad == {}


def test_avro_by_ddl_takes_fields_of_the_writers_schema_by_name() -> None:
    kind = pa.struct([("kind", pa.string()), ("id", pa.int64()), ("other", pa.string())])
    decoder = decoder_of(ValueSchema("Avro", b"{}", derived=True), kind, of_version)
    found = decode(decoder, [avro(V1, {"id": 8, "kind": "k"})], [b"\x01"])
    assert found.column.to_pylist() == [{"kind": "k", "id": 8, "other": None}]


def test_an_unknown_version_makes_all_its_values_bad() -> None:
    decoder = decoder_of(ValueSchema("Avro", V1), ORDER, of_version)
    found = decode(decoder, [b"x", None, avro(V1, {"id": 1})], [b"\x05", b"\x05", b"\x01"])
    assert list(found.bad) == [0]
    assert "no version 05" in found.bad[0]
    assert found.column.to_pylist() == [None, None, {"id": 1, "name": None}]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""])
def test_an_avro_value_of_the_wrong_length_is_bad(change: Callable[[bytes], bytes]) -> None:
    decoder = decoder_of(ValueSchema("Avro", V1), ORDER, of_version)
    good = avro(V1, {"id": 1})
    found = decode(decoder, [good, change(good), good])
    assert list(found.bad) == [1]
    assert found.column.to_pylist() == [{"id": 1, "name": None}, None, {"id": 1, "name": None}]


@pytest.mark.parametrize(
    ("name", "kind", "data", "value"),
    [
        ("String", pa.string(), "é".encode(), "é"),
        ("Bool", pa.bool_(), b"\x01", True),
        ("Int8", pa.int8(), b"\xff", -1),
        ("Int16", pa.int16(), b"\x01\x00", 256),
        ("Int32", pa.int32(), b"\xff\xff\xff\xfe", -2),
        ("Int64", pa.int64(), b"\x00" * 7 + b"\x09", 9),
        ("Float", pa.float32(), b"\x3f\x80\x00\x00", 1.0),
        ("Double", pa.float64(), b"\x3f\xf0" + b"\x00" * 6, 1.0),
    ],
)
def test_primitive_values_are_read_as_pulsar_writes_them(
    name: str, kind: Any, data: bytes, value: Any
) -> None:
    found = decode(ValueDecoder(kind, lambda version: PrimitiveRows(name)), [data, None, b"\xff\xff\xff"])
    assert found.column.to_pylist() == [value, None, None]
    assert list(found.bad) == [2]
