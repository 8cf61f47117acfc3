"""The table of command handlers; each family of commands has a module.

A handler takes the connection and the command. A plain function answers at once; a coroutine function is a
request that may wait, and runs beside the others. The connection answers each error in the form of the
command, so no handler replies to its own errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from anabranch.broker.engine.port import EngineTraits
from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.entrance import check_listed
from anabranch.broker.wire.handlers import (
    consume,
    layout_watch,
    lookup,
    namespace_watch,
    peer,
    produce,
    refresh,
    register,
    session,
    subscribe,
    topic_list_watch,
)
from anabranch.errors import NotAllowedError
from anabranch.protocol.pb import pulsar_pb2 as pb

_MODULES = (
    session,
    refresh,
    lookup,
    produce,
    subscribe,
    consume,
    layout_watch,
    namespace_watch,
    topic_list_watch,
    register,
    peer,
)

HANDLERS: dict[type[Message], CommandHandler] = {
    command: handler for module in _MODULES for command, handler in module.HANDLERS.items()
}
check_listed({*HANDLERS, pb.CommandConnect, pb.CommandSend, pb.CommandPing, pb.CommandPong})


def handlers_for(traits: EngineTraits) -> Mapping[type[Message], CommandHandler]:
    """The handlers of a broker with this engine."""
    if not traits.refused:
        return HANDLERS
    return {**HANDLERS, **{command: CommandHandler(_refuse) for command in traits.refused}}


def _refuse(connection: ServerConnection, command: Message) -> None:
    raise NotAllowedError(
        "this process leads topics and holds no messages; look the topic up, and connect to Apache Pulsar"
    )
