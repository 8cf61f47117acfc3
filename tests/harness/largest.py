"""Commands with one field as large as the table of limits allows, made from the descriptors."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from anabranch.broker.wire.handlers import HANDLERS
from anabranch.protocol.limits import LIMITS, Count, Pairs
from anabranch.protocol.pb import pulsar_pb2 as pb


def command_with(field: str, *, above: bool = False) -> Any:
    """A command that is empty but for this field of the table, which has its limit, or one more than that."""
    name, _, inner = field.partition(".")
    for kind in (*HANDLERS, pb.CommandConnect):
        command = kind()
        found = _find(command, name)
        if found is not None:
            _fill(found, found.DESCRIPTOR.fields_by_name[inner], above=above)
            return fill_required(command)
    raise AssertionError(f"no command holds {field}")


def _find(message: Message, name: str) -> Message | None:
    """The message of this type inside `message`, made on the way."""
    if message.DESCRIPTOR.name == name:
        return message
    for field in message.DESCRIPTOR.fields:
        kind = field.message_type
        if kind is None or kind is message.DESCRIPTOR or not _holds(kind, name):
            continue
        value = getattr(message, field.name)
        return _find(value.add() if field.is_repeated else value, name)
    return None


def _holds(kind: Any, name: str) -> bool:
    inner = (field.message_type for field in kind.fields)
    return kind.name == name or any(k is not None and k is not kind and _holds(k, name) for k in inner)


def _fill(message: Message, field: Any, *, above: bool) -> None:
    limit = LIMITS[f"{message.DESCRIPTOR.name}.{field.name}"]
    most = limit.most + above
    if isinstance(limit, Pairs):
        size = min(limit.value, 2**20 // limit.most - 8)
        pairs = [pb.KeyValue(key=str(number), value="v" * size) for number in range(most)]
        getattr(message, field.name).extend(pairs)
    elif isinstance(limit, Count):
        getattr(message, field.name).extend([_item(field, number) for number in range(most)])
    else:
        setattr(message, field.name, b"b" * most if field.type == field.TYPE_BYTES else "s" * most)


def _item(field: Any, number: int) -> Any:
    if field.message_type is None:
        return str(number) if field.type == field.TYPE_STRING else number
    item = fill_required(getattr(pb, field.message_type.name)())
    if isinstance(item, pb.IntRange):
        item.start = item.end = number
    elif isinstance(item, pb.MessageIdData):
        item.entryId = number
    return item


def fill_required(message: Message) -> Any:
    """Give each required field that is missing the smallest value of its type."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if field.is_repeated:
                for item in getattr(message, field.name):
                    fill_required(item)
            elif field.is_required or message.HasField(field.name):
                value = getattr(message, field.name)
                value.SetInParent()
                fill_required(value)
        elif field.is_required and not message.HasField(field.name):
            setattr(message, field.name, _smallest(field))
    return message


def _smallest(field: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[0].number
    return {field.TYPE_STRING: "x", field.TYPE_BYTES: b""}.get(field.type, 1)
