"""The methods of a client for bulk readers, and a client that has no others.

`ReadingClient` loads neither producers nor consumers, so that a worker of Spark starts sooner.
"""

from __future__ import annotations

from typing import Unpack

from anabranch.client.bulk.place_reader import PERMITS, EntryPlace, PlaceReader, PlaceTails
from anabranch.client.bulk.segment_reader import SegmentReader
from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.client.net.connection_pool import PoolTimes, new_pool
from anabranch.client.net.topics.topic_questions import TopicQuestions
from anabranch.client.options import ClientArguments, Seconds, seconds
from anabranch.model.ranges import HashRange
from anabranch.protocol.connection import CONTROL_VERSION


class BulkReading(TopicQuestions):
    """Hands out readers of segments; the client closes them."""

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
        reader = SegmentReader(self._connections(), segment_topic, start, stop, log_id)
        reader.subscription.bucket_hashes = bucket_hashes
        self._readers[reader] = None
        return reader

    def tails(self) -> SegmentTails:
        """Answers which messages segments hold now, for bulk readers that ask often."""
        tails = SegmentTails(self._connections())
        self._readers[tails] = None
        return tails

    async def numbers_messages(self) -> bool:
        """Whether the logs of the cluster number messages; those of Apache Pulsar do not: read by places."""
        pool = self._connections()
        connection = await pool.retry(pool.any_connection, "connecting")
        return connection.is_ours and connection.machine.server_version != CONTROL_VERSION

    async def has_control_plane(self) -> bool:
        """Whether control processes of ours lead the topics, and brokers of Apache Pulsar hold messages."""
        pool = self._connections()
        connection = await pool.retry(pool.any_connection, "connecting")
        return connection.is_ours and connection.machine.server_version == CONTROL_VERSION

    def read_places(
        self, topic: str, start: EntryPlace | None, stop: EntryPlace | None, permits: int = PERMITS
    ) -> PlaceReader:
        """Whole entries of one topic by ledger and entry, from brokers that do not number messages."""
        reader = PlaceReader(self._connections(), topic, start, stop, permits)
        self._readers[reader] = None
        return reader

    def place_tails(self) -> PlaceTails:
        """Answers which entries topics hold now, at brokers that do not number messages."""
        tails = PlaceTails(self._connections())
        self._readers[tails] = None
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
        super().__init__(service_url, new_pool(service_url, times, more))
