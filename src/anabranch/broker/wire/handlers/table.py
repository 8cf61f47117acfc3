"""Every command a client may send, and who handles it."""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.wire.connection import CommandHandler
from anabranch.broker.wire.handlers import (
    consume,
    control,
    lookup,
    peer,
    position,
    produce,
    schema,
    session,
    watch,
)

HANDLERS: dict[type[Message], CommandHandler] = {
    command: handler
    for module in (session, lookup, produce, consume, position, schema, watch, control, peer)
    for command, handler in module.HANDLERS.items()
}
