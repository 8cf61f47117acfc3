"""Checks that the texts of a command are UTF-8; protobuf returns any other text as bytes."""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from anabranch.errors import RemoteProtocolError

_TextFields = tuple[tuple[str, bool, bool], ...]
"""Name of the field, whether it repeats, and whether it is a message that holds texts."""


def check_text(message: Message) -> None:
    """Raise RemoteProtocolError for a text that is not UTF-8, also inside an inner message."""
    for name, repeated, inner in _text_fields(message.DESCRIPTOR):
        value = getattr(message, name)
        for item in value if repeated else (value,):
            if inner:
                check_text(item)
            elif not isinstance(item, str):
                raise RemoteProtocolError(f"the peer sent a {name} that is not UTF-8")


@cache
def _text_fields(kind: Descriptor) -> _TextFields:
    found: list[tuple[str, bool, bool]] = []
    for field in kind.fields:
        if field.type == field.TYPE_STRING:
            found.append((field.name, field.is_repeated, False))
        elif field.message_type not in (None, kind) and _text_fields(field.message_type):
            found.append((field.name, field.is_repeated, True))
    return tuple(found)
