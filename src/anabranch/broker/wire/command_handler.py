"""The function that handles a command, and the function that answers its failure."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple

from google.protobuf.message import Message

from anabranch.broker.serving.context import ClientLink
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for


def refuse_plainly(connection: ClientLink, command: Message, error: Exception) -> None:
    """Answer a command that has a request id with ERROR; other commands get no answer."""
    request_id = getattr(command, "request_id", None)
    if request_id is not None:
        connection.send(pb.CommandError(request_id=request_id, error=code_for(error), message=str(error)))


def has_answer(command: Message) -> bool:
    """Whether the client waits for an answer to this command."""
    fields = ((name, command.DESCRIPTOR.fields_by_name.get(name)) for name in _ANSWERED_BY)
    return any(field is not None and command.HasField(name) for name, field in fields)


_ANSWERED_BY = ("request_id", "session_id", "watch_id")

Refusal = Callable[[Any, Any, Exception], None]
"""Takes the connection, the command and the error."""


def refuse_with(response: type[Message], /, *echoed: str, **fixed: Any) -> Refusal:
    """Answer an error in the response of the command, which repeats the `echoed` fields of the command."""
    error_fields = "error_code" in response.DESCRIPTOR.fields_by_name
    code, text = ("error_code", "error_message") if error_fields else ("error", "message")

    def refuse(connection: ClientLink, command: Any, error: Exception) -> None:
        repeated = {name: getattr(command, name) for name in echoed or ("request_id",)}
        connection.send(response(**repeated, **fixed, **{code: code_for(error), text: str(error)}))

    return refuse


class CommandHandler(NamedTuple):
    """The functions for one type of command."""

    act: Callable[[Any, Any], Coroutine[Any, Any, None] | Generator[None, None, None] | None]
    """Takes the connection and the command.

    It answers at once and returns None, or returns a request that runs beside the later commands, or a
    generator of slices (`turns`) that the later commands wait for.
    """
    refuse: Refusal = refuse_plainly
    is_quick: bool = False
    """Whether the command takes microseconds, and clients send it very often."""
