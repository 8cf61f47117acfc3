"""Calls of other brokers of the cluster, which the handshake has recognised by their secret."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from anabranch.broker.cluster.remote_calls import VerbCall, encode_value
from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import LocalProtocolError, RemoteProtocolError
from anabranch.protocol.pb import pulsar_pb2 as pb

SESSION = "peer session"


def _push(connection: ServerConnection, number: int, value: Any) -> None:
    """Send the calling broker a new value of a session."""

    def send() -> None:
        connection.send(pb.CommandPeerPush(request_id=number, value=encode_value(value)))

    connection.pushes.send(("push", number), send)


async def call(connection: ServerConnection, command: pb.CommandPeerCall) -> None:
    kind, _, rest = command.target.partition(" ")
    target = connection.services.targets.get(kind)
    if target is None:
        raise RemoteProtocolError(f"brokers do not call {kind!r} here")
    verb = target.port.verb(command.verb)
    arguments = verb.decode_arguments(command.arguments)
    served = await target.find(rest)
    if verb.opens is not None:
        arguments[verb.opens.push] = partial(_push, connection, command.request_id)
    made = VerbCall(verb, arguments)
    result = made.invoke(served)
    if inspect.isawaitable(result):
        result = await result
    if made.session is not None:
        connection.pushes.sessions.pop((SESSION, made.session.token), None)
    if verb.opens is not None:
        # A connection that is gone by now ends the session as soon as this handler returns.
        lost = verb.loss_of(result)
        connection.pushes.sessions[SESSION, result.token] = lambda: lost.invoke(served)
    data = encode_value(result)
    if len(data) > connection.services.config.max_message_bytes:
        if verb.opens is not None:
            # The caller does not learn of the session, so it cannot end it.
            connection.pushes.sessions.pop((SESSION, result.token))()
        raise LocalProtocolError(f"the result of {verb.name} is too large to be sent: {len(data)} bytes")
    connection.send(pb.CommandPeerReply(request_id=command.request_id, result=data))


def refuse_call(connection: ServerConnection, command: pb.CommandPeerCall, error: Exception) -> None:
    connection.send(
        pb.CommandPeerReply(request_id=command.request_id, error=type(error).__name__, message=str(error))
    )


HANDLERS = {
    pb.CommandPeerCall: CommandHandler(call, refuse_call),
}
