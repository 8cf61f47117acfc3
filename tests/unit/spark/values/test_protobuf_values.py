"""Protobuf values by a descriptor: presence, nesting, maps, enums, times."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2 as d
from google.protobuf import message_factory, timestamp_pb2
from pyspark.sql.pandas.types import to_arrow_type

from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.protobuf import MessageType
from anabranch.spark.values.decoder import ValueDecoder
from anabranch.spark.values.protobuf_rows import ProtobufRows, spark_type_of

F = d.FieldDescriptorProto


def order_files() -> d.FileDescriptorSet:
    file = d.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="USUAL", number=0)
    kind.value.add(name="RARE", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="RatesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    add = order.field.add
    add(name="id", number=1, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    add(name="kind", number=2, type=F.TYPE_ENUM, type_name=".shop.Kind", label=F.LABEL_OPTIONAL)
    add(name="items", number=3, type=F.TYPE_MESSAGE, type_name=".shop.Item", label=F.LABEL_REPEATED)
    add(
        name="at",
        number=4,
        type=F.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=F.LABEL_OPTIONAL,
    )
    add(name="first", number=5, type=F.TYPE_MESSAGE, type_name=".shop.Item", label=F.LABEL_OPTIONAL)
    add(name="count", number=6, type=F.TYPE_UINT32, label=F.LABEL_OPTIONAL)
    add(name="raw", number=7, type=F.TYPE_BYTES, label=F.LABEL_OPTIONAL)
    add(
        name="rates",
        number=8,
        type=F.TYPE_MESSAGE,
        type_name=".shop.Order.RatesEntry",
        label=F.LABEL_REPEATED,
    )
    imported = d.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    # The file comes before its import, which the reader must sort out.
    return d.FileDescriptorSet(file=[file, imported])


ORDER = MessageType(order_files().SerializeToString(), "shop.Order")


def message(**fields: Any) -> bytes:
    made: bytes = message_factory.GetMessageClass(ORDER.descriptor())(**fields).SerializeToString()
    return made


def decode(kind: Any, *values: bytes | None) -> Any:
    decoder = ValueDecoder(kind, lambda version: ProtobufRows(ORDER, kind))
    found = decoder.decode(pa.array(values, pa.binary()), [b""], np.zeros(len(values), np.int64))
    found.column.validate(full=True)
    return found


def test_every_field_of_a_message_becomes_a_field_of_the_column() -> None:
    kind = to_arrow_type(spark_type_of(ORDER.descriptor()), timezone="UTC")
    value = message(
        id=5,
        kind=1,
        items=[{"sku": "a"}, {"sku": "b"}],
        at={"seconds": 1_700_000_000, "nanos": 123_456_789},
        count=2**32 - 1,
        raw=b"\xff",
        rates={"eur": 1.5},
    )
    full, empty = decode(kind, value, b"").column.to_pylist()
    assert full == {
        "id": 5,
        "kind": "RARE",
        "items": [{"sku": "a"}, {"sku": "b"}],
        "at": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
        "first": None,
        "count": 2**32 - 1,
        "raw": b"\xff",
        "rates": [("eur", 1.5)],
    }
    assert empty == {
        **dict.fromkeys(full),
        "id": 0,
        "kind": "USUAL",
        "items": [],
        "count": 0,
        "raw": b"",
        "rates": [],
    }


def test_a_part_of_the_message_may_be_asked_for_and_bad_bytes_are_bad() -> None:
    kind = pa.struct([("kind", pa.string()), ("id", pa.int64())])
    # The number 9 is of a newer writer.
    found = decode(kind, message(id=1, kind=9), b"\xff\xff", None)
    assert found.column.to_pylist() == [{"kind": "9", "id": 1}, None, None]
    assert list(found.bad) == [1]


def test_the_definition_of_pulsars_native_schema_is_read() -> None:
    definition = {
        "fileDescriptorSet": b64encode(ORDER.files).decode(),
        "rootMessageTypeName": "shop.Order",
        "rootFileDescriptorName": "order.proto",
    }
    assert MessageType.registered(json.dumps(definition).encode()) == ORDER
    with pytest.raises(InvalidConfigurationError, match="cannot be read"):
        MessageType.registered(b"{}")


def test_descriptors_that_do_not_define_the_message_are_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"shop\.Nothing"):
        MessageType(ORDER.files, "shop.Nothing").descriptor()
    alone = d.FileDescriptorSet(file=order_files().file[:1])
    with pytest.raises(InvalidConfigurationError, match="--include_imports"):
        MessageType(alone.SerializeToString(), "shop.Order").descriptor()


def test_a_message_that_contains_itself_is_refused() -> None:
    file = d.FileDescriptorProto(name="tree.proto", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=F.TYPE_MESSAGE, type_name=".Tree", label=F.LABEL_OPTIONAL)
    files = d.FileDescriptorSet(file=[file]).SerializeToString()
    with pytest.raises(InvalidConfigurationError, match="contains itself"):
        spark_type_of(MessageType(files, "Tree").descriptor())
