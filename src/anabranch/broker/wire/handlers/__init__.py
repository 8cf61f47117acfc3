"""The handler of each command, a short module per family.

A handler takes the connection and the command. A plain function answers at once; a coroutine function is a
request that may wait, and runs beside the others. The connection answers each error in the form of the
command, so no handler replies to its own errors.
"""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.wire.command_handler import CommandHandler
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
    without_logs,
)
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
HANDLERS_WITHOUT_LOGS: dict[type[Message], CommandHandler] = {**HANDLERS, **without_logs.HANDLERS}
"""For a broker whose segments are topics of another cluster."""
check_listed({*HANDLERS, pb.CommandConnect, pb.CommandSend, pb.CommandPing, pb.CommandPong})
