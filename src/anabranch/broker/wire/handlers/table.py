"""Every command that a client may send, and its handler."""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.handlers import (
    consume,
    layout_watch,
    lookup,
    namespace_watch,
    peer,
    position,
    produce,
    register,
    schema,
    session,
    subscribe,
)

MODULES = (
    session,
    lookup,
    produce,
    subscribe,
    consume,
    position,
    schema,
    layout_watch,
    namespace_watch,
    register,
    peer,
)

HANDLERS: dict[type[Message], CommandHandler] = {
    command: handler for module in MODULES for command, handler in module.HANDLERS.items()
}
