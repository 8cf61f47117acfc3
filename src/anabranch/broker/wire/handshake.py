"""The handshake of a connection: the role in CONNECT is proven before any other command is looked at.

The pump is not read until then, and commands that arrived in the same read wait. The pump's machine drops a
connection whose handshake, including the proof, takes too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from anabranch.broker.cluster.cluster_secret import PEER_AUTHENTICATION, PEER_VERSION, AcceptingProof
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import (
    AuthenticationError,
    LimitExceededError,
    RemoteProtocolError,
)
from anabranch.protocol.commands import NO_ID, Command, encode
from anabranch.protocol.connection import SERVER_VERSION, ServerMachine
from anabranch.protocol.limits import check as check_limits
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.callers import ANYONE, Caller
from anabranch.security.authentication import Shown
from anabranch.security.gate import Original
from anabranch.security.refusals import RefusedCredentialsError
from anabranch.transport.certificates import peer_certificate
from anabranch.transport.pump import Pump

_logger = logging.getLogger(__name__)

CONNECT = "CONNECT"


class Handshake:
    """The handler of a new connection's pump, in front of the connection itself."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._services = connection.services
        self._entered = False
        self._waiting: list[Command] = []
        self.commands: Callable[[Pump, Sequence[Command]], None] = self._begin
        """Takes the commands of the pump. After the handshake it is the connection's own method, so
        that later commands do not pass through this object."""

    def connected(self, pump: Pump) -> None:
        """Wait for CONNECT, which comes next."""

    def closed(self, pump: Pump, error: Exception | None) -> None:
        if self._entered:
            self._connection.closed(pump, error)
        else:
            self._waiting.clear()
            if isinstance(error, RemoteProtocolError):
                self._services.limits.warnings.warning("closed the connection of %s: %s", pump.peer, error)
            self._services.limits.door.leave(pump)
        # An attribute that holds a bound method of its own object is a reference cycle. Connections come and
        # go in great numbers, and only a garbage collection would free them.
        self.commands = _drop

    def _begin(self, pump: Pump, commands: Sequence[Command]) -> None:
        connect, *self._waiting = commands
        assert isinstance(connect, pb.CommandConnect)
        self.commands = self._wait
        self._connection.refreshes = connect.feature_flags.supports_auth_refresh
        try:
            check_limits(connect)
        except LimitExceededError as error:
            pump.close(RemoteProtocolError(str(error)))
            return
        shown = Shown(connect.auth_method_name, connect.auth_data, pump.peer, peer_certificate(pump))
        if connect.auth_method_name == PEER_AUTHENTICATION or connect.client_version == PEER_VERSION:
            self._challenge_peer(pump, shown)
        elif self._services.gate.is_open:
            self._admit(pump, ANYONE)
        else:
            pump.pause_reading()
            self._services.tasks.spawn(self._prove(pump, shown, connect))

    def _wait(self, pump: Pump, commands: Sequence[Command]) -> None:
        self._waiting += commands

    def _challenge_peer(self, pump: Pump, shown: Shown) -> None:
        """Let a broker prove that it knows the secret, and refuse other clients that claim to be one."""
        is_broker = shown.method == PEER_AUTHENTICATION
        proof = self._services.secret.accept(shown.credentials) if is_broker else None
        if proof is None:
            self._refuse_peer(pump, shown)
            return
        challenge = pb.AuthData(auth_method_name=PEER_AUTHENTICATION, auth_data=proof.challenge)
        pump.write(encode(pb.CommandAuthChallenge(server_version=SERVER_VERSION, challenge=challenge)))
        self.commands = partial(self._admit_peer, shown, proof)

    def _admit_peer(
        self, shown: Shown, proof: AcceptingProof, pump: Pump, commands: Sequence[Command]
    ) -> None:
        answer, *rest = commands
        shown_proof = answer.response.auth_data if isinstance(answer, pb.CommandAuthResponse) else b""
        if not proof.is_proven_by(shown_proof):
            self._refuse_peer(pump, shown)
            return
        self._services.secret.note_link(self._connection, proof)
        self._waiting += rest
        self._admit(pump, ANYONE, is_peer=True)

    def _refuse_peer(self, pump: Pump, shown: Shown) -> None:
        warn = self._services.limits.warnings.warning
        warn("%s claims to be a broker of this cluster but does not know its secret", pump.peer)
        error = RefusedCredentialsError(
            "the client claims to be a broker but does not know the secret of the cluster"
        )
        self._services.gate.refuse(shown, CONNECT, error.reason)
        self._refuse(pump, error)

    async def _prove(self, pump: Pump, shown: Shown, connect: pb.CommandConnect) -> None:
        original = Original(
            connect.original_principal, connect.original_auth_method, connect.original_auth_data.encode()
        )
        try:
            caller = await self._services.gate.admit(shown, CONNECT, original)
        except AuthenticationError as error:
            self._refuse(pump, error)
        except Exception:
            _logger.exception("the credentials of %s could not be checked", pump.peer)
            self._refuse(pump, AuthenticationError("authentication failed"))
        else:
            # The machine may have given up meanwhile, or the client left.
            if not pump.closed and pump.writable:
                pump.resume_reading()
                self._admit(pump, caller)

    def _admit(self, pump: Pump, caller: Caller, *, is_peer: bool = False) -> None:
        machine = pump.machine
        assert isinstance(machine, ServerMachine)
        pump.write(machine.admit(asyncio.get_running_loop().time()))
        if is_peer:
            machine.trust_peer()
        self._entered = True
        connection = self._connection
        connection.caller = caller
        connection.is_peer = is_peer
        connection.connected(pump)
        self.commands = connection.commands
        waiting, self._waiting = self._waiting, []
        if waiting:
            connection.commands(pump, waiting)

    def _refuse(self, pump: Pump, error: AuthenticationError) -> None:
        pump.write(
            encode(pb.CommandError(request_id=NO_ID, error=pb.AuthenticationError, message=str(error)))
        )
        pump.close()


def _drop(pump: Pump, commands: Sequence[Command]) -> None:
    """Take no more commands, because the connection is closed."""
