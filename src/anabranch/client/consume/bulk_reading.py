"""The part of a client for bulk readers: entries of single segments without a cursor."""

from __future__ import annotations

from anabranch.client.consume.place_reader import PERMITS, EntryPlace, PlaceReader, PlaceTails
from anabranch.client.consume.segment_reader import SegmentReader
from anabranch.client.consume.segment_tails import SegmentTails
from anabranch.client.net.topic_questions import TopicQuestions
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
        reader.bucket_hashes = bucket_hashes
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
