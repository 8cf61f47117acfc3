"""Accepts connections from a listening socket, through the door that counts them.

Servers of event loops accept first and ask later; one of them closes its listener for good when descriptors
run out. An acceptor asks the door first, and waits a moment when the machine has no descriptor left.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anabranch.aio import TaskRegistry
from anabranch.transport.door import Door
from anabranch.transport.seldom import Seldom
from anabranch.transport.turns import Turns

_logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 32
"""Connections accepted in one turn of the event loop; other clients have their turn in between."""

RETRY_S = 0.2
"""Pause of an acceptor that got no descriptor or no memory for a connection."""

TLS_END_S = 5.0
"""How long a closing TLS connection waits for the other end's goodbye."""

TLS_LEFT_MIN_S = 0.1
"""The least time for a handshake whose client was almost late with its first byte."""

P = TypeVar("P", bound=Any)


@dataclass(frozen=True, slots=True)
class TlsHandshake:
    """How an acceptor begins TLS on a new connection."""

    context: Callable[[], ssl.SSLContext]
    timeout_s: float
    """A client that has not finished the handshake by then is dropped."""

    def options(self, left_s: float) -> dict[str, Any]:
        """Arguments for the event loop."""
        return {
            "ssl": self.context(),
            "ssl_handshake_timeout": left_s,
            "ssl_shutdown_timeout": TLS_END_S,
        }


class Acceptor(Generic[P]):
    """One listening socket, which several processes may share."""

    def __init__(self, listener: socket.socket, door: Door[P], tls: TlsHandshake | None = None) -> None:
        self._listener = listener
        self._door = door
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskRegistry()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._log = Seldom(_logger)
        self._turns = Turns()
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        if not self._closed:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once, because `close` closes the listener itself."""

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._accept_waiting)

    def _accept_waiting(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                # The client is gone already.
                continue
            except OSError as error:
                self._pause(error)
                return
            connection = self._door.open()
            if connection is None:
                accepted.close()
            else:
                self._tasks.spawn(self._serve(connection, accepted))

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment; clients wait in the backlog, and a silent one makes room."""
        self._log.warning("%s cannot accept a connection: %s", self._door.name, error)
        self._door.make_room()
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(RETRY_S, self._listen)

    async def _serve(self, connection: P, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            with suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: connection, accepted)
            else:
                await self._shake_hands(connection, accepted, self._tls)
        except BaseException as error:
            self._door.leave(connection)
            accepted.close()
            if not isinstance(error, OSError):
                raise

    async def _shake_hands(self, connection: P, accepted: socket.socket, tls: TlsHandshake) -> None:
        """Do the TLS handshake; until it is done, the connection waits at the door and may be dropped."""
        task = asyncio.current_task()
        assert task is not None
        if not self._door.shakes_hands(connection, task.cancel):
            raise ConnectionAbortedError("the port is full")
        client = accepted.getpeername()[:2]
        ends_s = self._loop.time() + tls.timeout_s
        await self._begun(accepted, tls.timeout_s)
        options = tls.options(max(ends_s - self._loop.time(), TLS_LEFT_MIN_S))
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted, **options)
            self._door.has_shaken_hands(connection)
        except OSError as error:
            self._log.warning(
                "%s closed the connection of %s:%d in its TLS handshake: %s", self._door.name, *client, error
            )
            raise

    async def _begun(self, accepted: socket.socket, timeout_s: float) -> None:
        """Wait for the first byte of a client, and then for a turn; ConnectionAbortedError without a byte.

        A silent client costs a socket and no TLS, and many handshakes at once do not hold up other clients:
        each takes about a millisecond of the event loop.
        """
        turn = self._loop.create_future()
        self._loop.add_reader(accepted, _set, turn)
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except TimeoutError:
            raise ConnectionAbortedError("the client is silent") from None
        finally:
            self._loop.remove_reader(accepted)
        if not accepted.recv(1, socket.MSG_PEEK):
            raise ConnectionAbortedError("the client left")
        turn = self._loop.create_future()
        self._turns.later(lambda: _set(turn))
        await turn


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
