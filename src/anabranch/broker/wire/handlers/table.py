"""Every command that a client may send, and its handler."""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.handlers import (
    consume,
    control,
    layout_watch,
    lookup,
    namespace_watch,
    peer,
    position,
    produce,
    schema,
    session,
)

MODULES = (
    session,
    lookup,
    produce,
    consume,
    position,
    schema,
    layout_watch,
    namespace_watch,
    control,
    peer,
)

HANDLERS: dict[type[Message], CommandHandler] = {
    command: handler for module in MODULES for command, handler in module.HANDLERS.items()
}
