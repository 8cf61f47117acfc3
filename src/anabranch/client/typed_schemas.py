"""Schemas of Python types; each module of another package that they need is imported with this one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from anabranch.client.schema import Schema
from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.codecs import (
    AvroCodec,
    Decode,
    decoder_by_definition,
    definition_for,
    json_codec,
    protobuf_definition,
)
from anabranch.schemas.definitions import (
    KEY_VALUE,
    Definition,
    halves,
    is_separated,
    key_value_definition,
)
from anabranch.schemas.pairs import join_pair, split_pair
from anabranch.schemas.schema_errors import SchemaError

K = TypeVar("K")
T = TypeVar("T")

_MISTAKES = (Exception,)
"""The packages below raise errors of no common type for a value that does not fit."""


class _Typed(Schema[T]):
    """A schema of one type; errors of the package that does the work become SchemaError."""

    def __init__(self, kind: type[T], definition: Definition, encode: Callable[[Any], bytes]) -> None:
        self._definition, self._encode = definition, encode
        self._name: str = getattr(kind, "__name__", str(kind))
        # A typed dict has no instances of its own.
        self._type: Any = kind if isinstance(kind, type) and not hasattr(kind, "__total__") else dict

    @property
    def definition(self) -> Definition:
        return self._definition

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._type):
            raise TypeError(f"the schema takes {self._name}, not {type(value).__name__}")
        try:
            return self._encode(value)
        except _MISTAKES as error:
            raise SchemaError(f"the value does not fit the schema of {self._name}: {error}") from error

    def _checked(self, decode: Decode) -> Callable[[bytes], T]:
        name = self._name

        def checked(data: bytes) -> T:
            try:
                return cast(T, decode(data))
            except _MISTAKES as error:
                raise SchemaError(f"the value does not fit the schema of {name}: {error}") from error

        return checked


class JsonSchema(_Typed[T]):
    """Values as JSON."""

    def __init__(self, kind: type[T]) -> None:
        encode, decode = json_codec(kind)
        super().__init__(kind, definition_for(kind, "Json"), encode)
        self._decode = self._checked(decode)

    def decode(self, data: bytes) -> T:
        return self._decode(data)


class ProtobufSchema(_Typed[T]):
    """Messages of a class that protoc made."""

    def __init__(self, kind: type[T]) -> None:
        definition = protobuf_definition(kind)
        super().__init__(kind, definition, lambda message: cast(bytes, message.SerializeToString()))
        self._decode = self._checked(cast(Any, kind).FromString)

    def decode(self, data: bytes) -> T:
        return self._decode(data)


class AvroSchema(_Typed[T]):
    """Values as Avro."""

    def __init__(self, kind: type[T]) -> None:
        definition = definition_for(kind, "Avro")
        self._codec = AvroCodec(kind, definition.data)
        super().__init__(kind, definition, self._codec.encode)
        self._decode = self._checked(self._codec.decode)

    def decode(self, data: bytes) -> T:
        """Decode what this very schema wrote."""
        return self._decode(data)

    @property
    def by_writer(self) -> bool:
        return True

    def decoder(self, writer: Definition | None) -> Callable[[bytes], T]:
        if writer is None:
            return self._decode
        if writer.kind != "Avro":
            raise SchemaError(f"the value was written with a schema of kind {writer.kind}, not Avro")
        return self._checked(self._codec.decoder(writer.data))


class KeyValueSchema(Schema[tuple[K, T]]):
    """Pairs whose halves are both stored in the value, each behind its size."""

    separated = False

    def __init__(self, key: Schema[K], value: Schema[T]) -> None:
        for half in (key, value):
            if not isinstance(half, Schema) or isinstance(half, (AutoConsume, KeyValueSchema)):
                raise InvalidConfigurationError(f"{half!r} cannot be a half of a key-value schema")
        self._key, self._value = key, value
        self._definition = key_value_definition(key.definition, value.definition, separated=self.separated)

    @property
    def definition(self) -> Definition:
        return self._definition

    @property
    def by_writer(self) -> bool:
        return self._key.by_writer or self._value.by_writer

    def encode(self, value: tuple[K, T]) -> bytes:
        first, second = checked_pair(value)
        return join_pair(self._key.encode(first), self._value.encode(second))

    def decode(self, data: bytes) -> tuple[K, T]:
        return self._decoded(data, self._key.decode, self._value.decode)

    def decoder(self, writer: Definition | None) -> Callable[[bytes], tuple[K, T]]:
        if writer is None:
            return self.decode
        key, value = self._halves_of(writer)
        return partial(
            self._decoded, decode_key=self._key.decoder(key), decode_value=self._value.decoder(value)
        )

    def _halves_of(self, writer: Definition) -> tuple[Definition, Definition]:
        if writer.kind != KEY_VALUE or is_separated(writer) is not self.separated:
            raise SchemaError(
                f"the value was written in another form: {writer.kind} {dict(writer.properties)}"
            )
        return halves(writer)

    def _decoded(
        self, data: bytes, decode_key: Callable[[bytes], K], decode_value: Callable[[bytes], T]
    ) -> tuple[K, T]:
        key, value = split_pair(data)
        return decode_key(key), decode_value(value)


class SeparatedSchema(KeyValueSchema[K, T]):
    """Pairs whose first half is the key of the message; messages add it to the result of `decode`."""

    separated = True

    def encode(self, value: tuple[K, T]) -> bytes:
        return self._value.encode(checked_pair(value)[1])

    def encode_key(self, value: tuple[K, T]) -> bytes:
        """The key of a message with this value."""
        return self._key.encode(checked_pair(value)[0])

    def decode(self, data: bytes) -> Any:
        return self._value.decode(data)

    def decode_key(self, key: bytes | None) -> K:
        """The first half of the value of a message with this key."""
        return _half_of(key, self._key.decode)

    def decoder(self, writer: Definition | None) -> Callable[[bytes], Any]:
        return self.decode if writer is None else self._value.decoder(self._halves_of(writer)[1])

    def key_decoder(self, writer: Definition | None) -> Callable[[bytes | None], K]:
        if writer is None:
            return self.decode_key
        return partial(_half_of, decode=self._key.decoder(self._halves_of(writer)[0]))


def _half_of(key: bytes | None, decode: Callable[[bytes], K]) -> K:
    if key is None:
        raise SchemaError("the message has no key, which is the first half of its value")
    return decode(key)


def checked_pair(value: Any) -> tuple[Any, Any]:
    """The halves; raises TypeError for another value."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"the schema takes a pair of a key and a value, not {type(value).__name__}")
    return value


class AutoConsume(Schema[Any]):
    """Decodes by the schema of the writer."""

    @property
    def definition(self) -> Definition:
        return Definition("AutoConsume", b"", {})

    @property
    def by_writer(self) -> bool:
        return True

    def encode(self, value: Any) -> bytes:
        raise TypeError("Schema.auto_consume() is for consumers; give a producer the schema of its values")

    def decode(self, data: bytes) -> Any:
        return data

    def decoder(self, writer: Definition | None) -> Callable[[bytes], Any]:
        if writer is None:
            return self.decode
        return _checked_by(halves(writer)[1] if is_separated(writer) else writer)

    def key_decoder(self, writer: Definition | None) -> Callable[[bytes | None], Any] | None:
        if writer is None or not is_separated(writer):
            return None
        return partial(_half_of, decode=_checked_by(halves(writer)[0]))


def _checked_by(writer: Definition) -> Decode:
    """The function that decodes what a schema wrote into plain values; its errors are those of schemas."""
    decode = decoder_by_definition(writer)

    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except _MISTAKES as error:
            raise SchemaError(f"the value does not fit its schema of kind {writer.kind}: {error}") from error

    return checked
