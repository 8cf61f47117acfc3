"""The surroundings of producers: parts of the client, and the topic's producer as its segments see it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch.aio import TaskRegistry
from anabranch.client.decide.batcher import Outgoing
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Batching, PublishOptions
from anabranch.client.produce.memory import Memory
from anabranch.clock import Clock
from anabranch.protocol.compression import Compression

if TYPE_CHECKING:
    from anabranch.client.produce.segment_producer import SegmentProducer
    from anabranch.client.produce.sending import SegmentSender


@dataclass(frozen=True, slots=True)
class PublishContext:
    """The parts of a client that its producers share."""

    pool: ConnectionPool
    memory: Memory
    clock: Clock


class SegmentHome(Protocol):
    """Parts that all segments' producers of a topic share, and the reports they make."""

    loop: asyncio.AbstractEventLoop
    pool: ConnectionPool
    tasks: TaskRegistry
    clock: Clock
    memory: Memory
    name: str
    options: PublishOptions
    limits: Batching
    batched: bool
    compression: Compression

    def check_loop(self) -> None:
        """Raise when the caller runs on another event loop than the producer."""
        ...

    def batch_opened(self, now: float) -> None: ...
    def batches_closed(self, segment: SegmentSender) -> None: ...
    def segment_attached(self, connection: BrokerConnection) -> None: ...
    def segment_settled(self, segment: SegmentProducer) -> None: ...
    def segment_failed(self, segment: SegmentProducer) -> None: ...
    def entry_failed(self, batch: Outgoing) -> None: ...
