"""Values of Pulsar's primitive schemas: one number, text or truth value, big-endian."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final


def _flag(data: bytes) -> bool:
    if len(data) != 1:
        raise ValueError(f"a truth value of {len(data)} bytes")
    return data != b"\0"


def _number(form: str) -> Callable[[bytes], Any]:
    unpack = Struct(form).unpack
    return lambda data: unpack(data)[0]


FORMS: Final[Mapping[str, str]] = {
    "Bool": ">?",
    "Int8": ">b",
    "Int16": ">h",
    "Int32": ">i",
    "Int64": ">q",
    "Float": ">f",
    "Double": ">d",
}
DECODERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "String": bytes.decode,
    **{kind: _number(form) for kind, form in FORMS.items()},
    "Bool": _flag,
}
"""Kind -> its values from bytes; bad bytes raise ValueError or struct.error."""
