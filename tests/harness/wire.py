"""A client that sends single commands of the binary protocol, and the entries that it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from anabranch.protocol import commands
from anabranch.protocol.commands import Command, Delivery, SendReceipt
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.entry import batches, singles
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.dialing import dial
from anabranch.transport.pump import Pump

T = TypeVar("T")
M = TypeVar("M", bound=Message)

TOPIC = "persistent://public/default/orders"
SCALABLE_TOPIC = "topic://public/default/orders"
PATIENCE_S = 20.0
"""Virtual seconds that a client waits for a command that must come."""


class MachineOfProxy(ClientMachine):
    """A client's end whose CONNECT can name the role of a proxy's client."""

    def __init__(self, version: str, *, original: str = "", **options: Any) -> None:
        super().__init__(version, **options)
        self._original = original

    def start(self) -> bytes:
        connect = pb.BaseCommand.FromString(super().start()[8:]).connect
        if self._original:
            connect.original_principal = self._original
        return commands.encode(connect)


class WireClient:
    """One connection; `inbox` keeps the commands of the broker until a test takes them."""

    @classmethod
    async def dial(
        cls, host: str, port: int, version: str = "Anabranch-Test", **credentials: Any
    ) -> WireClient:
        """Return a client whose handshake with this broker is done."""
        loop = asyncio.get_running_loop()
        client = cls()
        machine = MachineOfProxy(version, now=loop.time(), **credentials)
        await dial(host, port, lambda: machine, client, timeout_s=PATIENCE_S)
        await client.expect(pb.CommandConnected)
        return client

    def __init__(self) -> None:
        self.inbox: list[Command] = []
        self.pump: Pump | None = None
        self.hung_up = False
        self._news = asyncio.Event()
        self._requests = 0

    def connected(self, pump: Pump) -> None:
        self.pump = pump

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        self.inbox += commands
        self._news.set()

    def closed(self, pump: Pump, error: Exception | None) -> None:
        self.hung_up = True
        self._news.set()

    def send(self, message: Message) -> None:
        assert self.pump is not None
        self.pump.write(commands.encode(message))

    async def request(self, message: Message) -> Any:
        """Send a command with a fresh request id and return the answer to it."""
        self._requests += 1
        message.request_id = self._requests  # type: ignore[attr-defined]
        self.send(message)
        return await self.take(lambda c: getattr(c, "request_id", None) == self._requests)

    async def take(self, wanted: Callable[[Any], bool]) -> Any:
        """Return the first command that `wanted` accepts; wait for it if none is in the inbox."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for at, command in enumerate(self.inbox):
                    if wanted(command):
                        return self.inbox.pop(at)
                if self.hung_up:
                    raise AssertionError("the broker hung up")
                self._news.clear()
                await self._news.wait()

    async def expect(self, kind: type[T]) -> T:
        found = await self.take(lambda c: isinstance(c, kind))
        assert isinstance(found, kind)
        return found

    def has(self, kind: type[object]) -> list[Any]:
        """Return the commands of this kind in the inbox, and leave them there."""
        return [command for command in self.inbox if isinstance(command, kind)]

    # Producing.

    async def producer(self, topic: str = TOPIC, producer_id: int = 1, **options: Any) -> Any:
        return await self.request(
            pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=0, **options)
        )

    def publish(
        self,
        value: bytes,
        sequence_id: int,
        *,
        producer_id: int = 1,
        key: str | None = None,
        entry: bytes | None = None,
        messages: int = 1,
        **options: Any,
    ) -> None:
        if entry is None:
            entry = single(value, sequence_id, key=key, **options)
        assert self.pump is not None
        self.pump.write_many(encode_send(producer_id, sequence_id, messages, 0, entry))

    async def receipt(self) -> SendReceipt:
        return await self.expect(SendReceipt)

    async def publish_all(self, values: list[bytes], *, first: int = 0, **options: Any) -> list[SendReceipt]:
        for number, value in enumerate(values, first):
            self.publish(value, number, **options)
        return [await self.receipt() for _ in values]

    # Consuming.

    async def subscribe(
        self,
        topic: str = TOPIC,
        subscription: str = "sub",
        kind: int = pb.CommandSubscribe.Exclusive,
        *,
        consumer_id: int = 1,
        permits: int = 1000,
        earliest: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        position = pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest
        answer = await self.request(
            pb.CommandSubscribe(
                topic=topic,
                subscription=subscription,
                subType=pb.CommandSubscribe.SubType.ValueType(kind),
                consumer_id=consumer_id,
                consumer_name=name or f"c{consumer_id}",
                request_id=0,
                initialPosition=position,
                **options,
            )
        )
        if permits and isinstance(answer, pb.CommandSuccess):
            self.flow(permits, consumer_id)
        return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.send(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    async def deliveries(self, count: int, consumer_id: int | None = None) -> list[Delivery]:
        return [
            await self.take(lambda c: isinstance(c, Delivery) and consumer_id in (None, c.consumer_id))
            for _ in range(count)
        ]

    def acknowledge(self, *deliveries: Delivery, consumer_id: int = 1, cumulative: bool = False) -> None:
        self.send(ack(deliveries, consumer_id, cumulative=cumulative))

    async def acknowledge_durably(
        self, *deliveries: Delivery, consumer_id: int = 1, cumulative: bool = False
    ) -> pb.CommandAckResponse:
        answer = await self.request(ack(deliveries, consumer_id, cumulative=cumulative))
        assert isinstance(answer, pb.CommandAckResponse)
        return answer

    def close(self) -> None:
        assert self.pump is not None
        self.pump.abort()


def ack(deliveries: tuple[Delivery, ...], consumer_id: int, *, cumulative: bool = False) -> pb.CommandAck:
    return pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=d.ledger, entryId=d.entry) for d in deliveries],
    )


def single(
    value: bytes, sequence_id: int, *, key: str | None = None, name: str = "p", **options: Any
) -> bytes:
    return singles.build_single(value, key, sequence_id, name, publish_time_ms=1_700_000_000_000, **options)


def batch(values: list[bytes], first_sequence_id: int = 0, *, key: str | None = None) -> bytes:
    made = batches.MessageBatch()
    for number, value in enumerate(values, first_sequence_id):
        made.add(value, key, number)
    return made.build("p", 1_700_000_000_000)


def value_of(delivery: Delivery) -> bytes:
    value = decode_columns(delivery.data, 2**20).values[0]
    assert value is not None
    return value


def values_of(deliveries: list[Delivery]) -> list[bytes]:
    return [value_of(delivery) for delivery in deliveries]


async def look_up(
    client: WireClient, topic: str = SCALABLE_TOPIC, session: int = 1, **options: bool
) -> pb.CommandScalableTopicUpdate:
    client.send(pb.CommandScalableTopicLookup(session_id=session, topic=topic, **options))
    return await client.expect(pb.CommandScalableTopicUpdate)


async def register_consumer(
    client: WireClient, name: str, consumer_id: int = 1, *, subscription: str = "stream", **options: Any
) -> Any:
    """Register a stream consumer of the scalable topic; return the answer of the broker."""
    return await client.request(
        pb.CommandScalableTopicSubscribe(
            request_id=0,
            topic=SCALABLE_TOPIC,
            subscription=subscription,
            consumer_name=name,
            consumer_id=consumer_id,
            consumer_type=pb.STREAM,
            initial_position=pb.CommandSubscribe.Earliest,
            **options,
        )
    )


def error_of(answer: Any) -> int:
    """Return the code of an ERROR command."""
    assert isinstance(answer, pb.CommandError), answer
    return answer.error


async def settle() -> None:
    """Wait until the work that is under way is done."""
    await asyncio.sleep(1.0)
