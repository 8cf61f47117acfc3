"""Values of key-value schemas as bytes: both halves, each behind its size, as Pulsar's clients store them."""

from __future__ import annotations

from struct import Struct
from typing import Final

from anabranch.errors import counted
from anabranch.schemas.schema_errors import SchemaError

_SIZE: Final = Struct(">i")


def join_pair(key: bytes, value: bytes) -> bytes:
    return _SIZE.pack(len(key)) + key + _SIZE.pack(len(value)) + value


def split_pair(data: bytes) -> tuple[bytes, bytes]:
    """Undo `join_pair`; raises SchemaError, also for a half that is null."""
    key, rest = _split(data, "key")
    value, rest = _split(rest, "value")
    if rest:
        raise SchemaError(
            f"the pair of a key and a value is followed by {counted(len(rest), 'unexpected byte')}"
        )
    return key, value


def _split(data: bytes, name: str) -> tuple[bytes, bytes]:
    if len(data) < _SIZE.size:
        raise SchemaError(f"the bytes end before the {name} of the pair")
    (size,) = _SIZE.unpack_from(data)
    if size < 0:
        raise SchemaError(f"the {name} of the pair is null")
    end = _SIZE.size + size
    if len(data) < end:
        raise SchemaError(f"the {name} of the pair is shorter than its size says")
    return data[_SIZE.size : end], data[end:]
