"""The part of a client for bulk readers: entries of single segments without a cursor, and topic lists."""

from __future__ import annotations

from anabranch.client.consume.place_reader import PERMITS, EntryPlace, PlaceReader, PlaceTails
from anabranch.client.consume.segment_reader import SegmentReader
from anabranch.client.consume.segment_tails import SegmentTails
from anabranch.client.net.client_life import ClientLife
from anabranch.client.net.topic_lists import list_classic_topics, list_scalable_topics
from anabranch.model.ranges import HashRange


class BulkReading(ClientLife):
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

    async def topics(self, namespace: str, *, classic: bool = False) -> list[str]:
        """The full names of the scalable topics, or of the classic ones, of a namespace `tenant/name`."""
        pool = self._connections()
        listing = list_classic_topics if classic else list_scalable_topics
        return await pool.retry(lambda: listing(pool, namespace), f"listing the topics of {namespace}")

    async def numbers_messages(self) -> bool:
        """Whether the brokers number messages; only Anabranch's do. Elsewhere read by places."""
        pool = self._connections()
        return (await pool.retry(pool.any_connection, "connecting")).is_ours

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
