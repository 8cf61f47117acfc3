"""The brokers that hold the logs and topics of an exactly-once sink: the port, and brokers of ours.

Our brokers number messages, and they tell and judge what is stored under a producer's name, also through
splits and merges. `pulsar_sink_host` has the same for Apache Pulsar. This module must not know Spark.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from anabranch.client.bulk import BulkClient
from anabranch.client.consume.segment_reader import RawEntry
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.produce.entry_sender import EntrySender
from anabranch.errors import UnsupportedFeatureError
from anabranch.spark.decide.republishing import BrokerJudges, RowJudge
from anabranch.spark.decide.sink_records import Pending, Pin, SinkState
from anabranch.spark.live import Session

RECENT_RECORDS = 64
"""Records read at first; usually a done record is among them, and older records are not needed."""


class SinkLogExtent(NamedTuple):
    """The positions of a log."""

    first: int
    """Reading from here on finds all entries that are stored; 0 if none was ever removed."""
    recent: int
    """Not many entries lie between this position and the end."""
    next: int


class SinkLogReader(Protocol):
    """Reads a part of a log."""

    async def read(self) -> list[RawEntry]:
        """Return the next entries, with positions as indexes; none at the end."""

    async def close(self) -> None: ...


class OpenSegments(Protocol):
    """Registers the producer of a sink with segments, for one batch."""

    async def open(self, topic: str, layout: TopicLayout, id_: int, sender: EntrySender) -> RowJudge:
        """Register with an active segment of a topic, and find out which rows of the batch are stored."""


class SinkHost(Protocol):
    """The brokers of one cluster."""

    on_pulsar: bool

    async def extent(self, log: str) -> SinkLogExtent:
        """Return where a log begins and ends; raises TopicNotFoundError."""

    def read(self, log: str, start: int, stop: int) -> SinkLogReader:
        """Return a reader of a log from one position up to another."""

    async def may_lack(self, log: str, position: int) -> bool:
        """Whether entries of a log from this position on may be removed already."""

    async def marked(self, pin: Pin, topics: Collection[str], state: SinkState) -> Pin:
        """Return the pin of a batch with rows for these topics, as it is to be stored now."""

    def check(self, layout: TopicLayout) -> None:
        """Raise UnsupportedFeatureError for a topic to which the sink cannot write."""

    def segments(self, pending: Pending, name: str) -> OpenSegments:
        """Return the way to the segments, for all attempts to publish a batch as the producer `name`."""


class NumberingSinkHost:
    """Brokers of ours."""

    on_pulsar = False

    def __init__(self, session: Session) -> None:
        self._client: BulkClient = session.bulk()
        self._tails = session.tails

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


async def host_of(session: Session) -> SinkHost:
    """Return the brokers of a session; raises UnsupportedFeatureError for brokers of others alone."""
    if await session.client.numbers_messages():
        return NumberingSinkHost(session)
    if not await session.client.has_control_plane():
        raise UnsupportedFeatureError(
            "delivery=exactly-once needs an Anabranch broker, or control processes over Apache Pulsar; set "
            "delivery=at-least-once for brokers of Apache Pulsar alone"
        )
    # Imported late: jobs on our brokers do not need it.
    from anabranch.spark.pulsar_sink_host import PulsarSinkHost

    return PulsarSinkHost(session)
