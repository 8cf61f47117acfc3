"""One client: its commands go to handlers, its producers, consumers and watches live here.

The loop over SENDs is the broker's hottest; everything else is looked up by type. The fault of one object
is answered to that object: the connection is shared, and closed only when the peer breaks the protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from google.protobuf.message import Message

from anabranch.broker.cluster.peers import PEER_VERSION
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.producer import ServedProducer
from anabranch.broker.serving.served_log import ServedLog
from anabranch.broker.serving.subscription import Subscription
from anabranch.broker.wire.services import Services
from anabranch.controller.ports.leader import Membership, TopicLeader
from anabranch.errors import (
    AnabranchError,
    RemoteProtocolError,
    ServiceNotReadyError,
    TooManyRequestsError,
    UnknownServerError,
)
from anabranch.protocol.commands import NO_ID, Command, Send, encode
from anabranch.protocol.connection import ServerMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for
from anabranch.transport.pump import Pump

_logger = logging.getLogger(__name__)

REQUESTS_MAX = 1000
"""Requests of one connection that may be under way; more are refused."""

OBJECTS_MAX = 20_000
"""Producers and consumers of one connection, and its watches."""

PROBE_S = 5.0
"""How long a peer may take to show that it lives, when another wants what it holds."""

FORMER_MAX = 10_000
"""Closed producers whose late SENDs are recognised."""

_PING = encode(pb.CommandPing())


class ListeningMachine(ServerMachine):
    """A server machine that tells whoever waits for a sign of life."""

    heard: asyncio.Future[None] | None = None

    def receive(self, data: bytes, now: float) -> list[Command]:
        self.stop_listening()
        return super().receive(data, now)

    def stop_listening(self) -> None:
        """Whoever waits has waited long enough: there was a sign, or the connection is gone."""
        if self.heard is not None and not self.heard.done():
            self.heard.set_result(None)


class Attached(NamedTuple):
    """A consumer and where it reads."""

    segment: ServedLog
    subscription: Subscription
    consumer: ServedConsumer


class Registered(NamedTuple):
    """A stream or checkpoint consumer and who assigns it segments."""

    controller: TopicLeader
    registration: Membership


def refuse_plainly(connection: ServerConnection, command: Message, error: Exception) -> None:
    """ERROR, for commands that have a request id; others have no way to be told."""
    request_id = getattr(command, "request_id", None)
    if request_id is not None:
        connection.send(pb.CommandError(request_id=request_id, error=code_for(error), message=str(error)))


class CommandHandler(NamedTuple):
    """How a command is handled, and how its failure is told."""

    act: Callable[[ServerConnection, Any], Coroutine[Any, Any, None] | None]
    refuse: Callable[[ServerConnection, Any, Exception], None] = refuse_plainly


class ServerConnection:
    """Handles the commands of one pump and is the link of all objects on it."""

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
        self.homes: dict[int, ServedLog] = {}
        """Where each producer, also a waiting one, is attached."""
        self.consumers: dict[int, Attached] = {}
        self.sessions: dict[tuple[str, int], Callable[[], None]] = {}
        """Open watches, and how to end each."""
        self.registrations: dict[int, Registered] = {}
        self.publish_bytes = 0
        self.throttled = False
        self.ended = False
        """Whether the connection is gone; what is still being made for it is nobody's."""
        self.write: Callable[[bytes], None] = _nowhere
        self.write_many: Callable[[Sequence[bytes]], None] = _nowhere
        self.address = ""
        self.client_version = ""
        self.peer_is_ours = False
        self.wants_entry_metadata = False
        self.hears_end_of_topic = False
        self.knows_buckets = True
        self.is_peer = False
        """Whether a broker of this cluster is at the other end."""
        self._handlers = handlers
        self._connections = connections
        self._pump: Pump | None = None
        self._opening: dict[tuple[str, int], bool] = {}
        """Producers and consumers being made; True once their client gave them up."""
        self._former: dict[int, None] = {}
        self._requests = 0
        self._unsent: dict[tuple[str, int], Callable[[], None]] = {}
        self._publish_bytes_max = services.config.publish_pending_bytes_max

    # What the pump calls.

    def connected(self, pump: Pump) -> None:
        machine = pump.machine
        assert isinstance(machine, ServerMachine)
        self._pump = pump
        self.write = pump.write
        self.write_many = pump.write_many
        self.address = pump.peer
        self.client_version = machine.peer_version
        self.peer_is_ours = self.wants_entry_metadata = machine.peer_is_ours
        self.hears_end_of_topic = machine.peer_is_ours or machine.peer_is_java
        self.knows_buckets = machine.peer_knows_buckets
        pump.on_writable = self._writable_again
        said_broker = machine.peer_version == PEER_VERSION
        if len(self._connections) >= self.services.config.connections_max and not said_broker:
            refused = TooManyRequestsError(f"{len(self._connections)} connections are open already")
            self.send(pb.CommandError(request_id=NO_ID, error=pb.NotAllowedError, message=str(refused)))
            pump.close(refused)
        self._connections[self] = None

    def commands(self, pump: Pump, commands: Sequence[Command]) -> None:
        producers = self.producers
        now_ms = 0
        for command in commands:
            if type(command) is Send:
                producer = producers.get(command[0])
                if producer is None:
                    self._stray_send(command[0])
                    continue
                if not now_ms:
                    now_ms = self.services.clock.wall_ms()
                producer.publish(command, now_ms)
            else:
                self._handle(command)
        if self.publish_bytes > self._publish_bytes_max and not self.throttled:
            self.throttled = True
            pump.pause_reading()

    # Handlers: how they run, and what becomes of what they raise.

    def _handle(self, command: Command) -> None:
        handler = self._handlers.get(type(command)) if isinstance(command, Message) else None
        if handler is None or not isinstance(command, Message):
            _logger.warning(
                "%s sent a command that only a broker sends: %s", self.address, type(command).__name__
            )
            return
        try:
            work = handler.act(self, command)
            if work is None:
                return
            if self._requests >= REQUESTS_MAX:
                work.close()
                raise TooManyRequestsError(f"{REQUESTS_MAX} requests of this connection are under way")
            self._requests += 1
            self.services.tasks.spawn(self._carry_out(handler, command, work), inner=work)
        except Exception as error:
            self._refuse(handler, command, error)

    async def _carry_out(
        self, handler: CommandHandler, command: Message, work: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await work
        except Exception as error:
            self._refuse(handler, command, error)
        finally:
            self._requests -= 1
            if self.ended:
                # It may have opened something after everything was taken away.
                self._release()

    def _refuse(self, handler: CommandHandler, command: Message, error: Exception) -> None:
        if not isinstance(error, AnabranchError):
            _logger.error("%s failed", type(command).__name__, exc_info=error)
            error = UnknownServerError(f"the broker failed on {type(command).__name__}; its log says why")
        handler.refuse(self, command, error)

    def _stray_send(self, producer_id: int) -> None:
        """A SEND for a producer that is not there: late ones of a closed producer are swallowed."""
        opening = ("producer", producer_id) in self._opening or producer_id in self.waiting
        if opening or producer_id in self._former:
            return
        assert self._pump is not None
        self._pump.close(RemoteProtocolError(f"{self.address} sent for the unknown producer {producer_id}"))

    # What handlers call.

    @contextmanager
    def opens(self, what: str, number: int) -> Iterator[None]:
        """A producer or consumer of this number is being made; ServiceNotReadyError when it is already."""
        key = (what, number)
        if key in self._opening:
            raise ServiceNotReadyError(f"{what} {number} is being made already")
        if len(self.homes) + len(self.consumers) >= OBJECTS_MAX:
            raise TooManyRequestsError(f"a connection has at most {OBJECTS_MAX} producers and consumers")
        self._opening[key] = False
        try:
            yield
        finally:
            del self._opening[key]

    def give_up(self, what: str, number: int) -> bool:
        """The client closes what may still be in the making; whether it is."""
        if (what, number) not in self._opening:
            return False
        self._opening[what, number] = True
        return True

    def given_up(self, what: str, number: int) -> bool:
        """Whether nobody wants any more what is being made."""
        return self.ended or self._opening.get((what, number), False)

    def open_session(self, key: tuple[str, int], end: Callable[[], None]) -> None:
        """Keep a watch until its client closes it or goes; an earlier one of the same number ends."""
        self.end_session(key)
        if len(self.sessions) >= OBJECTS_MAX:
            end()
            raise TooManyRequestsError(f"a connection has at most {OBJECTS_MAX} watches")
        self.sessions[key] = end

    def end_session(self, key: tuple[str, int]) -> None:
        """Close a watch; an unknown one is fine."""
        end = self.sessions.pop(key, None)
        if end is not None:
            end()
        self._unsent.pop(key, None)

    def when_writable(self, key: tuple[str, int], push: Callable[[], None]) -> None:
        """Call `push` now, or when the peer takes more again; then only the last one of this key."""
        if self.writable:
            push()
        elif not self.ended:
            self._unsent[key] = push

    # What producers and consumers call: the link.

    @property
    def writable(self) -> bool:
        return self._pump is not None and self._pump.writable

    def send(self, command: Message) -> None:
        self.write(encode(command))

    def resume_if_room(self) -> None:
        if self.throttled and self.publish_bytes <= self._publish_bytes_max // 2:
            self.throttled = False
            if self._pump is not None:
                self._pump.resume_reading()

    def forget_producer(self, producer_id: int) -> None:
        self.producers.pop(producer_id, None)
        self.waiting.pop(producer_id, None)
        self.homes.pop(producer_id, None)
        if len(self._former) >= FORMER_MAX:
            del self._former[next(iter(self._former))]
        self._former[producer_id] = None

    def forget_consumer(self, consumer_id: int) -> None:
        self.consumers.pop(consumer_id, None)

    async def alive(self) -> bool:
        if self.ended or self._pump is None:
            return False
        if self.throttled or not self.writable:
            # Nobody listens to the peer just now, so its silence says nothing.
            return True
        machine = self._pump.machine
        assert isinstance(machine, ListeningMachine)
        if machine.heard is None or machine.heard.done():
            machine.heard = asyncio.get_running_loop().create_future()
            self.write(_PING)
        try:
            async with asyncio.timeout(PROBE_S):
                await asyncio.shield(machine.heard)
        except TimeoutError:
            self._pump.abort()
            return False
        return not self.ended

    # The end.

    def _writable_again(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for key, push in unsent.items():
            self.when_writable(key, push)
        for attached in self.consumers.values():
            attached.subscription.schedule()

    def closed(self, pump: Pump, error: Exception | None) -> None:
        if isinstance(error, RemoteProtocolError):
            _logger.warning("hung up on %s: %s", pump.peer, error)
        self.lost()

    def stop_reading(self) -> None:
        """Take nothing more from the client; what it is owed still goes out."""
        if self._pump is not None:
            self._pump.pause_reading()

    def hang_up(self) -> None:
        """Send what waits and close."""
        if self._pump is not None:
            self._pump.close()

    def lost(self) -> None:
        """Take everything of this client away; what it sent is stored all the same."""
        if not self.ended:
            self.ended = True
            self._connections.pop(self, None)
            if self._pump is not None and isinstance(self._pump.machine, ListeningMachine):
                self._pump.machine.stop_listening()
            self._release()

    def _release(self) -> None:
        for producer in (*self.producers.values(), *self.waiting.values()):
            self.homes[producer.id].producers.detach(producer)
        for segment, subscription, consumer in list(self.consumers.values()):
            segment.detach(subscription, consumer)
        for end in list(self.sessions.values()):
            end()
        for controller, registration in self.registrations.values():
            controller.connection_lost(registration)
        self.producers.clear()
        self.waiting.clear()
        self.homes.clear()
        self.consumers.clear()
        self.sessions.clear()
        self.registrations.clear()
        self._unsent.clear()


def _nowhere(buffers: object) -> None:
    """Where bytes go before the handshake."""
