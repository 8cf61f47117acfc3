"""Schemas turn values into bytes and back; any object with `encode` and `decode` is a schema.

A schema never sees messages, keys or the network.
"""

from __future__ import annotations

import builtins
import json
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

T = TypeVar("T")

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


class Schema(Codec[T]):
    """Ready-made codecs: `Schema.bytes()`, `Schema.string()`, `Schema.json()`."""

    @staticmethod
    def bytes() -> Schema[builtins.bytes]:
        """Values are bytes, stored unchanged."""
        return BYTES

    @staticmethod
    def string() -> Schema[str]:
        """Values are text, stored as UTF-8."""
        return _STRING

    @staticmethod
    def json() -> Schema[Any]:
        """Values are those of the json module, stored as compact UTF-8 JSON."""
        return _JSON


class _Bytes(Schema[bytes]):
    def encode(self, value: bytes) -> bytes:
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if not isinstance(value, bytes):
            raise TypeError(
                f"a value of type {type(value).__name__} needs a schema: pass bytes, or give the producer "
                "schema=Schema.string() or Schema.json()"
            )
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class _String(Schema[str]):
    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"the string schema takes text, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class _Json(Schema[Any]):
    def encode(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


BYTES = _Bytes()
_STRING = _String()
_JSON = _Json()
