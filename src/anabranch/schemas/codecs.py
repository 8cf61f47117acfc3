"""Values of Python types as bytes and back: JSON, Avro and protobuf.

Each codec is made for one type. `decoder` returns the function for what one writer wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import msgspec

from anabranch.errors import InvalidConfigurationError, counted
from anabranch.schemas.avro import parse_avro
from anabranch.schemas.avro_resolution import reader_of
from anabranch.schemas.definitions import KEY_VALUE, NATIVE, Definition, halves
from anabranch.schemas.optional import optional
from anabranch.schemas.pairs import split_pair
from anabranch.schemas.primitives import DECODERS
from anabranch.schemas.protobuf import MessageType, definition_of
from anabranch.schemas.python_types import Form, avro_of, is_pydantic

Decode = Callable[[bytes], Any]

_KEPT: Final = (bytes, datetime, date, time, UUID, Decimal)
"""Types that Avro's writer takes as they are."""


def definition_for(kind: Any, form: Form) -> Definition:
    """Return the definition of the schema of a Python type."""
    return Definition(form, json.dumps(avro_of(kind, form), separators=(",", ":")).encode(), {})


def json_codec(kind: Any) -> tuple[Callable[[Any], bytes], Decode]:
    """Return the functions that encode and decode the JSON of a type."""
    if is_pydantic(kind):
        return (lambda value: value.model_dump_json(by_alias=True).encode()), kind.model_validate_json
    try:
        return msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode
    except TypeError as error:
        raise InvalidConfigurationError(f"{kind!r} has no JSON form: {error}") from error


class AvroCodec:
    """Encodes values of a type as Avro, and decodes what any compatible schema wrote."""

    def __init__(self, kind: Any, definition: bytes) -> None:
        self._fastavro = optional("fastavro", "Avro schemas", "avro")
        self._kind, self._definition = kind, definition
        self._schema = parse_avro(definition).root
        self._is_model = is_pydantic(kind)
        self.decode = self.decoder(None)

    def encode(self, value: Any) -> bytes:
        if self._is_model:
            value = value.model_dump(by_alias=True)
        stream = BytesIO()
        self._fastavro.schemaless_writer(
            stream, self._schema, msgspec.to_builtins(value, builtin_types=_KEPT)
        )
        return stream.getvalue()

    def decoder(self, writer: bytes | None) -> Decode:
        """Return the function for values that a writer's schema wrote; None is a writer with this schema."""
        read = avro_reader(self._definition if writer is None else writer, self._definition)
        if self._is_model:
            validate = self._kind.model_validate
            return lambda data: validate(read(data))
        convert, kind = msgspec.convert, self._kind
        return lambda data: convert(read(data), kind, builtin_types=_KEPT)


def avro_reader(writer: bytes, reader: bytes | None = None) -> Decode:
    """Return a function that reads a writer's Avro into plain values, by a reader's schema if given."""
    read = optional("fastavro", "Avro schemas", "avro").schemaless_reader
    parsed = parse_avro(writer)
    written = parsed.root
    wanted = None if reader is None or reader == writer else reader_of(parse_avro(reader), parsed)

    def decode(data: bytes) -> Any:
        stream = BytesIO(data)
        found = read(stream, written, wanted)
        if stream.tell() != len(data):
            left = counted(len(data) - stream.tell(), "unexpected byte")
            raise ValueError(f"the value is followed by {left}")
        return found

    return decode


def protobuf_definition(kind: Any) -> Definition:
    """Return the definition of the native protobuf schema of a message class."""
    descriptor = getattr(kind, "DESCRIPTOR", None)
    if not isinstance(kind, type) or descriptor is None or not hasattr(kind, "FromString"):
        raise InvalidConfigurationError(f"{kind!r} is not a message class made by protoc")
    return Definition(NATIVE, definition_of(descriptor), {})


def decoder_by_definition(writer: Definition) -> Decode:
    """Return the function that decodes what a schema wrote into plain values, or a protobuf message.

    The halves of a pair with a separated key are decoded one by one, each with its own definition.
    """
    if writer.kind == "None":
        return bytes
    if writer.kind in DECODERS:
        return DECODERS[writer.kind]
    if writer.kind == "Json":
        return json.loads
    if writer.kind == "Avro":
        return avro_reader(writer.data)
    if writer.kind == KEY_VALUE:
        return _pair_decoder(*map(decoder_by_definition, halves(writer)))
    if writer.kind == NATIVE:
        from google.protobuf import message_factory

        parse: Decode = message_factory.GetMessageClass(
            MessageType.registered(writer.data).descriptor()
        ).FromString
        return parse
    raise InvalidConfigurationError(
        f"values of kind {writer.kind} cannot be decoded without a type; read `message.data`"
    )


def _pair_decoder(decode_key: Decode, decode_value: Decode) -> Decode:
    def decode(data: bytes) -> Any:
        key, value = split_pair(data)
        return decode_key(key), decode_value(value)

    return decode
