"""Schemas turn values into bytes and back; any object with `encode` and `decode` is a schema.

Those of `Schema` that have a definition are registered with the topic, and the broker checks that they fit
together. A schema never sees messages, keys or the network. Packages that only some schemas need are imported
when such a schema is made.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from struct import Struct, error
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from anabranch.arguments import check_flag
from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.schema_errors import SchemaError

if TYPE_CHECKING:
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


class Codec(Protocol[T]):
    """A schema, as producers and consumers use it."""

    def encode(self, value: T) -> bytes:
        """The bytes to store; raises TypeError for a value of another type."""
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """Undo `encode`."""
        raise NotImplementedError


def checked_codec(schema: Codec[T]) -> Codec[T]:
    """The schema of a caller; raises InvalidConfigurationError for an object that is none, such as a type."""
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
        """The definition that the broker registers and compares; None for a schema that is not registered."""
        return None

    @property
    def by_writer(self) -> bool:
        """Whether values can only be decoded with the schema that wrote them."""
        return False

    def decoder(self, writer: Definition | None) -> Callable[[builtins.bytes], T]:
        """The function that decodes what a writer wrote; None is a writer without a registered schema."""
        return self.decode

    def key_decoder(self, writer: Definition | None) -> Callable[[builtins.bytes | None], Any] | None:
        """The function that decodes the key of a message as the first half of its value; None without one."""
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
        from anabranch.client.typed_schemas import JsonSchema

        return JsonSchema(kind)

    @staticmethod
    def avro(kind: type[Value]) -> Schema[Value]:
        """Values of a dataclass, msgspec struct, typed dict or pydantic model, stored as Avro.

        Values of other versions of the schema are read with the version that wrote them, and get this type's
        defaults for fields that they lack. Needs the extra `avro`.
        """
        from anabranch.client.typed_schemas import AvroSchema

        return AvroSchema(kind)

    @staticmethod
    def protobuf(kind: type[Value]) -> Schema[Value]:
        """Values of a message class that protoc made; registered as Pulsar's native protobuf schema."""
        from anabranch.client.typed_schemas import ProtobufSchema

        return ProtobufSchema(kind)

    @staticmethod
    def key_value(
        key: Schema[K], value: Schema[Value], *, separated: builtins.bool = False
    ) -> Schema[tuple[K, Value]]:
        """Values are pairs, whose halves have schemas of their own.

        Both halves are stored in the value, or with `separated` the first is the key of the message, by which
        it is routed; `message.key_bytes` has its bytes.
        """
        from anabranch.client.typed_schemas import KeyValueSchema, SeparatedSchema

        check_flag("separated", separated)
        return SeparatedSchema(key, value) if separated else KeyValueSchema(key, value)

    @staticmethod
    def auto_consume() -> Schema[Any]:
        """For consumers: values decoded by the schema that each message was written with.

        JSON and Avro become dicts, native protobuf becomes a message, primitives become Python's, key-value
        schemas become pairs; messages without a schema stay bytes.
        """
        from anabranch.client.typed_schemas import AutoConsume

        return AutoConsume()


class _Bytes(Schema[bytes]):
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


class EncodedSchema(_Bytes):
    """Values that a writer has encoded already; the schema of the writer goes with them."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    @property
    def definition(self) -> Definition:
        return self._definition


class _Registered(Schema[T]):
    """A schema without a text of its own in the registry: its kind says all."""

    _kind: str

    @property
    def definition(self) -> Definition:
        from anabranch.schemas.definitions import Definition

        return Definition(self._kind, b"", {})


class _String(_Registered[str]):
    _kind = "String"

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"the string schema takes text, not {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as wrong:
            raise SchemaError(f"the value has no form in UTF-8: {wrong}") from wrong

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as wrong:
            raise SchemaError(f"the value is not UTF-8: {wrong}") from wrong


class _Number(_Registered[T]):
    """One number or truth value."""

    def __init__(self, kind: str, type_: type[T]) -> None:
        from anabranch.schemas.primitives import DECODERS, FORMS

        self._kind, self._type = kind, type_
        self._pack, self._unpack = Struct(FORMS[kind]).pack, DECODERS[kind]

    def encode(self, value: T) -> bytes:
        right: tuple[type, ...] = (float, int) if self._type is float else (self._type,)
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
    def encode(self, value: Any) -> bytes:
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        except (ValueError, RecursionError) as wrong:
            raise SchemaError(f"the value has no form in JSON: {wrong}") from wrong

    def decode(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as wrong:
            raise SchemaError(f"the value is not JSON: {wrong}") from wrong


BYTES = _Bytes()
_STRING = _String()
_ANY_JSON = _AnyJson()
