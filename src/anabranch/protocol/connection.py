"""Both ends of a connection as machines: bytes and time in, commands and bytes out.

They do the handshake, answer PING and detect a peer that has gone silent. They know no socket and no clock:
the owner passes in the received bytes and the time, and sends the bytes that `take_output` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.commands import Command, CommandCutter, encode
from anabranch.protocol.frames import FRAME_EXTRA_BYTES, MESSAGE_BYTES_LIMIT, MESSAGE_BYTES_MAX
from anabranch.protocol.limits import COMMAND_BYTES_MAX
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for

PROTOCOL_VERSION: Final = 21
CLIENT_VERSION: Final = "Anabranch-Python-v0.1.0"
SERVER_VERSION: Final = "Anabranch 0.1.0"
CONTROL_VERSION: Final = f"{SERVER_VERSION} control"
"""Of a broker without logs: another cluster holds the messages."""
OUR_CLIENTS: Final = "Anabranch"
"""Prefix of the client version of every Anabranch client."""

_HEARS_END_OF_TOPIC: Final = (OUR_CLIENTS, "Pulsar-Java")
_AUTH_ROUNDS_MAX: Final = 10
CONNECT_BYTES_MAX: Final = 64 * 2**10
"""Largest frame before the handshake is done; CONNECT may carry a token of some kilobytes."""

PROGRESS_BYTES_PER_S: Final = 4 * 2**10
"""A peer that sends a large frame more slowly than this is taken for dead."""

_PING: Final = encode(pb.CommandPing())
_PONG: Final = encode(pb.CommandPong())


class _Machine:
    """The common part of both ends: cutting, keep-alive, and the rule that the handshake comes first."""

    def __init__(self, now: float, keep_alive_s: float) -> None:
        self.established = False
        """Whether the handshake is done."""
        self.has_met_peer = False
        """Whether the peer has sent CONNECT or CONNECTED."""
        self.tick_at = now + keep_alive_s
        """When to call `tick` next."""
        self._keep_alive_s = keep_alive_s
        self._cutter = CommandCutter()
        self._output: list[bytes] = []
        self._ping_unanswered = False
        self._received_bytes = 0

    @property
    def partial_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._cutter.kept_bytes

    def forget_input(self) -> None:
        """Drop an incomplete frame, because the connection is closed."""
        self._cutter.clear()

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Return the commands for the owner that the bytes of the peer complete.

        After RemoteProtocolError the owner must disconnect.
        """
        commands = self._cutter.read(data)
        if commands:
            self._ping_unanswered = False
        else:
            self._received_bytes += len(data)
        if self.established and self._handled_here.isdisjoint(map(type, commands)):
            return commands
        return [command for command in commands if self._is_for_owner(command, now)]

    def _is_for_owner(self, command: Command, now: float) -> bool:
        if self.established and type(command) not in self._handled_here:
            return True
        if isinstance(command, pb.CommandPing):
            self._output.append(_PONG)
            return False
        return not isinstance(command, pb.CommandPong) and self._shake_hands(command, now)

    def tick(self, now: float, *, reading: bool = True) -> bool:
        """Keep the connection alive; False when the peer is dead or never finished the handshake.

        Call it at `tick_at`; earlier calls do nothing. With `reading` False the owner did not read from the
        peer, so a missing answer does not count. Part of a frame counts as an answer only if it is large,
        because the answer to a PING waits behind a large frame.
        """
        if now < self.tick_at:
            return True
        large = self._received_bytes >= PROGRESS_BYTES_PER_S * self._keep_alive_s
        self._received_bytes = 0
        if not self.established or (self._ping_unanswered and reading and not large):
            return False
        self._output.append(_PING)
        self._ping_unanswered = True
        self.tick_at = now + self._keep_alive_s
        return True

    def take_output(self) -> list[bytes]:
        """Return bytes to send now, in order; each call returns only new bytes."""
        output = self._output
        if output:
            self._output = []
        return output

    _handled_here: frozenset[type] = frozenset()
    """Commands that the machine handles, or checks before it passes them to the owner."""

    def _shake_hands(self, command: Command, now: float) -> bool:
        """Handle a command of the handshake; returns whether the owner gets it too."""
        raise NotImplementedError

    def _establish(self, now: float, max_message_bytes: int) -> None:
        self.established = self.has_met_peer = True
        self.tick_at = now + self._keep_alive_s
        self._cutter.frame_bytes_max = max_message_bytes + FRAME_EXTRA_BYTES


class ServerMachine(_Machine):
    """The broker's end. CONNECT must come first, and no other bytes extend the time for the handshake."""

    admits_all = True
    """Whether the machine answers every CONNECT by itself; else the owner calls `admit`, within the time for
    the handshake, and keeps the commands behind CONNECT until then."""
    version = SERVER_VERSION
    _handled_here = frozenset((pb.CommandPing, pb.CommandPong, pb.CommandConnect))

    def __init__(
        self,
        *,
        now: float,
        keep_alive_s: float = 30.0,
        handshake_s: float = 30.0,
        max_message_bytes: int = MESSAGE_BYTES_MAX,
        features: pb.FeatureFlags | None = None,
    ) -> None:
        super().__init__(now, keep_alive_s)
        self.tick_at = now + handshake_s
        self._cutter.frame_bytes_max = CONNECT_BYTES_MAX
        self.peer_version = ""
        """The client version in CONNECT; empty before CONNECT."""
        self.peer_is_ours = False
        self.peer_hears_end_of_topic = False
        """Whether the client understands REACHED_END_OF_TOPIC; others drop the connection on it."""
        self._cutter.command_bytes_max = COMMAND_BYTES_MAX
        self._max_message_bytes = max_message_bytes
        self._peer_protocol = 0
        self._features = features or pb.FeatureFlags(supports_scalable_topics=True)
        self.heard: Callable[[], None] | None = None
        """Called once when the peer sends anything, even a PONG or a part of a frame; None for no call."""

    def receive(self, data: bytes, now: float) -> list[Command]:
        if self.heard is not None:
            heard, self.heard = self.heard, None
            heard()
        return super().receive(data, now)

    def trust_peer(self) -> None:
        """Accept commands of any size that fits into a frame, because a broker of the cluster sends them."""
        self._cutter.command_bytes_max = self._cutter.frame_bytes_max

    def _shake_hands(self, command: Command, now: float) -> bool:
        if not isinstance(command, pb.CommandConnect):
            if not self.has_met_peer:
                raise RemoteProtocolError(f"the peer sent {_name(command)} before CONNECT")
            return True
        if self.has_met_peer:
            raise RemoteProtocolError("the peer sent CONNECT twice")
        self.has_met_peer = True
        self._peer_protocol = command.protocol_version
        self.peer_version = command.client_version
        self.peer_is_ours = command.client_version.startswith(OUR_CLIENTS)
        self.peer_hears_end_of_topic = command.client_version.startswith(_HEARS_END_OF_TOPIC)
        if self.admits_all:
            self._output.append(self.admit(now))
        return True

    def admit(self, now: float) -> bytes:
        """Finish the handshake and return the CONNECTED frame, which the owner has to send."""
        self._establish(now, self._max_message_bytes)
        return encode(
            pb.CommandConnected(
                server_version=self.version,
                protocol_version=min(PROTOCOL_VERSION, self._peer_protocol),
                max_message_size=self._max_message_bytes,
                feature_flags=self._features,
            )
        )


class ClientMachine(_Machine):
    """The client's end; `start` gives the CONNECT, and `receive` raises the error in the broker's answer.

    An AUTH_CHALLENGE goes to the owner, also before the handshake is done: fresh credentials take time.
    """

    _handled_here = frozenset((pb.CommandPing, pb.CommandPong, pb.CommandConnected, pb.CommandAuthChallenge))

    def __init__(
        self,
        client_version: str = CLIENT_VERSION,
        *,
        now: float,
        keep_alive_s: float = 30.0,
        auth_method: str = "none",
        auth_data: bytes = b"",
    ) -> None:
        super().__init__(now, keep_alive_s)
        self.server_version = ""
        self.server_features = pb.FeatureFlags()
        self.max_message_bytes = MESSAGE_BYTES_MAX
        self._client_version = client_version
        self._auth_method = auth_method
        self._auth_data = auth_data
        self._auth_rounds = 0

    def start(self) -> bytes:
        """Return the CONNECT frame."""
        return encode(
            pb.CommandConnect(
                client_version=self._client_version,
                protocol_version=PROTOCOL_VERSION,
                auth_method_name=self._auth_method,
                auth_data=self._auth_data or None,
                feature_flags=pb.FeatureFlags(
                    supports_auth_refresh=True,
                    supports_broker_entry_metadata=True,
                    supports_scalable_topics=True,
                ),
            )
        )

    def _shake_hands(self, command: Command, now: float) -> bool:
        if isinstance(command, pb.CommandAuthChallenge):
            self._count_challenge()
            return True
        if isinstance(command, pb.CommandError):
            raise exception_for(command.error, command.message)
        if not isinstance(command, pb.CommandConnected):
            raise RemoteProtocolError(f"the peer answered CONNECT with {_name(command)}")
        if self.established:
            raise RemoteProtocolError("the peer sent CONNECTED twice")
        self.server_version = command.server_version
        self.server_features = command.feature_flags
        if command.max_message_size > 0:
            self.max_message_bytes = min(command.max_message_size, MESSAGE_BYTES_LIMIT)
        self._establish(now, self.max_message_bytes)
        return True

    def _count_challenge(self) -> None:
        self._auth_rounds = 0 if self.established else self._auth_rounds + 1
        if self._auth_rounds > _AUTH_ROUNDS_MAX:
            raise RemoteProtocolError(f"the peer asked for credentials too often ({self._auth_rounds} times)")

    def auth_response(self, auth_data: bytes) -> bytes:
        """Return the AUTH_RESPONSE frame that answers a challenge."""
        return encode(
            pb.CommandAuthResponse(
                client_version=self._client_version,
                response=pb.AuthData(auth_method_name=self._auth_method, auth_data=auth_data),
                protocol_version=PROTOCOL_VERSION,
            )
        )


def _name(command: Command) -> str:
    return type(command).__name__.removeprefix("Command")
