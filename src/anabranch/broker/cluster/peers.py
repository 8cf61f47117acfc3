"""Calls to other brokers of the cluster: one connection to each, made when it is first needed.

A call is answered, or fails within its time; what a broker raised is raised here as its own class. What a
call asked to be told later comes as long as the connection lives, and None when it ends. Must not know what
is called, nor who owns what.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from anabranch.aio import AttemptCancelled, SharedAttempts, mark_retrieved
from anabranch.broker.cluster.remote_calls import Arguments, Port, Verb, error_named
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConnectError,
    LocalProtocolError,
    NotConnectedError,
    OperationTimeoutError,
    TooManyRequestsError,
)
from anabranch.protocol.commands import Command, encode
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import Pump, dial

_logger = logging.getLogger(__name__)

PEER_VERSION: Final = "Anabranch-Broker"
PEER_AUTHENTICATION: Final = "anabranch-peer"
"""How a broker introduces itself to another: with the cluster's secret as its credentials."""

CALL_S: Final = 30.0
CONNECT_S: Final = 5.0
KEEP_ALIVE_S: Final = 5.0
PENDING_MAX: Final = 300
"""Calls of one kind of target to one broker that may be under way; others wait. A broker takes more from one
connection than all kinds together may be."""

WAITING_MAX: Final = 20_000
"""Calls that wait for their turn; more are refused."""

Told = Callable[[Any], None]


class Target(NamedTuple):
    """Something that brokers may call here: its port, and who serves it for the rest of the target's name."""

    port: Port
    find: Callable[[str], Awaitable[Any]]


Targets = Mapping[str, Target]
"""By the first word of a target's name."""


class Line:
    """A call that goes on being told things, and the connection it was made on."""

    def __init__(self, link: _Link, number: int) -> None:
        self._link = link
        self._number = number

    @property
    def open(self) -> bool:
        """Whether the broker that was called is still at the other end, as the process that it was."""
        return not self._link.closed

    def end(self) -> None:
        """Nothing is told any more."""
        self._link.forget(self._number)


Orphaned = Callable[[Any, Line], None]


class _Pending(NamedTuple):
    verb: Verb
    answer: asyncio.Future[Any]


class _Link:
    """An established connection to one broker."""

    def __init__(self, url: str, gone: Callable[[_Link], None]) -> None:
        self.url = url
        self.closed = False
        self._gone = gone
        self._pump: Pump | None = None
        self._pending: dict[int, _Pending] = {}
        self._told: dict[int, tuple[Verb, Told]] = {}
        self._numbers = count(1)
        # A leader answers when the segments that it asks elsewhere have: who waits for a leader must not
        # stand in their way.
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, target: str) -> AsyncIterator[None]:
        """Wait until there is room for one more call; raises TooManyRequestsError if too many do."""
        room = self._rooms.setdefault(target.partition(" ")[0], asyncio.Semaphore(PENDING_MAX))
        if self._waiting >= WAITING_MAX:
            raise TooManyRequestsError(f"{WAITING_MAX} calls wait for the broker at {self.url}")
        self._waiting += 1
        try:
            await room.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            room.release()

    def post(self, target: str, verb: Verb, arguments: Arguments) -> tuple[int, asyncio.Future[Any]]:
        """Send a call; its number, and what becomes of it."""
        if self.closed or self._pump is None:
            raise NotConnectedError(f"the connection to {self.url} was lost")
        number = next(self._numbers)
        frame = encode(
            pb.CommandPeerCall(
                request_id=number,
                target=target,
                verb=verb.name,
                arguments=verb.encode_arguments(arguments),
            )
        )
        machine = self._pump.machine
        assert isinstance(machine, ClientMachine)
        if len(frame) > machine.max_message_bytes:
            raise LocalProtocolError(f"the arguments of {verb.name} are too large: {len(frame)} bytes")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(mark_retrieved)
        self._pending[number] = _Pending(verb, answer)
        if verb.push is not None:
            self._told[number] = verb, arguments[verb.push.name]
        self._pump.write(frame)
        return number, answer

    def give_up(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        self._pending.pop(number, None)
        self._told.pop(number, None)

    def forget(self, number: int) -> None:
        """What the call asked to be told is not wanted any more."""
        self._told.pop(number, None)

    def hang_up(self) -> None:
        if self._pump is not None:
            self._pump.abort()

    # What the pump calls.

    def connected(self, pump: Pump) -> None:
        self._pump = pump

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        for command in commands:
            try:
                if isinstance(command, pb.CommandPeerReply):
                    self._answer(command)
                elif isinstance(command, pb.CommandPeerPush) and command.request_id in self._told:
                    verb, told = self._told[command.request_id]
                    told(verb.decode_push(command.value))
            except AnabranchError as error:
                pump.close(error)
                return

    def closed_by(self, error: Exception | None) -> None:
        """The connection is gone; everybody who waits hears of it once."""
        self.closed = True
        self._gone(self)
        pending, self._pending = self._pending, {}
        told, self._told = self._told, {}
        lost = NotConnectedError(f"the connection to {self.url} was lost: {error or 'it was closed'}")
        for call in pending.values():
            if not call.answer.done():
                call.answer.set_exception(lost)
        for _, tell in told.values():
            tell(None)

    def _answer(self, command: pb.CommandPeerReply) -> None:
        call = self._pending.pop(command.request_id, None)
        if call is None or call.answer.done():
            return
        try:
            if command.HasField("error"):
                raise error_named(command.error, command.message)
            call.answer.set_result(call.verb.decode_result(command.result))
        except AnabranchError as error:
            self._told.pop(command.request_id, None)
            call.answer.set_exception(error)


class _Handler:
    """A link as its pump knows it."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self.connected = link.connected
        self.commands = link.commands

    def closed(self, pump: Pump, error: Exception | None) -> None:
        self._link.closed_by(error)


class Peers:
    """The connections of this broker to others."""

    def __init__(self) -> None:
        self.here = ""
        """Where others reach this broker; it never calls itself."""
        self.secret = b""
        """What every broker of the cluster knows, and nobody else."""
        self._links: dict[str, _Link] = {}
        self._dialing: SharedAttempts[str, _Link] = SharedAttempts()
        self._closed = False

    @property
    def lines(self) -> int:
        """Calls that go on being told things."""
        return sum(len(link._told) for link in self._links.values())

    async def call(
        self,
        url: str,
        target: str,
        verb: Verb,
        arguments: Arguments,
        *,
        timeout_s: float = CALL_S,
        line: Line | None = None,
        orphaned: Orphaned | None = None,
    ) -> tuple[Any, Line]:
        """The result of a verb at another broker, and the line on which it tells more.

        Raises what the other broker raised, NotConnectedError, ConnectError or OperationTimeoutError. With a
        `line` the call must go the way of an earlier one. What comes when the caller has given up goes to
        `orphaned`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._link(url) if line is None else line._link
                async with link.turn(target):
                    return await self._call(link, target, verb, arguments, orphaned)
        except TimeoutError as error:
            if isinstance(error, AnabranchError):
                raise
            raise OperationTimeoutError(
                f"{url} did not answer {verb.name} of {target} in {timeout_s:g} s"
            ) from None

    async def _call(
        self, link: _Link, target: str, verb: Verb, arguments: Arguments, orphaned: Orphaned | None
    ) -> tuple[Any, Line]:
        number, answer = link.post(target, verb, arguments)
        line = Line(link, number)
        try:
            return await asyncio.shield(answer), line
        except BaseException:
            if orphaned is None:
                link.give_up(number)
            else:
                link.forget(number)
                answer.add_done_callback(lambda done: _hand_over(done, line, orphaned))
            raise

    def tell(self, line: Line, target: str, verb: Verb, arguments: Arguments) -> None:
        """Call on the way of an earlier call, before any later one; nobody hears of failures."""
        with suppress(AnabranchError):
            line._link.post(target, verb, arguments)

    def keep(self, urls: Collection[str]) -> None:
        """Hang up on brokers that are not among these: they are dead, and nobody should wait for them."""
        for url, link in list(self._links.items()):
            if url not in urls:
                link.hang_up()
        for url in [url for url in self._dialing if url not in urls]:
            self._dialing.cancel(url)

    async def close(self) -> None:
        """End all connections; calls under way fail."""
        self._closed = True
        for link in list(self._links.values()):
            link.hang_up()
        await self._dialing.stop()

    async def _link(self, url: str) -> _Link:
        if self._closed:
            raise AlreadyClosedError("the broker is stopping")
        found = self._links.get(url)
        if found is not None:
            return found
        try:
            return await self._dialing.join(url, lambda: self._dial(url))
        except AttemptCancelled:
            if self._closed:
                raise AlreadyClosedError("the broker is stopping") from None
            raise ConnectError(f"the broker at {url} is gone") from None

    async def _dial(self, url: str) -> _Link:
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise ConnectError(f"{url} is no broker's address")
        link = _Link(url, self._forget)
        loop = asyncio.get_running_loop()
        machine = ClientMachine(
            PEER_VERSION,
            now=loop.time(),
            keep_alive_s=KEEP_ALIVE_S,
            auth_method=PEER_AUTHENTICATION,
            auth_data=self.secret,
        )
        await dial(parts.hostname, parts.port, lambda: machine, _Handler(link), timeout_s=CONNECT_S)
        if link.closed or self._closed:
            link.hang_up()
            raise ConnectError(f"{url} closed the connection at once")
        self._links[url] = link
        _logger.info("connected to the broker at %s", url)
        return link

    def _forget(self, link: _Link) -> None:
        if self._links.get(link.url) is link:
            del self._links[link.url]


def _hand_over(done: asyncio.Future[Any], line: Line, orphaned: Orphaned) -> None:
    if not done.cancelled() and done.exception() is None:
        orphaned(done.result(), line)
