"""One connection to another broker: calls sent, answers and pushes received.

This module must not know what is called, nor which broker owns what.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, NamedTuple

from anabranch.aio import mark_retrieved
from anabranch.broker.cluster.remote_calls import PushFunction, Verb, VerbCall, error_named
from anabranch.errors import AnabranchError, LocalProtocolError, NotConnectedError, TooManyRequestsError
from anabranch.protocol.commands import Command, encode
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import Pump

PENDING_MAX: Final = 300
"""How many calls to one kind of target at one broker may be under way; further calls wait. A broker accepts
more requests from one connection than the calls of all kinds together."""

WAITING_MAX: Final = 20_000
"""How many calls to one broker may wait; further calls are refused."""


class _Pending(NamedTuple):
    verb: Verb
    answer: asyncio.Future[Any]


class _Pushes(NamedTuple):
    verb: Verb
    push: PushFunction


class PeerLink:
    """An established connection to one broker."""

    def __init__(self, url: str, gone: Callable[[PeerLink], None]) -> None:
        """`gone` is called once, when the connection is closed."""
        self.url = url
        self.is_open = True
        self._gone = gone
        self._pump: Pump | None = None
        self._pending: dict[int, _Pending] = {}
        self._pushes: dict[int, _Pushes] = {}
        self._numbers = count(1)
        # Each kind of target has its own slots, because calls nest: a leader answers only after it has called
        # segments, perhaps over this link. With shared slots, calls that wait for leaders could take all of
        # them, and the calls to segments that the leaders need would never be sent.
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._waiting = 0

    async def call(self, target: str, call: VerbCall) -> Any:
        """Return the result of a verb that does not open a session. Raises the error of the other broker."""
        assert call.push is None, f"{call.verb.name} opens a session"
        async with self.slot(target):
            number, answer = self.post(target, call)
            try:
                return await asyncio.shield(answer)
            finally:
                self._pending.pop(number, None)

    @asynccontextmanager
    async def slot(self, target: str) -> AsyncIterator[None]:
        """Wait until one more call to the target may be sent; TooManyRequestsError if too many calls wait."""
        slots = self._slots.setdefault(target.partition(" ")[0], asyncio.Semaphore(PENDING_MAX))
        if self._waiting >= WAITING_MAX:
            raise TooManyRequestsError(f"{WAITING_MAX} calls wait for the broker at {self.url}")
        self._waiting += 1
        try:
            await slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            slots.release()

    def post(self, target: str, call: VerbCall) -> tuple[int, asyncio.Future[Any]]:
        """Send a call; returns its number and its answer."""
        if not self.is_open or self._pump is None:
            raise NotConnectedError(f"the connection to {self.url} was lost")
        verb = call.verb
        number = next(self._numbers)
        data = verb.encode_arguments(call.arguments)
        frame = encode(pb.CommandPeerCall(request_id=number, target=target, verb=verb.name, arguments=data))
        machine = self._pump.machine
        assert isinstance(machine, ClientMachine)
        if len(frame) > machine.max_message_bytes:
            raise LocalProtocolError(f"the arguments of {verb.name} are too large: {len(frame)} bytes")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(mark_retrieved)
        self._pending[number] = _Pending(verb, answer)
        if call.push is not None:
            self._pushes[number] = _Pushes(verb, call.push)
        self._pump.write(frame)
        return number, answer

    def end_pushes(self, number: int) -> None:
        """Ignore the pushes of a call from now on."""
        self._pushes.pop(number, None)

    def hang_up(self) -> None:
        if self._pump is not None:
            self._pump.abort()

    def connected(self, pump: Pump) -> None:
        self._pump = pump

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        for command in commands:
            try:
                if isinstance(command, pb.CommandPeerReply):
                    self._answer(command)
                elif isinstance(command, pb.CommandPeerPush) and command.request_id in self._pushes:
                    verb, push = self._pushes[command.request_id]
                    push(verb.decode_push(command.value))
            except AnabranchError as error:
                pump.close(error)
                return

    def closed(self, pump: Pump, error: Exception | None) -> None:
        """The connection is gone: fail all calls under way and end all pushes with None."""
        self.is_open = False
        self._gone(self)
        pending, self._pending = self._pending, {}
        pushes, self._pushes = self._pushes, {}
        lost = NotConnectedError(f"the connection to {self.url} was lost: {error or 'it was closed'}")
        for call in pending.values():
            if not call.answer.done():
                call.answer.set_exception(lost)
        for _, push in pushes.values():
            push(None)

    def _answer(self, command: pb.CommandPeerReply) -> None:
        call = self._pending.pop(command.request_id, None)
        if call is None or call.answer.done():
            return
        try:
            if command.HasField("error"):
                raise error_named(command.error, command.message)
            call.answer.set_result(call.verb.decode_result(command.result))
        except AnabranchError as error:
            self.end_pushes(command.request_id)
            call.answer.set_exception(error)
