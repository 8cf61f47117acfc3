"""The methods of a client for bulk readers, and a client that has no others.

`ReadingClient` loads neither producers nor consumers, so that a worker of Spark starts sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from anabranch.client.bulk.place_reader import PERMITS, EntryPlace, PlaceReader, PlaceTails
from anabranch.client.bulk.segment_reader import SegmentReader
from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.client.net.client_life import ClientLife
from anabranch.client.net.connection_pool import PoolTimes, new_pool
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.net.topics.topic_questions import ask_layout, ask_schema, ask_topics
from anabranch.client.options import ClientArguments, Seconds, seconds
from anabranch.model.ranges import HashRange
from anabranch.protocol.connection import CONTROL_VERSION

if TYPE_CHECKING:
    from anabranch.client.net.topics.schemas import TopicSchema


class BulkReading:
    """Hands out readers of segments, which the client closes."""

    life: ClientLife

    def read_segment(
        self,
        segment_topic: str,
        start: int,
        stop: int,
        log_id: int | None = None,
        bucket_hashes: HashRange | None = None,
    ) -> SegmentReader:
        """Whole entries of one segment by message index, for bulk readers; only of this log, if given.

        Entries whose messages all have bucket hashes outside of the given ones may lack their payload.
        """
        reader = SegmentReader(self.life.connections(), segment_topic, start, stop, log_id)
        reader.subscription.bucket_hashes = bucket_hashes
        self.life.readers[reader] = None
        return reader

    def tails(self) -> SegmentTails:
        """Answers which messages segments hold now, for bulk readers that ask often."""
        tails = SegmentTails(self.life.connections())
        self.life.readers[tails] = None
        return tails

    async def numbers_messages(self) -> bool:
        """Whether the logs of the cluster number messages; those of Apache Pulsar do not: read by places."""
        pool = self.life.connections()
        connection = await pool.retry(pool.any_connection, "connecting")
        return connection.is_ours and connection.machine.server_version != CONTROL_VERSION

    async def has_control_plane(self) -> bool:
        """Return whether Anabranch control processes lead the topics that Apache Pulsar brokers hold."""
        pool = self.life.connections()
        connection = await pool.retry(pool.any_connection, "connecting")
        return connection.is_ours and connection.machine.server_version == CONTROL_VERSION

    def read_places(
        self, topic: str, start: EntryPlace | None, stop: EntryPlace | None, permits: int = PERMITS
    ) -> PlaceReader:
        """Whole entries of one topic by ledger and entry, from brokers that do not number messages."""
        reader = PlaceReader(self.life.connections(), topic, start, stop, permits)
        self.life.readers[reader] = None
        return reader

    def place_tails(self) -> PlaceTails:
        """Answers which entries topics hold now, at brokers that do not number messages."""
        tails = PlaceTails(self.life.connections())
        self.life.readers[tails] = None
        return tails


class ReadingClient(BulkReading):
    """Reads segments and answers questions about topics; takes the arguments of the other clients."""

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: Seconds = 30.0,
        connect_timeout: Seconds = 10.0,
        keep_alive_interval: Seconds = 30.0,
        **more: Unpack[ClientArguments],
    ) -> None:
        times = PoolTimes(
            connect_s=seconds("connect_timeout", connect_timeout),
            operation_s=seconds("operation_timeout", operation_timeout),
            keep_alive_s=seconds("keep_alive_interval", keep_alive_interval),
        )
        self.service_url = service_url
        self.life = ClientLife(service_url, new_pool(service_url, times, more))

    async def layout(self, topic: str, *, create: bool = False, with_pruned: bool = False) -> TopicLayout:
        """The layout of a topic now; with what is known of pruned segments."""
        return await ask_layout(self.life, topic, create=create, with_pruned=with_pruned)

    async def topic_schema(self, topic: str, *, version: bytes | int | None = None) -> TopicSchema | None:
        """A version of the topic's registered schema, the newest by default; None without such a schema."""
        return await ask_schema(self.life, topic, version)

    async def topics(self, namespace: str, *, classic: bool = False) -> list[str]:
        """The full names of the scalable topics, or of the classic ones, of a namespace."""
        return await ask_topics(self.life, namespace, classic=classic)

    async def close(self) -> None:
        """Close all readers, then the connections."""
        await self.life.close()
