"""The brokers that hold the logs and topics of an exactly-once sink: the port, and its adapter for Anabranch.

Anabranch brokers number messages. They know what is stored under a producer's name, even across splits and
merges, and use it to decide about each row. `pulsar_host` is the adapter for Apache Pulsar. This module must
not know Spark.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.entry_sender import EntrySender
from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.decide.sink.records import Pending, Pin, SinkState
from anabranch.spark.decide.sink.republishing import BrokerJudges, RowJudge

RECENT_RECORDS = 64
"""Records that are read first; usually a done record is among them, and older ones are not needed."""


class SinkLogExtent(NamedTuple):
    """The extent of a log."""

    first: int
    """Reading from here finds all stored entries; 0 if none was ever removed."""
    recent: int
    """A position not many entries before the end."""
    next: int


class SinkLogReader(Protocol):
    """Reads a part of a log."""

    async def read(self) -> list[RawEntry]:
        """Return the next entries, with positions as indexes, or an empty list at the end."""

    async def close(self) -> None: ...


class OpenSegments(Protocol):
    """Registers the producer of a sink with segments, for one batch."""

    async def open(self, topic: str, layout: TopicLayout, id_: int, sender: EntrySender) -> RowJudge:
        """Register the producer at an active segment, and find out which rows of the batch are stored."""


class SinkHost(Protocol):
    """The brokers of one cluster."""

    on_pulsar: bool

    async def extent(self, log: str) -> SinkLogExtent:
        """Return where a log begins and ends; raises TopicNotFoundError."""

    def read(self, log: str, start: int, stop: int) -> SinkLogReader:
        """Return a reader of a log from one position up to another."""

    async def may_lack(self, log: str, position: int) -> bool:
        """Whether entries of a log from this position on may already have been removed."""

    async def marked(self, pin: Pin, topics: Collection[str], state: SinkState) -> Pin:
        """Return the pin of a batch with rows for these topics, in the form to be stored now."""

    def check(self, layout: TopicLayout) -> None:
        """Raise UnsupportedFeatureError for a topic to which the sink cannot write."""

    def segments(self, pending: Pending, name: str) -> OpenSegments:
        """Return what registers the producer `name` at segments, for all attempts to publish a batch."""


class AnabranchSinkHost:
    """Anabranch brokers."""

    on_pulsar = False

    def __init__(self, clients: ThreadClient) -> None:
        self._client: BulkClient = clients.bulk()
        self._tails = clients.tails

    async def extent(self, log: str) -> SinkLogExtent:
        first, next_, _, _ = await self._tails.tail(log)
        return SinkLogExtent(first, max(first, next_ - RECENT_RECORDS), next_)

    def read(self, log: str, start: int, stop: int) -> SinkLogReader:
        return self._client.read_segment(log, start, stop)

    async def may_lack(self, log: str, position: int) -> bool:
        return (await self._tails.tail(log)).first_index > position

    async def marked(self, pin: Pin, topics: Collection[str], state: SinkState) -> Pin:
        return pin

    def check(self, layout: TopicLayout) -> None:
        """Accept every topic."""

    def segments(self, pending: Pending, name: str) -> OpenSegments:
        return _JudgedSegments()


class _JudgedSegments:
    async def open(self, topic: str, layout: TopicLayout, id_: int, sender: EntrySender) -> RowJudge:
        await sender.open(layout.owners.get(id_))
        return BrokerJudges(sender.own, sender.known)
