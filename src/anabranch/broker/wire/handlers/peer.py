"""Calls of other brokers of the cluster, and how a broker says that it is one."""

from __future__ import annotations

import hmac
import inspect
import logging
from typing import Any

from anabranch.broker.cluster.peers import PEER_AUTHENTICATION, PEER_VERSION
from anabranch.broker.cluster.remote_calls import encode_push
from anabranch.broker.wire.connection import CommandHandler, Registered, ServerConnection
from anabranch.controller.ports.leader import Membership
from anabranch.errors import AuthorizationError, LocalProtocolError, RemoteProtocolError
from anabranch.protocol.pb import pulsar_pb2 as pb

_logger = logging.getLogger(__name__)


def introduce(connection: ServerConnection, command: pb.CommandConnect) -> None:
    """A broker shows the cluster's secret with its CONNECT; who only says that it is one must go."""
    shown = command.auth_data if command.auth_method_name == PEER_AUTHENTICATION else None
    if shown is None and command.client_version != PEER_VERSION:
        return
    secret = connection.services.peers.secret
    if secret and shown is not None and hmac.compare_digest(shown, secret):
        connection.is_peer = True
    else:
        _logger.warning("%s says that it is a broker of this cluster, but it is not", connection.address)
        connection.hang_up()


class _Push:
    """Sends a caller the newest of what it asked to be told, and nothing that was overtaken."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._newest: Any = None

    def __call__(self, value: Any) -> None:
        self._newest = value
        self._connection.when_writable(("push", self._number), self._send)

    def _send(self) -> None:
        self._connection.send(pb.CommandPeerPush(request_id=self._number, value=encode_push(self._newest)))


async def call(connection: ServerConnection, command: pb.CommandPeerCall) -> None:
    if not connection.is_peer:
        raise AuthorizationError("only brokers of this cluster may call each other")
    kind, _, rest = command.target.partition(" ")
    target = connection.services.targets.get(kind)
    if target is None:
        raise RemoteProtocolError(f"brokers do not call {kind!r} here")
    verb = target.port.verb(command.verb)
    arguments = verb.decode_arguments(command.arguments)
    served = await target.find(rest)
    if verb.push is not None:
        arguments[verb.push.name] = _Push(connection, command.request_id)
    result = getattr(served, verb.name)(**arguments)
    if inspect.isawaitable(result):
        result = await result
    given_back = arguments.get("registration")
    if isinstance(given_back, Membership):
        connection.registrations.pop(given_back.token, None)
    if isinstance(result, Membership):
        if connection.ended:
            served.connection_lost(result)
            return
        connection.registrations[result.token] = Registered(served, result)
    data = verb.encode_result(result)
    if len(data) > connection.services.config.max_message_bytes:
        raise LocalProtocolError(f"the result of {verb.name} is too large to be sent: {len(data)} bytes")
    connection.send(pb.CommandPeerReply(request_id=command.request_id, result=data))


def refuse_call(connection: ServerConnection, command: pb.CommandPeerCall, error: Exception) -> None:
    connection.send(
        pb.CommandPeerReply(request_id=command.request_id, error=type(error).__name__, message=str(error))
    )


HANDLERS = {
    pb.CommandConnect: CommandHandler(introduce),
    pb.CommandPeerCall: CommandHandler(call, refuse_call),
}
