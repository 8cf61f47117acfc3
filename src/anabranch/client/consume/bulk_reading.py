"""The part of a client for bulk readers: whole entries of single segments, without a cursor."""

from __future__ import annotations

from anabranch.client.consume.segment_reader import SegmentReader, SegmentTails
from anabranch.client.net.client_life import ClientLife


class BulkReading(ClientLife):
    """Hands out readers of segments; the client closes them."""

    def read_segment(self, segment_topic: str, start: int, stop: int) -> SegmentReader:
        """Whole entries of one segment by message index, for bulk readers."""
        reader = SegmentReader(self._connections(), segment_topic, start, stop)
        self._readers[reader] = None
        return reader

    def tails(self) -> SegmentTails:
        """Answers which messages segments hold now, for bulk readers that ask often."""
        tails = SegmentTails(self._connections())
        self._readers[tails] = None
        return tails
