"""Connections to brokers: one per address, requests matched to answers, and the owners of what comes unasked.

A lost connection is reported to everybody who uses it; coming back is their own business, because only they
know what must be sent again. Knows nothing of segments, batches or layouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVar, cast

from google.protobuf.message import Message as ProtoMessage

from anabranch.aio import AttemptCancelled, Backoff, SharedAttempts
from anabranch.client.options import log, parse_host
from anabranch.errors import (
    AlreadyClosedError,
    ConnectError,
    NotConnectedError,
    OperationTimeoutError,
    RemoteProtocolError,
)
from anabranch.protocol.commands import Command, Delivery, SendReceipt, encode
from anabranch.protocol.connection import OUR_CLIENTS, ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for
from anabranch.transport.pump import Pump, dial

Address = tuple[str, int]
Reply = TypeVar("Reply", bound=ProtoMessage)

_REDIRECTS_MAX = 20
PATIENCE_S = 1.0
"""How long a handshake or a look-up may take at first."""


def address_of(url: str) -> Address:
    """Host and port of a `pulsar://` URL that a broker named."""
    return parse_host(url.removeprefix("pulsar://").rstrip("/"), url)


class ProducerEnd(Protocol):
    """Whoever sends on a connection under a producer id."""

    def receipt(self, receipt: SendReceipt) -> None: ...
    def send_error(self, error: pb.CommandSendError) -> None: ...
    def closed_by_broker(self) -> None: ...
    def connection_lost(self) -> None: ...


class ConsumerEnd(Protocol):
    """Whoever reads on a connection under a consumer id."""

    def delivered(self, delivery: Delivery) -> None: ...
    def reached_end(self) -> None: ...
    def closed_by_broker(self) -> None: ...
    def connection_lost(self) -> None: ...


class WatchEnd(Protocol):
    """Whoever follows the layout of a topic, or an assignment."""

    def updated(self, update: Any) -> None: ...
    def connection_lost(self) -> None: ...


class BrokerConnection:
    """One established connection, shared by everything that talks to that broker."""

    def __init__(
        self, address: Address, machine: ClientMachine, gone: Callable[[BrokerConnection], None]
    ) -> None:
        self.address = address
        self.machine = machine
        self.pump: Pump
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watches: dict[int, WatchEnd] = {}
        """By session id: layouts of topics."""
        self.registrations: dict[int, WatchEnd] = {}
        """By consumer id: assignments of stream consumers."""
        self.closed_by: BaseException | None = None
        """Why the connection ended; None while it lives."""
        self.on_writable: dict[Callable[[], None], None] = {}
        """Called once when the connection takes bytes again."""
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._gone = gone
        self._handlers: dict[type, Callable[[Any], None]] = {
            pb.CommandSuccess: self._answer,
            pb.CommandProducerSuccess: self._producer_success,
            pb.CommandLookupTopicResponse: self._answer,
            pb.CommandGetLastMessageIdResponse: self._answer,
            pb.CommandAckResponse: self._answer,
            pb.CommandScalableTopicSubscribeResponse: self._answer,
            pb.CommandError: self._error,
            pb.CommandSendError: self._send_error,
            pb.CommandCloseProducer: self._close_producer,
            pb.CommandCloseConsumer: self._close_consumer,
            pb.CommandReachedEndOfTopic: self._reached_end,
            pb.CommandScalableTopicUpdate: self._layout,
            pb.CommandScalableTopicAssignmentUpdate: self._assignment,
        }

    @property
    def open(self) -> bool:
        return self.closed_by is None

    @property
    def in_use(self) -> bool:
        """Whether anybody sends, reads, watches or waits for an answer here."""
        return bool(self.producers or self.consumers or self.watches or self.registrations or self._requests)

    @property
    def is_ours(self) -> bool:
        """Whether the broker knows what Anabranch adds to the protocol."""
        return self.machine.server_version.startswith(OUR_CLIENTS)

    @property
    def writable(self) -> bool:
        """Whether the peer keeps up; when it does not, larger batches are better than longer queues."""
        return self.pump.writable

    def send(self, message: ProtoMessage) -> None:
        """Send a command that has no answer."""
        if self.closed_by is None:
            self.pump.write(encode(message))

    async def request(self, message: ProtoMessage, answer: type[Reply], timeout_s: float) -> Reply:
        """Send a command with a request id and wait for its answer; a refusal is raised."""
        waiting = self.post(message)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await waiting
        except TimeoutError:
            raise OperationTimeoutError(
                f"{self._peer} did not answer {type(message).__name__} within {timeout_s:g} s"
            ) from None
        finally:
            self._requests.pop(cast(Any, message).request_id, None)
        if not isinstance(reply, answer):
            raise RemoteProtocolError(
                f"{self._peer} answered {type(message).__name__} with {type(reply).__name__}"
            )
        return reply

    def post(self, message: ProtoMessage) -> asyncio.Future[Any]:
        """Send a command with a request id; the future gets its answer, its refusal or the loss."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Not everybody who asks wants to know that nobody answered.
        waiting.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        if self.closed_by is not None:
            waiting.set_exception(NotConnectedError(f"the connection to {self._peer} was lost"))
            return waiting
        self._requests[cast(Any, message).request_id] = waiting
        self.pump.write(encode(message))
        return waiting

    def close(self) -> None:
        """Send what is queued and end the connection."""
        self.pump.close()

    @property
    def _peer(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    # What the pump calls.

    def connected(self, pump: Pump) -> None:
        """The handshake is done."""
        self.pump = pump
        pump.on_writable = self._writable

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        """Pass on what the broker sent."""
        for command in commands:
            kind = type(command)
            if kind is Delivery:
                delivery = cast(Delivery, command)
                consumer = self.consumers.get(delivery.consumer_id)
                if consumer is not None:
                    consumer.delivered(delivery)
            elif kind is SendReceipt:
                receipt = cast(SendReceipt, command)
                producer = self.producers.get(receipt.producer_id)
                if producer is not None:
                    producer.receipt(receipt)
            else:
                handler = self._handlers.get(kind)
                if handler is not None:
                    handler(command)

    def closed(self, pump: Pump, error: BaseException | None) -> None:
        """The connection is gone; everybody hears of it once."""
        if self.closed_by is not None:
            return
        self.closed_by = error or NotConnectedError(f"{self._peer} closed the connection")
        self._gone(self)
        for waiting in self._requests.values():
            if not waiting.done():
                waiting.set_exception(NotConnectedError(f"the connection to {self._peer} was lost"))
        self._requests.clear()
        ends: list[ProducerEnd | ConsumerEnd | WatchEnd] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.watches.values(),
            *self.registrations.values(),
        ]
        for registry in (self.producers, self.consumers, self.watches, self.registrations):
            registry.clear()
        self.on_writable.clear()
        for end in ends:
            end.connection_lost()

    def _writable(self) -> None:
        waiting = list(self.on_writable)
        self.on_writable.clear()
        for resume in waiting:
            resume()

    def _answer(self, command: Any) -> None:
        waiting = self._requests.pop(command.request_id, None)
        if waiting is None or waiting.done():
            return
        failed = (
            command.response == pb.CommandLookupTopicResponse.Failed
            if isinstance(command, pb.CommandLookupTopicResponse)
            else not isinstance(command, (pb.CommandSuccess, pb.CommandGetLastMessageIdResponse))
            and command.HasField("error")
        )
        if failed:
            waiting.set_exception(exception_for(command.error, command.message))
        else:
            waiting.set_result(command)

    def _producer_success(self, command: pb.CommandProducerSuccess) -> None:
        # A producer that waits for exclusive access is answered twice: queued now, ready later.
        if command.producer_ready:
            waiting = self._requests.pop(command.request_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)

    def _error(self, command: pb.CommandError) -> None:
        waiting = self._requests.pop(command.request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(exception_for(command.error, command.message))

    def _send_error(self, command: pb.CommandSendError) -> None:
        producer = self.producers.get(command.producer_id)
        if producer is not None:
            producer.send_error(command)

    def _close_producer(self, command: pb.CommandCloseProducer) -> None:
        producer = self.producers.pop(command.producer_id, None)
        if producer is not None:
            producer.closed_by_broker()

    def _close_consumer(self, command: pb.CommandCloseConsumer) -> None:
        consumer = self.consumers.pop(command.consumer_id, None)
        registration = self.registrations.pop(command.consumer_id, None)
        if registration is not None:
            registration.connection_lost()
        elif consumer is not None and command.moved:
            consumer.connection_lost()
        elif consumer is not None:
            consumer.closed_by_broker()

    def _reached_end(self, command: pb.CommandReachedEndOfTopic) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.reached_end()

    def _layout(self, command: pb.CommandScalableTopicUpdate) -> None:
        watch = self.watches.get(command.session_id)
        if watch is not None:
            watch.updated(command)

    def _assignment(self, command: pb.CommandScalableTopicAssignmentUpdate) -> None:
        registration = self.registrations.get(command.consumer_id)
        if registration is not None:
            registration.updated(command.assignment)


class Patience:
    """How long to wait for an answer: shortly at first, since a broker that is paused takes connections and
    never answers, and twice as long each time in a row, since a broker may also be slow."""

    def __init__(self, limit_s: float) -> None:
        self._timeouts = Backoff(min(PATIENCE_S, limit_s), limit_s)
        self._in_vain: dict[Address, int] = {}

    def time_s(self, address: Address) -> float:
        return self._timeouts.delay(self._in_vain.get(address, 0))

    def answered(self, address: Address) -> None:
        self._in_vain.pop(address, None)

    def ran_out(self, address: Address) -> None:
        self._in_vain[address] = self._in_vain.get(address, 0) + 1


class ConnectionPool:
    """All connections of one client, and the ids that must be unique on each of them."""

    def __init__(
        self,
        hosts: tuple[Address, ...],
        *,
        connect_timeout_s: float = 10.0,
        operation_timeout_s: float = 30.0,
        keep_alive_s: float = 30.0,
        rng: Random,
    ) -> None:
        self.operation_timeout_s = operation_timeout_s
        self.rng = rng
        self.next_id: Callable[[], int] = count(1).__next__
        """Request, producer, consumer and session ids alike; one counter makes them unique everywhere."""
        self._hosts = hosts
        self._next_host = rng.randrange(len(hosts))
        self._keep_alive_s = keep_alive_s
        self._connections: dict[Address, BrokerConnection] = {}
        self._dialing: SharedAttempts[Address, BrokerConnection] = SharedAttempts()
        self._silent: dict[BrokerConnection, None] = {}
        """In use, but not for anything new, since look-ups there were not answered."""
        self._handshakes = Patience(connect_timeout_s)
        self._look_ups = Patience(operation_timeout_s)
        self._closed = False

    async def connection(self, address: Address) -> BrokerConnection:
        """The connection to an address, made if there is none; raises ConnectError."""
        if self._closed:
            raise AlreadyClosedError("the client is closed")
        existing = self._connections.get(address)
        if existing is not None:
            return existing
        try:
            made = await self._dialing.join(address, lambda: self._dial(address))
        except AttemptCancelled:
            raise AlreadyClosedError("the client is closed") from None
        if not made.open:
            raise ConnectError(f"{address[0]}:{address[1]} closed the connection at once")
        return made

    async def connection_to(self, url: str) -> BrokerConnection:
        """The connection to a `pulsar://` URL that a broker named."""
        return await self.connection(address_of(url))

    async def any_connection(self) -> BrokerConnection:
        """A connection to one of the service hosts, each tried in turn."""
        error: ConnectError | None = None
        for _ in self._hosts:
            try:
                return await self.connection(self._hosts[self._next_host])
            except ConnectError as failed:
                error = failed
                self._rotate()
        assert error is not None
        raise error

    async def connection_for(self, topic: str, url: str | None = None) -> BrokerConnection:
        """The connection to the broker that serves a topic; `url` saves the look-up when it is known.

        A service host that is silent is left for the next one, so the same call may succeed when repeated.
        """
        if url:
            return await self.connection_to(url)
        connection = await self.any_connection()
        authoritative = False
        for _ in range(_REDIRECTS_MAX):
            reply = await self._look_up(connection, topic, authoritative)
            if reply.proxy_through_service_url:
                return await self.any_connection()
            connection = await self.connection_to(reply.brokerServiceUrl)
            if reply.response == pb.CommandLookupTopicResponse.Connect:
                return connection
            authoritative = reply.authoritative
        raise RemoteProtocolError(f"the look-up of {topic} was redirected {_REDIRECTS_MAX} times")

    async def _look_up(
        self, connection: BrokerConnection, topic: str, authoritative: bool
    ) -> pb.CommandLookupTopicResponse:
        command = pb.CommandLookupTopic(topic=topic, request_id=self.next_id(), authoritative=authoritative)
        patience_s = self._look_ups.time_s(connection.address)
        try:
            reply = await connection.request(command, pb.CommandLookupTopicResponse, patience_s)
        except OperationTimeoutError:
            self._look_ups.ran_out(connection.address)
            self._forget(connection)
            if connection.open:
                self._silent[connection] = None
            for other in [silent for silent in self._silent if not silent.in_use]:
                other.close()
            raise
        self._look_ups.answered(connection.address)
        return reply

    async def _dial(self, address: Address) -> BrokerConnection:
        host, port = address
        loop = asyncio.get_running_loop()
        machine = ClientMachine(now=loop.time(), keep_alive_s=self._keep_alive_s)
        connection = BrokerConnection(address, machine, self._forget)
        try:
            patience_s = self._handshakes.time_s(address)
            await dial(host, port, lambda: machine, connection, timeout_s=patience_s)
        except OperationTimeoutError as error:
            self._handshakes.ran_out(address)
            raise ConnectError(str(error)) from error
        self._handshakes.answered(address)
        if connection.open:
            self._connections[address] = connection
        log.debug("connected to %s:%d (%s)", host, port, machine.server_version)
        return connection

    def _forget(self, connection: BrokerConnection) -> None:
        self._silent.pop(connection, None)
        if self._connections.get(connection.address) is not connection:
            return
        del self._connections[connection.address]
        if self._hosts[self._next_host] == connection.address:
            self._rotate()

    def _rotate(self) -> None:
        self._next_host = (self._next_host + 1) % len(self._hosts)

    async def close(self) -> None:
        """End all connections; whoever still uses one hears of the loss."""
        self._closed = True
        await self._dialing.stop()
        for connection in [*self._connections.values(), *self._silent]:
            connection.close()
