"""Values of Pulsar's primitive schemas: one number or text per message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any

import pyarrow as pa

from anabranch.spark.values.formats import Getter, Path


def _flag(data: bytes) -> bool:
    if len(data) != 1:
        raise ValueError(f"a truth value of {len(data)} bytes")
    return data != b"\0"


def _number(form: str) -> Callable[[bytes], Any]:
    unpack = Struct(form).unpack
    return lambda data: unpack(data)[0]


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "String": bytes.decode,
    "Bool": _flag,
    "Int8": _number(">b"),
    "Int16": _number(">h"),
    "Int32": _number(">i"),
    "Int64": _number(">q"),
    "Float": _number(">f"),
    "Double": _number(">d"),
}


class PrimitiveRows:
    """Decodes the values of a primitive schema by Pulsar's name of it."""

    def __init__(self, name: str) -> None:
        self._decode = _DECODERS[name]

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        return list(map(self._decode, values))

    def getters(self, kind: Any, path: Path) -> Sequence[Getter]:
        raise TypeError("a primitive value has no fields")

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        return pa.array(values, kind)
