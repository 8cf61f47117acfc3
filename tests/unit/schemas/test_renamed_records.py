"""Avro values whose writer gave its records other names than the reader has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from anabranch import Message, Schema
from anabranch.schemas.avro import parse_avro
from anabranch.schemas.avro_resolution import reader_of
from anabranch.schemas.codecs import AvroCodec, definition_for
from tests.harness.cluster import TOPIC, Brokers


@dataclass
class Goblet:
    size: int


@dataclass
class OldOrder:
    item: str
    cup: Goblet | None = None
    more: list[Goblet] = field(default_factory=list)


@dataclass
class Beaker:
    size: int
    colour: str = "white"


@dataclass
class NewOrder:
    item: str
    cup: Beaker | None = None
    more: list[Beaker] = field(default_factory=list)
    note: str | None = None


def read(value: object, kind: type, wanted: type) -> object:
    written = definition_for(kind, "Avro").data
    codec = AvroCodec(wanted, definition_for(wanted, "Avro").data)
    return codec.decoder(written)(AvroCodec(kind, written).encode(value))


def test_records_are_read_by_their_fields() -> None:
    order = OldOrder("tea", Goblet(2), [Goblet(3)])
    assert read(order, OldOrder, NewOrder) == NewOrder("tea", Beaker(2), [Beaker(3)])
    assert read(NewOrder("tea", Beaker(2), [], "hot"), NewOrder, OldOrder) == OldOrder("tea", Goblet(2))


async def test_a_consumer_reads_what_a_class_of_another_name_wrote(brokers: Brokers) -> None:
    async with brokers.client() as client:
        old = await client.create_producer(TOPIC, schema=Schema.avro(OldOrder))
        await old.send(OldOrder("tea", Goblet(2)), key="k")
        new = await client.create_producer(TOPIC, schema=Schema.avro(NewOrder))
        await new.send(NewOrder("milk"), key="k")
        consumer = await client.subscribe_stream(
            TOPIC, "s", schema=Schema.avro(NewOrder), initial_position="earliest"
        )
        found: list[Message[NewOrder]] = [await consumer.receive(timeout=5) for _ in range(2)]
        assert [message.value for message in found] == [NewOrder("tea", Beaker(2)), NewOrder("milk")]


def test_a_union_prefers_the_record_of_the_same_name() -> None:
    cup = {"type": "record", "name": "Goblet", "fields": [{"name": "size", "type": "long"}]}
    mug = {"type": "record", "name": "Mug", "fields": [{"name": "size", "type": "long"}]}
    reader = {"type": "record", "name": "R", "fields": [{"name": "of", "type": [mug, cup]}]}
    writer = {"type": "record", "name": "W", "fields": [{"name": "of", "type": cup}]}
    found = reader_of(parse_avro(json.dumps(reader)), parse_avro(json.dumps(writer)))
    first, second = found["fields"][0]["type"]
    assert (found["aliases"], first.get("aliases"), second["aliases"]) == (["W"], None, ["Goblet"])


def test_records_of_other_fields_are_not_read() -> None:
    with pytest.raises(Exception, match="No default value for field item"):
        read(Goblet(2), Goblet, OldOrder)
