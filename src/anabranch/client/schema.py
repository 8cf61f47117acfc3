"""Schemas turn values into bytes and back. Any object with `encode` and `decode` is a schema.

A schema that has a definition is registered with its topic, and the broker checks that it is compatible with
the schemas registered before. This module must not know messages, consumers or the network.

Every producer and consumer imports this module, and many need only bytes. So modules that load msgspec,
fastavro or protobuf are imported when a schema that needs them is made.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from functools import partial
from struct import Struct, error
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

from anabranch.arguments import check_flag
from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.pairs import join_pair, split_pair
from anabranch.schemas.schema_errors import SchemaError

if TYPE_CHECKING:
    from anabranch.schemas.codecs import Decode
    from anabranch.schemas.definitions import Definition

K = TypeVar("K")
T = TypeVar("T")
Value = TypeVar("Value")
"""The type of values in static methods: pyright takes the class's own `T` for unknown there."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    V = TypeVarWithDefault("V", default=bytes)
else:
    V = TypeVar("V")
    """The type of values; without a schema they are bytes."""

_MISTAKES = (Exception,)
"""For a value that does not fit, msgspec, fastavro, pydantic and protobuf raise errors of no common type."""


class Codec(Protocol[T]):
    """A schema, as producers and consumers use it."""

    def encode(self, value: T) -> bytes:
        """Return the bytes to store; raises TypeError for a value of another type."""
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """Return the value that `encode` turned into these bytes."""
        raise NotImplementedError


def checked_codec(schema: Codec[T]) -> Codec[T]:
    """Return the schema; raises InvalidConfigurationError for another object, such as a type."""
    if not (hasattr(schema, "encode") and hasattr(schema, "decode")):
        raise InvalidConfigurationError(f"schema must be a schema, such as Schema.json(...), not {schema!r}")
    return schema


class Schema(Codec[T]):
    """Ready-made schemas, such as `Schema.json(Order)`, `Schema.avro(Order)` and `Schema.string()`.

    Bytes that a schema cannot decode, and values that it cannot encode, raise SchemaError.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.create_producer("names", schema=Schema.string()).send("Zoë")
    """

    @property
    def definition(self) -> Definition | None:
        """The definition that the broker registers and compares, or None if this schema is not registered."""
        return None

    @property
    def by_writer(self) -> bool:
        """Whether values can only be decoded with the schema that wrote them."""
        return False

    def decoder(self, writer: Definition | None) -> Callable[[builtins.bytes], T]:
        """Return the decoding function for a writer; None is a writer without a registered schema."""
        return self.decode

    def key_decoder(self, writer: Definition | None) -> Callable[[builtins.bytes | None], Any] | None:
        """Return the function that decodes a message's key as the first half of its value.

        None means that the key is not part of the value.
        """
        return None

    @staticmethod
    def bytes() -> Schema[builtins.bytes]:
        """Values are bytes, stored unchanged."""
        return BYTES

    @staticmethod
    def string() -> Schema[str]:
        """Values are text, stored as UTF-8."""
        return _STRING

    @staticmethod
    def bool() -> Schema[builtins.bool]:
        """Values are True and False."""
        return _Number("Bool", builtins.bool)

    @staticmethod
    def int8() -> Schema[int]:
        """Values are whole numbers of 8 bits; `int16`, `int32` and `int64` take larger ones."""
        return _Number("Int8", int)

    @staticmethod
    def int16() -> Schema[int]:
        """Values are whole numbers of 16 bits."""
        return _Number("Int16", int)

    @staticmethod
    def int32() -> Schema[int]:
        """Values are whole numbers of 32 bits."""
        return _Number("Int32", int)

    @staticmethod
    def int64() -> Schema[int]:
        """Values are whole numbers of 64 bits."""
        return _Number("Int64", int)

    @staticmethod
    def float32() -> Schema[float]:
        """Values are numbers of 32 bits."""
        return _Number("Float", float)

    @staticmethod
    def float64() -> Schema[float]:
        """Values are numbers of 64 bits."""
        return _Number("Double", float)

    @overload
    @staticmethod
    def json() -> Schema[Any]: ...
    @overload
    @staticmethod
    def json(kind: type[Value]) -> Schema[Value]: ...
    @staticmethod
    def json(kind: Any = None) -> Schema[Any]:
        """Values of a dataclass, msgspec struct, typed dict or pydantic model, stored as JSON.

        Without a type, values are those of the json module, and no schema is registered.
        """
        if kind is None:
            return _ANY_JSON
        from anabranch.schemas.codecs import definition_for, json_codec

        encode, decode = json_codec(kind)
        return _Typed(kind, definition_for(kind, "Json"), encode, decode)

    @staticmethod
    def avro(kind: type[Value]) -> Schema[Value]:
        """Values of a dataclass, msgspec struct, typed dict or pydantic model, stored as Avro.

        Values of other versions of the schema are read with the version that wrote them, and get this type's
        defaults for fields that they lack. Needs the extra `avro`.
        """
        from anabranch.schemas.codecs import AvroCodec, definition_for

        definition = definition_for(kind, "Avro")
        codec = AvroCodec(kind, definition.data)
        return _Typed(kind, definition, codec.encode, codec.decode, codec.decoder)

    @staticmethod
    def protobuf(kind: type[Value]) -> Schema[Value]:
        """Values of a message class that protoc made; registered as Pulsar's native protobuf schema."""
        from anabranch.schemas.codecs import protobuf_definition

        message_class: Any = kind
        return _Typed(kind, protobuf_definition(kind), _serialized, message_class.FromString)

    @staticmethod
    def key_value(
        key: Schema[K], value: Schema[Value], *, separated: builtins.bool = False
    ) -> Schema[tuple[K, Value]]:
        """Values are pairs, and each half has its own schema.

        Both halves are stored in the value. With `separated`, the first half is stored as the key of the
        message instead, which routes the message; `message.key_bytes` has its bytes.
        """
        check_flag("separated", separated)
        halves = _Halves(key, value, separated=separated)
        return _Separated(halves) if separated else _Pair(halves)

    @staticmethod
    def auto_consume() -> Schema[Any]:
        """For consumers: values are decoded with the schema that each message was written with.

        JSON and Avro become dicts, native protobuf becomes a message, primitives become Python's types, and
        key-value schemas become pairs. Values of messages without a schema stay bytes.
        """
        return _AutoConsume()


class BytesSchema(Schema[bytes]):
    """Values are bytes, stored unchanged.

    With a definition, the bytes are values that another writer has encoded, and its schema is registered.
    """

    def __init__(self, definition: Definition | None = None) -> None:
        self._definition = definition

    @property
    def definition(self) -> Definition | None:
        return self._definition

    def encode(self, value: bytes) -> bytes:
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if not isinstance(value, bytes):
            raise TypeError(
                f"a value of type {type(value).__name__} needs a schema: pass bytes, or give the producer "
                "schema=Schema.string(), or Schema.json() with the type of its values"
            )
        return value

    def decode(self, data: bytes) -> bytes:
        return data


def _defined_by_name(kind: str) -> Definition:
    """Return the definition of a primitive schema, which the registry keeps without a text."""
    from anabranch.schemas.definitions import Definition

    return Definition(kind, b"", {})


class _String(Schema[str]):
    @property
    def definition(self) -> Definition:
        return _defined_by_name("String")

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"the string schema takes text, not {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as wrong:
            raise SchemaError(f"the value cannot be encoded as UTF-8: {wrong}") from wrong

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as wrong:
            raise SchemaError(f"the value is not UTF-8: {wrong}") from wrong


class _Number(Schema[T]):
    """One number or truth value."""

    def __init__(self, kind: str, type_: type[T]) -> None:
        from anabranch.schemas.primitives import DECODERS, FORMS

        self._kind, self._type = kind, type_
        self._pack, self._unpack = Struct(FORMS[kind]).pack, DECODERS[kind]

    @property
    def definition(self) -> Definition:
        return _defined_by_name(self._kind)

    def encode(self, value: T) -> bytes:
        right: tuple[type, ...] = (float, int) if self._type is float else (self._type,)
        # To Python, True is the number 1. Stored as a number, it would come back as one.
        if not isinstance(value, right) or (isinstance(value, bool) and self._type is not bool):
            raise TypeError(
                f"the schema {self._kind} takes {self._type.__name__}, not {type(value).__name__}"
            )
        try:
            return self._pack(value)
        except (error, OverflowError) as wrong:
            raise SchemaError(f"{value!r} does not fit the schema {self._kind}: {wrong}") from wrong

    def decode(self, data: bytes) -> T:
        try:
            return cast(T, self._unpack(data))
        except (error, ValueError) as wrong:
            raise SchemaError(f"the value is not of type {self._kind}: {wrong}") from wrong


class _AnyJson(Schema[Any]):
    """Values of the json module, of any shape, so there is no definition to register."""

    def encode(self, value: Any) -> bytes:
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        except (ValueError, RecursionError) as wrong:
            raise SchemaError(f"the value cannot be encoded as JSON: {wrong}") from wrong

    def decode(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as wrong:
            raise SchemaError(f"the value is not JSON: {wrong}") from wrong


class _Typed(Schema[T]):
    """Values of one Python type; errors of the package that does the work become SchemaError."""

    def __init__(
        self,
        kind: type[T],
        definition: Definition,
        encode: Callable[[Any], bytes],
        decode: Decode,
        decoder_for: Callable[[bytes], Decode] | None = None,
    ) -> None:
        """`decoder_for` takes the definition of a writer; only Avro needs it to read values."""
        self._definition, self._encode, self._decoder_for = definition, encode, decoder_for
        self._name: str = getattr(kind, "__name__", str(kind))
        # Values of a typed dict are plain dicts, and `isinstance` refuses the typed dict itself.
        self._type: Any = kind if isinstance(kind, type) and not hasattr(kind, "__total__") else dict
        self._decode = self._checked(decode)

    @property
    def definition(self) -> Definition:
        return self._definition

    @property
    def by_writer(self) -> bool:
        return self._decoder_for is not None

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._type):
            raise TypeError(f"the schema takes {self._name}, not {type(value).__name__}")
        try:
            return self._encode(value)
        except _MISTAKES as mistake:
            raise SchemaError(f"the value does not fit the schema of {self._name}: {mistake}") from mistake

    def decode(self, data: bytes) -> T:
        """Decode what this very schema wrote."""
        return self._decode(data)

    def decoder(self, writer: Definition | None) -> Callable[[bytes], T]:
        if self._decoder_for is None:
            return self.decode
        if writer is None:
            return self._decode
        if writer.kind != self._definition.kind:
            raise SchemaError(
                f"the value was written with a schema of kind {writer.kind}, not {self._definition.kind}"
            )
        return self._checked(self._decoder_for(writer.data))

    def _checked(self, decode: Decode) -> Callable[[bytes], T]:
        return _checked_decode(decode, f"the schema of {self._name}")


def _serialized(message: Any) -> bytes:
    return cast(bytes, message.SerializeToString())


def _checked_decode(decode: Decode, schema: str) -> Decode:
    """Return a function that decodes, and raises SchemaError for bytes that do not fit."""

    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except _MISTAKES as mistake:
            raise SchemaError(f"the value does not fit {schema}: {mistake}") from mistake

    return checked


class _Halves(Generic[K, T]):
    """The schemas of both halves of a pair, and the definition that names them together."""

    def __init__(self, key: Schema[K], value: Schema[T], *, separated: bool) -> None:
        from anabranch.schemas.definitions import key_value_definition

        for half in (key, value):
            if not isinstance(half, Schema) or isinstance(half, (_AutoConsume, _Pair, _Separated)):
                raise InvalidConfigurationError(f"{half!r} cannot be a half of a key-value schema")
        self.key, self.value, self._separated = key, value, separated
        self.by_writer = key.by_writer or value.by_writer
        self.definition = key_value_definition(key.definition, value.definition, separated=separated)

    def of(self, writer: Definition) -> tuple[Definition, Definition]:
        """Return the definitions of a writer's halves; raises SchemaError if it stored them another way."""
        from anabranch.schemas.definitions import KEY_VALUE, halves, is_separated

        if writer.kind != KEY_VALUE or is_separated(writer) is not self._separated:
            raise SchemaError(
                f"the value was written in another form: {writer.kind} {dict(writer.properties)}"
            )
        return halves(writer)


class _Pair(Schema[tuple[K, T]]):
    """Pairs whose halves are both stored in the value, each preceded by its size."""

    def __init__(self, halves: _Halves[K, T]) -> None:
        self._halves = halves

    @property
    def definition(self) -> Definition:
        return self._halves.definition

    @property
    def by_writer(self) -> bool:
        return self._halves.by_writer

    def encode(self, value: tuple[K, T]) -> bytes:
        first, second = _checked_pair(value)
        return join_pair(self._halves.key.encode(first), self._halves.value.encode(second))

    def decode(self, data: bytes) -> tuple[K, T]:
        return _decoded_pair(data, self._halves.key.decode, self._halves.value.decode)

    def decoder(self, writer: Definition | None) -> Callable[[bytes], tuple[K, T]]:
        if writer is None:
            return self.decode
        key, value = self._halves.of(writer)
        return partial(
            _decoded_pair,
            decode_key=self._halves.key.decoder(key),
            decode_value=self._halves.value.decoder(value),
        )


class _Separated(Schema[tuple[K, T]]):
    """Pairs whose first half is the key of the message; messages add it to the result of `decode`."""

    def __init__(self, halves: _Halves[K, T]) -> None:
        self._halves = halves

    @property
    def definition(self) -> Definition:
        return self._halves.definition

    @property
    def by_writer(self) -> bool:
        return self._halves.by_writer

    def encode(self, value: tuple[K, T]) -> bytes:
        return self._halves.value.encode(_checked_pair(value)[1])

    def encode_key(self, value: tuple[K, T]) -> bytes:
        """Return the key of a message with this value."""
        return self._halves.key.encode(_checked_pair(value)[0])

    def decode(self, data: bytes) -> Any:
        return self._halves.value.decode(data)

    def decode_key(self, key: bytes | None) -> K:
        """Return the first half of the value of a message with this key."""
        return _decoded_key(key, self._halves.key.decode)

    def decoder(self, writer: Definition | None) -> Callable[[bytes], Any]:
        return self.decode if writer is None else self._halves.value.decoder(self._halves.of(writer)[1])

    def key_decoder(self, writer: Definition | None) -> Callable[[bytes | None], K]:
        if writer is None:
            return self.decode_key
        return partial(_decoded_key, decode=self._halves.key.decoder(self._halves.of(writer)[0]))


def _checked_pair(value: Any) -> tuple[Any, Any]:
    """Return both halves; raises TypeError for anything but a pair."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"the schema takes a pair of a key and a value, not {type(value).__name__}")
    return value


def _decoded_pair(
    data: bytes, decode_key: Callable[[bytes], K], decode_value: Callable[[bytes], T]
) -> tuple[K, T]:
    key, value = split_pair(data)
    return decode_key(key), decode_value(value)


def _decoded_key(key: bytes | None, decode: Callable[[bytes], K]) -> K:
    if key is None:
        raise SchemaError("the message has no key, which is the first half of its value")
    return decode(key)


class _AutoConsume(Schema[Any]):
    """Decodes values with the schema of their writer."""

    @property
    def definition(self) -> Definition:
        return _defined_by_name("AutoConsume")

    @property
    def by_writer(self) -> bool:
        return True

    def encode(self, value: Any) -> bytes:
        raise TypeError("Schema.auto_consume() is for consumers; give a producer the schema of its values")

    def decode(self, data: bytes) -> Any:
        return data

    def decoder(self, writer: Definition | None) -> Callable[[bytes], Any]:
        from anabranch.schemas.definitions import halves, is_separated

        if writer is None:
            return self.decode
        return _plain_decode(halves(writer)[1] if is_separated(writer) else writer)

    def key_decoder(self, writer: Definition | None) -> Callable[[bytes | None], Any] | None:
        from anabranch.schemas.definitions import halves, is_separated

        if writer is None or not is_separated(writer):
            return None
        return partial(_decoded_key, decode=_plain_decode(halves(writer)[0]))


def _plain_decode(writer: Definition) -> Decode:
    """Return the function that decodes what a schema wrote into plain values."""
    from anabranch.schemas.codecs import decoder_by_definition

    return _checked_decode(decoder_by_definition(writer), f"its schema of kind {writer.kind}")


BYTES = BytesSchema()
_STRING = _String()
_ANY_JSON = _AnyJson()
