"""How a command is handled, and how its failure is answered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import Message

from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

if TYPE_CHECKING:
    from anabranch.broker.wire.connection import ServerConnection


def refuse_plainly(connection: ServerConnection, command: Message, error: Exception) -> None:
    """Answer a command that has a request id with ERROR; other commands get no answer."""
    request_id = getattr(command, "request_id", None)
    if request_id is not None:
        connection.send(pb.CommandError(request_id=request_id, error=code_for(error), message=str(error)))


class CommandHandler(NamedTuple):
    """The functions for one type of command."""

    act: Callable[[ServerConnection, Any], Coroutine[Any, Any, None] | None]
    refuse: Callable[[ServerConnection, Any, Exception], None] = refuse_plainly
