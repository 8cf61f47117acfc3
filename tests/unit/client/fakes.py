"""Connections, a pool and a topic's producer that a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from google.protobuf.message import Message as ProtoMessage

from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.decide.producing.batcher import SegmentBatcher
from anabranch.client.decide.producing.credits import LinkCredit
from anabranch.client.decide.producing.outgoing import Outgoing
from anabranch.client.net.connection import address_of
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.trouble import RoleTrouble
from anabranch.client.options import Batching, PublishOptions
from anabranch.client.produce.encrypting import EntryEncryption
from anabranch.client.produce.memory import Memory
from anabranch.client.produce.parts import FailedBatches, ProducerParts
from anabranch.client.produce.preparing import Preparing
from anabranch.client.produce.segment_producer import SegmentProducer
from anabranch.client.schema import Schema
from anabranch.errors import NotConnectedError
from anabranch.model.layout import Segment
from anabranch.model.ranges import FULL
from anabranch.protocol.commands import NO_ID, SendReceipt
from anabranch.protocol.compression import Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.pb import pulsar_pb2 as pb


def success(last_sequence_id: int = -1) -> pb.CommandProducerSuccess:
    """A broker's answer to a registration."""
    return pb.CommandProducerSuccess(
        request_id=1, producer_name="me", last_sequence_id=last_sequence_id, schema_version=b""
    )


async def settle_down() -> None:
    """Let tasks run until they wait for longer than a moment."""
    await asyncio.sleep(0.01)


class FakePump:
    """Keeps written entries; full after `room` writes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.room = 10**9

    @property
    def writable(self) -> bool:
        return len(self.written) < self.room

    def write_many(self, buffers: list[bytes]) -> None:
        self.written.append(buffers[1])

    def flush(self) -> None:
        """Do nothing: entries are written at once."""


class FakeConnection:
    """Answers requests as the test's function says."""

    peer = "fake"

    def __init__(self, answer: Callable[[Any], Any], address: tuple[str, int] = ("broker", 6650)) -> None:
        self.address = address
        self.pump = FakePump()
        self.producers: dict[int, Any] = {}
        self.consumers: dict[int, Any] = {}
        self.on_writable: dict[Callable[[], None], None] = {}
        self.credit = LinkCredit()
        self.machine = SimpleNamespace(max_message_bytes=5 * 2**20)
        self.is_ours = True
        self.open = True
        self.sent: list[ProtoMessage] = []
        self._answer = answer

    def send(self, message: ProtoMessage) -> None:
        self.sent.append(message)

    def post(self, message: ProtoMessage) -> asyncio.Future[Any]:
        """Send a command whose answer the test does not need."""
        self.sent.append(message)
        return asyncio.get_running_loop().create_future()

    async def request(self, message: Any, answer: type, timeout_s: float) -> Any:
        self.sent.append(message)
        reply = self._answer(message)
        if isinstance(reply, asyncio.Future):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        return reply

    def sequences(self) -> list[list[int]]:
        """Sequence ids of the messages in each entry that was written."""
        return [decode_columns(entry, 2**20).sequence_ids for entry in self.pump.written]

    def lose(self) -> None:
        self.open = False
        ends = [*self.producers.values(), *self.consumers.values()]
        self.producers.clear()
        self.consumers.clear()
        for end in ends:
            end.connection_lost()

    def receipt(self, sequence_id: int, *, ledger: int = 1, entry: int = 0) -> None:
        (producer_id,) = self.producers
        receipt = SendReceipt(producer_id, sequence_id, sequence_id, ledger, entry)
        self.producers[producer_id].receipt(receipt)

    def duplicate(self, sequence_id: int) -> None:
        self.receipt(sequence_id, ledger=NO_ID, entry=NO_ID)


class FakePool:
    """Hands out connections from a list, then refuses."""

    retry: Any = ConnectionPool.retry
    hosts = (("broker", 6650),)
    uses_tls = False

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.rng = Random(1)
        self.operation_timeout_s = 30.0
        self.next_id: Callable[[], int] = count(1).__next__
        self.connections: list[FakeConnection] = []
        self.answer = answer
        self.refuse = False
        self.ends = is_refused_role
        self.asked: list[str | None] = []
        """The URLs that were given; None for a look-up."""

    async def connection_for(self, topic: str, url: str | None = None) -> FakeConnection:
        await asyncio.sleep(0)
        if self.refuse:
            raise NotConnectedError("nobody there")
        self.asked.append(url)
        address = address_of(url or "pulsar://broker:6650")
        newest = self.connections[-1] if self.connections else None
        if newest is None or not newest.open or newest.address != address:
            newest = FakeConnection(lambda message: self.answer(message), address)
            self.connections.append(newest)
        return newest


class FakeRoutes:
    """Counts how often a segment was settled."""

    def __init__(self) -> None:
        self.transfers = 0

    def settled(self) -> None:
        self.transfers += 1

    def batch_opened(self, now: float) -> None:
        """Messages of a test have no send timeout."""

    def batches_closed(self, batcher: SegmentBatcher) -> None:
        """A test has one segment."""

    def failed(self, producer: SegmentProducer) -> None:
        """A test keeps its segments."""


class FakeFailures(FailedBatches):
    """Keeps the failed batches in the sight of a test."""

    def __init__(self) -> None:
        super().__init__("topic")
        self.batches: list[Outgoing] = []

    def add(self, batch: Outgoing) -> None:
        self.batches.append(batch)


class FakeHome:
    """The producer of a topic, as far as a segment's producer can tell."""

    def __init__(self, pool: FakePool, **limits: Any) -> None:
        self.pool = pool
        self.routes = FakeRoutes()
        self.sequence = -1
        clock: Any = SimpleNamespace(wall_ms=lambda: 1)
        self.parts = ProducerParts(
            name="me",
            options=PublishOptions(batching=Batching(**{"max_messages": 1, **limits})),
            pool=cast(Any, pool),
            memory=Memory(10**9),
            clock=clock,
            schema=Preparing(Schema.bytes(), clock).schema,
            role=RoleTrouble(lambda: "topic", is_refused_role),
            failures=FakeFailures(),
            compression=Compression.NONE,
            loop=asyncio.get_running_loop(),
        )
        self.name, self.loop, self.tasks = self.parts.name, self.parts.loop, self.parts.tasks
        self.memory, self.credit_waits = self.parts.memory, self.parts.credit_waits

    @property
    def failures(self) -> list[Outgoing]:
        return cast(FakeFailures, self.parts.failures).batches

    def use(
        self,
        *,
        options: PublishOptions | None = None,
        encryption: EntryEncryption | None = None,
        role: RoleTrouble | None = None,
    ) -> None:
        """Have these from now on, in place of the usual ones."""
        self.parts.options = options or self.parts.options
        self.parts.encryption = encryption or self.parts.encryption
        self.parts.role = role or self.parts.role

    def segment(self, url: str | None = None) -> SegmentProducer:
        return SegmentProducer(self.parts, self.routes, Segment(0, FULL), "segment", url)

    def add(self, segment: SegmentProducer, count: int = 1) -> list[Outgoing]:
        """Add messages; with the default limit each is an entry."""
        added = []
        for _ in range(count):
            self.sequence += 1
            bucket = segment.sender.batcher.buckets[0]
            batch = bucket.batch or segment.sender.begin(bucket)
            added.append(batch)
            if bucket.add(batch, (b"v", "k", self.sequence, 0), 10):
                segment.sender.close_batches()
        return added
