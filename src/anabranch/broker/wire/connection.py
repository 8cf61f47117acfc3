"""One client connection: its commands go to handlers, its producers, consumers and watches live here.

The loop over SENDs is the broker's hottest; every other command is looked up by type. An error is answered to
the producer, consumer or request it concerns; only a peer that breaks the protocol loses the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message

from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.wire.attachments import Attached, Registered
from anabranch.broker.wire.command_handler import CommandHandler, has_answer
from anabranch.broker.wire.entrance import admit, refusal_of
from anabranch.broker.wire.java_m1 import is_java_m1
from anabranch.broker.wire.liveness import SignOfLife
from anabranch.broker.wire.openings import Openings
from anabranch.broker.wire.publish_room import SMALL_BYTES, ConnectionRoom
from anabranch.broker.wire.pushes import Pushes
from anabranch.broker.wire.services import Services
from anabranch.broker.wire.turns import CommandTurns, ReadingPauses, Slices, first_slice, run_in_turns
from anabranch.errors import (
    AnabranchError,
    AuthorizationError,
    LimitExceededError,
    RemoteProtocolError,
    TooManyRequestsError,
    UnknownServerError,
)
from anabranch.protocol.commands import NO_ID, Command, Send, encode
from anabranch.protocol.connection import ServerMachine
from anabranch.protocol.credits import ENTRY_CREDIT_BYTES
from anabranch.protocol.limits import check as check_limits
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.callers import ANYONE
from anabranch.transport.certificates import PeerCertificate, peer_certificate
from anabranch.transport.pump import Pump
from anabranch.transport.turns import REQUEST_COMMANDS

_logger = logging.getLogger(__name__)

FORMER_MAX = 10_000
"""Closed producers whose late SENDs are recognised."""


class ServerConnection:
    """Handles the commands of one pump and is the link of all its producers and consumers."""

    def __init__(
        self,
        services: Services,
        handlers: Mapping[type[Message], CommandHandler],
        connections: dict[ServerConnection, None],
    ) -> None:
        self.services = services
        self.producers: dict[int, ServedProducer] = {}
        self.waiting: dict[int, ServedProducer] = {}
        """Producers that may not send yet."""
        self.producer_logs: dict[int, ServedLog] = {}
        """The log of each producer, including those that wait."""
        self.consumers: dict[int, Attached] = {}
        self.registrations: dict[int, Registered] = {}
        self.publish_bytes = 0
        self.throttled = False
        self.ended = False
        """Whether the connection is gone. A producer or consumer that is still being made is then dropped."""
        self.write: Callable[[bytes], None] = _discard
        self.deliver: Callable[[Sequence[bytes]], None] = _discard
        self.address = ""
        self.client_version = ""
        self.peer_is_ours = False
        self.wants_entry_metadata = self.hears_end_of_topic = False
        self.is_java_m1 = False
        self.is_peer = self.is_tls = False
        self.caller = ANYONE
        self.refreshes = self.is_refreshing = False
        """Whether the client sends new credentials when it is asked; whether new ones are being checked."""
        self._handlers, self._connections = handlers, connections
        self._pump: Pump | None = None
        self.pauses = ReadingPauses()
        self.room = ConnectionRoom(services.room, self)
        self.resume_if_room = self.room.resume
        self._turns = CommandTurns(self._run, self.pauses, services.limits.turns.later)
        self.openings = Openings(lambda: len(self.producer_logs) + len(self.consumers))
        self._life = SignOfLife()
        self._former: dict[int, None] = {}
        self._requests = 0
        self.pushes = Pushes(lambda: self.writable)

    def connected(self, pump: Pump) -> None:
        machine = pump.machine
        assert isinstance(machine, ServerMachine)
        self._pump = self.pauses.pump = pump
        self.write = pump.write
        self.deliver = pump.write_early
        self.address, self.is_tls = pump.peer, pump.is_tls
        self.client_version = machine.peer_version
        self.peer_is_ours = self.wants_entry_metadata = machine.peer_is_ours
        self.hears_end_of_topic = machine.peer_hears_end_of_topic
        self.is_java_m1 = is_java_m1(machine.peer_version)
        pump.on_writable = self._writable_again
        refused = self.services.limits.arrivals.enter(self.address, len(self._connections))
        if refused is not None and not self.is_peer:
            self.send(pb.CommandError(request_id=NO_ID, error=pb.NotAllowedError, message=str(refused)))
            pump.close(refused)
        self._connections[self] = None
        self.services.limits.door.settle(pump)

    def commands(self, pump: Pump, commands: Sequence[Command]) -> None:
        self._turns.take(commands)

    def _run(self, commands: Iterable[Command]) -> Slices | None:
        """Handle commands until one has more to do than fits into a turn; returns the rest of its work."""
        # The hottest loop of the broker: every published entry passes here. SEND is told apart by its type,
        # before the table of handlers, and reaches its producer without a check of rights (`Revocation` ends
        # producers whose role lost its right), without a task and without an await. The wall clock is read
        # once per batch of commands, at the first SEND. Bytes are counted here and compared with the limits
        # once behind the loop, so that a read of a hundred SENDs costs one comparison.
        producers = self.producers
        slices: Slices | None = None
        now_ms = taken_bytes = 0
        for command in commands:
            if type(command) is Send:
                taken_bytes += len(command[8]) + ENTRY_CREDIT_BYTES
                producer = producers.get(command[0])
                if producer is None:
                    self._stray_send(command[0])
                    continue
                if not now_ms:
                    now_ms = self.services.clock.wall_ms()
                producer.publish(command, now_ms)
            else:
                slices = self._handle(command)
                if slices is not None:
                    break
        if taken_bytes and self.room.is_credited:
            self.room.took(taken_bytes)
        if self.publish_bytes > SMALL_BYTES:
            self.room.check()
        return slices

    def _handle(self, command: Command) -> Slices | None:
        handler = self._handlers.get(type(command)) if isinstance(command, Message) else None
        if handler is None or not isinstance(command, Message):
            warn = self.services.limits.warnings.warning
            warn("%s sent %s, which only a broker sends", self.address, type(command).__name__)
            return None
        try:
            check_limits(command)
            asking = admit(self.services.authorizer, self.caller, command, is_peer=self.is_peer)
            if asking is None:
                return self._act(handler, command)
            self.services.tasks.spawn(self._act_once_admitted(handler, command, asking), inner=asking)
            return self._turns.hold()
        except Exception as error:
            self._refuse(handler, command, error)
        return None

    async def _act_once_admitted(
        self, handler: CommandHandler, command: Message, asking: Coroutine[Any, Any, None]
    ) -> None:
        slices: Slices | None = None
        try:
            await asking
            if not self.ended:
                slices = self._act(handler, command)
        except Exception as error:
            self._refuse(handler, command, error)
        finally:
            self._turns.go_on(slices)

    def _act(self, handler: CommandHandler, command: Message) -> Slices | None:
        work = handler.act(self, command)
        if isinstance(work, Generator):
            return first_slice(self._in_slices(handler, command, work))
        if work is None:
            return None if handler.is_quick else self._turns.count_request()
        if self._requests >= self.services.requests_max:
            work.close()
            raise TooManyRequestsError(f"{self._requests} requests of this connection are under way")
        self._requests += 1
        if self._pump is not None:
            self._pump.handled += REQUEST_COMMANDS
        changes = self.services.authorizer.grants.changes
        self.services.tasks.spawn(self._carry_out(handler, command, work, changes), inner=work)
        return self._turns.count_request()

    def _in_slices(self, handler: CommandHandler, command: Message, work: Slices) -> Slices:
        try:
            yield from work
        except Exception as error:
            self._refuse(handler, command, error)

    async def _carry_out(
        self, handler: CommandHandler, command: Message, work: Coroutine[Any, Any, None], changes: int
    ) -> None:
        try:
            await work
        except Exception as error:
            self._refuse(handler, command, error)
        finally:
            self._requests -= 1
            if self.ended:
                # A handler that awaited may have attached a producer or consumer after `lost` released the
                # others.
                run_in_turns(self._take_releases(), self.services.tasks)
            elif changes != self.services.authorizer.grants.changes:
                # Rights were checked before the handler ran. The role may have lost the right meanwhile, and
                # the revocation that took it away did not see the object that the handler has opened since.
                self.services.revocation.check(self)

    def _refuse(self, handler: CommandHandler, command: Message, error: Exception) -> None:
        if not isinstance(error, AnabranchError):
            _logger.error("%s failed", type(command).__name__, exc_info=error)
            error = UnknownServerError(
                f"the broker failed on {type(command).__name__}; see the broker's log for the reason"
            )
        if isinstance(error, AuthorizationError):
            self.services.gate.audit.write(refusal_of(command, self.caller, self.address, error))
        handler.refuse(self, command, error)
        if isinstance(error, LimitExceededError) and not has_answer(command):
            # Without an answer the client would never learn of it.
            self._close_for(str(error))

    def _close_for(self, reason: str) -> None:
        assert self._pump is not None
        self._pump.close(RemoteProtocolError(reason))

    def _stray_send(self, producer_id: int) -> None:
        """Drop a late SEND of a closed producer. Close the connection if the producer never existed."""
        opening = ("producer", producer_id) in self.openings or producer_id in self.waiting
        if opening or producer_id in self._former:
            return
        self._close_for(f"{self.address} sent for the unknown producer {producer_id}")

    @property
    def writable(self) -> bool:
        return self._pump is not None and self._pump.writable

    def send(self, command: Message) -> None:
        self.write(encode(command))

    def forget_producer(self, producer_id: int) -> None:
        self.producers.pop(producer_id, None)
        self.waiting.pop(producer_id, None)
        self.producer_logs.pop(producer_id, None)
        if len(self._former) >= FORMER_MAX:
            del self._former[next(iter(self._former))]
        self._former[producer_id] = None

    def forget_consumer(self, consumer_id: int) -> None:
        self.consumers.pop(consumer_id, None)

    async def alive(self) -> bool:
        if self.ended or self._pump is None:
            return False
        if self.pauses or not self.writable:
            # The connection is not read just now, so the peer's silence proves nothing.
            return True
        return await self._life.comes(self._pump) and not self.ended

    def _writable_again(self) -> None:
        self.pushes.flush()
        for attached in self.consumers.values():
            attached.subscription.schedule()

    def closed(self, pump: Pump, error: Exception | None) -> None:
        if isinstance(error, RemoteProtocolError):
            self.services.limits.warnings.warning("closed the connection of %s: %s", pump.peer, error)
        self.services.limits.door.leave(pump)
        self.lost()

    def stop_reading(self) -> None:
        """Take no more commands from the client; waiting answers still go out."""
        self.pauses.add("stop")

    @property
    def certificate(self) -> PeerCertificate | None:
        return None if self._pump is None else peer_certificate(self._pump)

    def hang_up(self) -> None:
        """Send the waiting bytes and close."""
        if self._pump is not None:
            self._pump.close()

    def lost(self) -> None:
        """Release all objects of this client; the entries that it sent are stored all the same."""
        if not self.ended:
            self.ended = True
            self.openings.end()
            self._turns.close()
            self.pauses.end(self)
            if self in self._connections:
                del self._connections[self]
                self.services.limits.arrivals.leave(self.address)
            self._life.stop_waiting()
            run_in_turns(self._take_releases(), self.services.tasks)

    def _take_releases(self) -> list[Callable[[], object]]:
        """Take all objects from this connection, which is gone; returns the steps that release them."""
        producers = (*self.producers.values(), *self.waiting.values())
        logs, consumers, registrations = self.producer_logs, self.consumers, self.registrations
        steps: list[Callable[[], object]] = [
            *(partial(logs[one.id].producers.detach, one) for one in producers),
            *(partial(log.detach, subscription, one) for log, subscription, one in consumers.values()),
            *self.pushes.close(),
            *(registered.lost for registered in registrations.values()),
        ]
        for kept in (self.producers, self.waiting, logs, consumers, registrations):
            kept.clear()
        return steps


def _discard(buffers: object) -> None:
    """Drop bytes that are written before the handshake."""
