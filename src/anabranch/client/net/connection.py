"""One connection to a broker: requests matched to answers, and commands passed on to their receivers.

A lost connection is reported to every producer, consumer and watch that uses it; each of them attaches again
by itself, because only it knows what must be sent again. This module knows nothing of batches or layouts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from google.protobuf.message import Message as ProtoMessage

from anabranch.aio import mark_retrieved
from anabranch.client.decide.producing.credits import LinkCredit
from anabranch.client.net.ends import ConsumerEnd, ProducerEnd, WatchEnd
from anabranch.client.options import parse_host
from anabranch.errors import AnabranchError, NotConnectedError, OperationTimeoutError, RemoteProtocolError
from anabranch.protocol.commands import Command, Delivery, SendReceipt, encode
from anabranch.protocol.connection import OUR_CLIENTS, ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for
from anabranch.transport.pump import Pump

Address = tuple[str, int]
Reply = TypeVar("Reply", bound=ProtoMessage)


def address_of(url: str) -> Address:
    """Host and port of a `pulsar://` or `pulsar+ssl://` URL that a broker named."""
    return parse_host(url.partition("://")[2].rstrip("/"), url)


class BrokerConnection:
    """One established connection, shared by all producers, consumers and watches at that broker."""

    def __init__(
        self,
        address: Address,
        machine: ClientMachine,
        gone: Callable[[BrokerConnection], None],
        challenged: Callable[[BrokerConnection, bytes], None],
    ) -> None:
        self.address = address
        self.machine = machine
        self.pump: Pump
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watches: dict[int, WatchEnd] = {}
        """By session or watch id: layouts of topics, and lists of topics."""
        self.registrations: dict[int, WatchEnd] = {}
        """By consumer id: assignments of stream consumers."""
        self.credit = LinkCredit()
        """The limit of all producers of the connection together."""
        self.closed_by: BaseException | None = None
        """Why the connection ended; None while it is open."""
        self.ended = asyncio.Event()
        self.on_writable: dict[Callable[[], None], None] = {}
        """Callbacks, each called once when the connection takes bytes again."""
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._gone = gone
        self._challenged = challenged  # Gets the challenge of a broker that asks for credentials.
        self._handlers = self._handlers_by_type()

    def _handlers_by_type(self) -> dict[type, Callable[[Any], None]]:
        return {
            pb.CommandSuccess: self._answer,
            pb.CommandProducerSuccess: self._producer_success,
            pb.CommandLookupTopicResponse: self._answer_or_refusal,
            pb.CommandPartitionedTopicMetadataResponse: self._answer_or_refusal,
            pb.CommandGetLastMessageIdResponse: self._answer,
            pb.CommandGetTopicsOfNamespaceResponse: self._answer,
            **dict.fromkeys((pb.CommandGetSchemaResponse, pb.CommandGetOrCreateSchemaResponse), self._answer),
            pb.CommandAckResponse: self._answer_or_refusal,
            pb.CommandScalableTopicSubscribeResponse: self._answer_or_refusal,
            pb.CommandError: self._error,
            pb.CommandSendError: self._send_error,
            pb.CommandProducerCredit: self._producer_credit,
            pb.CommandCloseProducer: self._close_producer,
            pb.CommandCloseConsumer: self._close_consumer,
            pb.CommandReachedEndOfTopic: self._reached_end,
            pb.CommandActiveConsumerChange: self._active_changed,
            pb.CommandScalableTopicUpdate: self._watched,
            pb.CommandWatchScalableTopicsUpdate: self._watched,
            pb.CommandScalableTopicAssignmentUpdate: self._assignment,
            pb.CommandAuthChallenge: self._challenge,
        }

    @property
    def open(self) -> bool:
        return self.closed_by is None

    @property
    def in_use(self) -> bool:
        """Whether a producer, consumer, watch, registration or request still uses the connection."""
        return bool(self.producers or self.consumers or self.watches or self.registrations or self._requests)

    @property
    def is_ours(self) -> bool:
        """Whether the broker understands Anabranch's extensions of the protocol."""
        return self.machine.server_version.startswith(OUR_CLIENTS)

    def send(self, message: ProtoMessage) -> None:
        """Send a command that has no answer."""
        if self.closed_by is None:
            self.pump.write(encode(message))

    async def request(self, message: ProtoMessage, answer: type[Reply], timeout_s: float) -> Reply:
        """Send a command with a request id and return its answer; raises the broker's refusal."""
        waiting = self.post(message)
        self.pump.flush()  # A busy application may keep the loop for long before its turn ends.
        try:
            async with asyncio.timeout(timeout_s):
                reply = await waiting
        except TimeoutError:
            name = type(message).__name__
            raise OperationTimeoutError(f"{self.peer} did not answer {name} within {timeout_s:g} s") from None
        if not isinstance(reply, answer):
            name = type(message).__name__
            raise RemoteProtocolError(f"{self.peer} answered {name} with {type(reply).__name__}")
        return reply

    def post(self, message: ProtoMessage) -> asyncio.Future[Any]:
        """Send a command with a request id; the future gets the answer, the refusal or NotConnectedError."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request_id = cast(Any, message).request_id
        waiting.add_done_callback(partial(self._request_ended, request_id))
        if self.closed_by is not None:
            waiting.set_exception(NotConnectedError(f"the connection to {self.peer} was lost"))
            return waiting
        self._requests[request_id] = waiting
        self.pump.write(encode(message))
        return waiting

    def _request_ended(self, request_id: int, waiting: asyncio.Future[Any]) -> None:
        self._requests.pop(request_id, None)
        # A caller may drop the future without reading its error.
        mark_retrieved(waiting)

    def close(self) -> None:
        """Send the queued bytes and end the connection."""
        self.pump.close()

    @property
    def peer(self) -> str:
        """The broker's address in words."""
        return f"{self.address[0]}:{self.address[1]}"

    # Called by the pump.

    def connected(self, pump: Pump) -> None:
        self.pump = pump
        pump.on_writable = self._writable

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        """Pass each command of the broker to its receiver; an error of a receiver ends the connection."""
        # A challenge comes before the handshake is done.
        self.pump = pump
        try:
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
        except AnabranchError as error:
            pump.close(error)

    def closed(self, pump: Pump, error: BaseException | None) -> None:
        """Report the loss once to every user of the connection; each attaches again by itself."""
        if self.closed_by is not None:
            return
        self.closed_by = error or NotConnectedError(f"{self.peer} closed the connection")
        self.ended.set()
        self._gone(self)
        for waiting in self._requests.values():
            if not waiting.done():
                waiting.set_exception(NotConnectedError(f"the connection to {self.peer} was lost"))
        self._requests.clear()
        ends: list[ProducerEnd | ConsumerEnd | WatchEnd] = []
        for registry in (self.producers, self.consumers, self.watches, self.registrations):
            ends.extend(registry.values())
            registry.clear()
        self.on_writable.clear()
        self.credit.close()
        for end in ends:
            end.connection_lost()

    def _writable(self) -> None:
        waiting = list(self.on_writable)
        self.on_writable.clear()
        for resume in waiting:
            resume()

    def _complete(self, request_id: int, answer: object) -> None:
        waiting = self._requests.pop(request_id, None)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, BaseException):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _answer(self, command: Any) -> None:
        self._complete(command.request_id, command)

    def _answer_or_refusal(self, command: Any) -> None:
        if isinstance(command, (pb.CommandLookupTopicResponse, pb.CommandPartitionedTopicMetadataResponse)):
            refused = command.response == type(command).Failed
        else:
            refused = command.HasField("error")
        if refused:
            self._error(command)
        else:
            self._answer(command)

    def _error(self, command: Any) -> None:
        self._complete(command.request_id, exception_for(command.error, command.message))

    def _producer_success(self, command: pb.CommandProducerSuccess) -> None:
        # A producer that waits for exclusive access is answered twice: queued now, ready later.
        if command.producer_ready:
            self._answer(command)

    def _send_error(self, command: pb.CommandSendError) -> None:
        producer = self.producers.get(command.producer_id)
        if producer is not None:
            producer.send_error(command)

    def _producer_credit(self, command: pb.CommandProducerCredit) -> None:
        bytes_max = command.bytes if command.HasField("bytes") else math.inf
        if command.HasField("producer_id"):
            producer = self.producers.get(command.producer_id)
            messages_max = command.messages if command.HasField("messages") else math.inf
            if producer is not None:
                producer.credit.limit(bytes_max, messages_max)
                producer.credited()
        elif command.HasField("taken_bytes"):
            self.credit.taken(command.taken_bytes)
        else:
            self.credit.limit(bytes_max)

    def _close_producer(self, command: pb.CommandCloseProducer) -> None:
        producer = self.producers.pop(command.producer_id, None)
        if producer is not None:
            producer.closed_by_broker(sealed=command.sealed)

    def _close_consumer(self, command: pb.CommandCloseConsumer) -> None:
        consumer = self.consumers.pop(command.consumer_id, None)
        registration = self.registrations.pop(command.consumer_id, None)
        if registration is not None:
            registration.connection_lost()
        elif consumer is not None and command.moved:
            consumer.connection_lost()
        elif consumer is not None:
            consumer.closed_by_broker()

    def _challenge(self, command: pb.CommandAuthChallenge) -> None:
        self._challenged(self, command.challenge.auth_data)

    def _reached_end(self, command: pb.CommandReachedEndOfTopic) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.reached_end()

    def _active_changed(self, command: pb.CommandActiveConsumerChange) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.active_changed(command.is_active)

    def _watched(self, command: Any) -> None:
        is_layout = isinstance(command, pb.CommandScalableTopicUpdate)
        watch = self.watches.get(command.session_id if is_layout else command.watch_id)
        if watch is not None:
            watch.updated(command)

    def _assignment(self, command: pb.CommandScalableTopicAssignmentUpdate) -> None:
        registration = self.registrations.get(command.consumer_id)
        if registration is not None:
            registration.updated(command.assignment)
