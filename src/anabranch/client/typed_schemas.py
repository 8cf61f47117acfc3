"""Schemas of Python types; each module of another package that they need is imported with this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from anabranch.client.schema import Schema
from anabranch.schemas.codecs import (
    AvroCodec,
    Decode,
    decoder_by_definition,
    definition_for,
    json_codec,
    protobuf_definition,
)
from anabranch.schemas.definitions import Definition
from anabranch.schemas.schema_errors import SchemaError

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
        decode = decoder_by_definition(writer)

        def checked(data: bytes) -> Any:
            try:
                return decode(data)
            except _MISTAKES as error:
                raise SchemaError(
                    f"the value does not fit its schema of kind {writer.kind}: {error}"
                ) from error

        return checked
