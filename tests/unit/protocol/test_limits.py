"""The table of limits: it is complete, and each line of it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from anabranch.broker.wire.handlers import HANDLERS
from anabranch.errors import LimitExceededError
from anabranch.protocol import commands
from anabranch.protocol.connection import ServerMachine
from anabranch.protocol.limits import CHECKED_WHEN_USED, COMMAND_BYTES_MAX, LIMITS, check
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.largest import command_with

ACCEPTED: list[type[Message]] = [
    *HANDLERS,
    pb.CommandConnect,
    pb.CommandSend,
    pb.CommandPing,
    pb.CommandPong,
]
FIELDS = sorted(LIMITS)


def _messages(kind: Any, found: set[str]) -> Iterator[Any]:
    if kind.full_name not in found:
        found.add(kind.full_name)
        yield kind
        for field in kind.fields:
            if field.message_type is not None:
                yield from _messages(field.message_type, found)


def _needs_a_line(field: Any) -> bool:
    return field.is_repeated or field.type in (field.TYPE_STRING, field.TYPE_BYTES)


def test_every_list_text_and_byte_string_of_an_accepted_command_has_a_limit() -> None:
    found: set[str] = set()
    kinds = [inner for command in ACCEPTED for inner in _messages(command.DESCRIPTOR, found)]
    # Pairs of properties are limited with the field that holds them.
    needed = {
        f"{kind.name}.{field.name}"
        for kind in kinds
        for field in kind.fields
        if _needs_a_line(field) and kind.name != "KeyValue"
    }
    assert needed == set(LIMITS)
    assert set(LIMITS) >= CHECKED_WHEN_USED


# The size of a command bounds the other fields before they reach their limits.
@pytest.mark.parametrize("field", [field for field in FIELDS if LIMITS[field].most <= COMMAND_BYTES_MAX])
def test_a_field_at_its_limit_passes_and_above_it_does_not(field: str) -> None:
    check(command_with(field))
    with pytest.raises(LimitExceededError, match=str(LIMITS[field].most)):
        check(command_with(field, above=True))


def test_a_key_or_value_above_its_limit_is_refused() -> None:
    for pair in (pb.KeyValue(key="k" * 1025, value=""), pb.KeyValue(key="", value="é" * 2049)):
        with pytest.raises(LimitExceededError, match="bytes"):
            check(pb.CommandLookupTopic(topic="t", request_id=1, properties=[pair]))


def test_a_command_above_its_limit_is_refused_before_it_is_complete() -> None:
    machine = ServerMachine(now=0.0)
    machine.receive(commands.encode(pb.CommandConnect(client_version="x")), 0.0)
    head = (COMMAND_BYTES_MAX + 5).to_bytes(4, "big") + (COMMAND_BYTES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(Exception, match=f"the limit is {COMMAND_BYTES_MAX}"):
        machine.receive(head, 0.0)
    trusted = ServerMachine(now=0.0)
    trusted.receive(commands.encode(pb.CommandConnect(client_version="x")), 0.0)
    trusted.trust_peer()
    assert trusted.receive(head, 0.0) == []
