"""Raw access to segments for bulk readers such as Spark: whole entries from a message index on.

The broker counts messages from 0 without gaps inside a segment. Entries stay encoded, because the bulk reader
knows which columns it needs. Only Anabranch's brokers support this.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.client.bulk.raw_subscription import EntryReader
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    RemoteProtocolError,
    TopicNotFoundError,
    UnsupportedFeatureError,
)
from anabranch.protocol.commands import Delivery
from anabranch.protocol.entry.claims import ENTRY_MESSAGES_MAX, permits_for
from anabranch.protocol.entry.outer import read_outer
from anabranch.protocol.frames import metadata_span

UNNUMBERED = "the broker does not number messages; bulk reading needs an Anabranch broker"

INDEX_MAX = 2**62
"""No broker has numbered so many messages."""

PERMITS = 20_000
"""Messages that the broker may send before the reader asks for more."""


class RawEntry(NamedTuple):
    first_index: int
    message_count: int
    ledger: int
    entry: int
    timestamp_ms: int
    """Time when the broker stored the entry."""
    data: bytes


class SegmentReader(EntryReader[RawEntry]):
    """Reads the entries of one segment that hold the messages `start` up to but not including `stop`.

    `read` returns no entries at the end. The first and last entry may hold messages outside the range, which
    the caller cuts off. After a lost connection the reader goes on with the next entry.
    """

    def __init__(
        self, pool: ConnectionPool, topic: str, start: int, stop: int, log_id: int | None = None
    ) -> None:
        """With `log_id`, `read` raises TopicNotFoundError for another log of the same name."""
        super().__init__(pool, topic)
        self._wanted_log = log_id
        self._next = start
        self._stop = stop
        self._received = start
        self._next_place = (-1, -1)
        """The place of the entry that follows the last one received."""
        self._stop_passed = False
        """Whether an entry behind the stop arrived."""
        self._broken: Exception | None = None

    async def _wait_for_entries(self, deadline: Deadline) -> None:
        while not self._entries:
            if self._closed:
                raise AlreadyClosedError("the reader is closed; open another one")
            if self._next >= self._stop or self._stop_passed:
                self.subscription.leave()
                return
            if self._broken is not None:
                raise self._broken
            if self.subscription.connection is None:
                what = f"reading {self._topic}"
                await self._pool.retry(self._attach, what, within_s=deadline.left_s)
            self._arrived.clear()
            if not self._entries and self.subscription.connection is not None:
                await self._arrived.wait()

    def _take_entries(self) -> list[RawEntry]:
        taken = list(self._entries)
        if not taken:
            return taken
        self._entries.clear()
        last = taken[-1]
        self._next = last.first_index + last.message_count
        if self._next < self._stop:
            self._renew(sum(permits_for(entry.message_count, entry.data) for entry in taken))
        return taken

    async def _attach(self) -> None:
        self._received = self._next
        self._next_place = (-1, -1)
        self._entries.clear()
        connection = await self.subscription.subscribe(self._next, end=self)
        if self._wanted_log is not None and self.subscription.log_id not in (None, self._wanted_log):
            self.subscription.leave()
            raise TopicNotFoundError(f"{self._topic} was deleted and created again")
        # The first entry may begin before the start and use permits that later messages need, so a small
        # grant must be renewed as well.
        self._grant(connection, min(PERMITS, max(self._stop - self._next, 1)))

    def delivered(self, delivery: Delivery) -> None:
        """Keep an entry, unless it lies behind the stop or was received before."""
        ledger, number, index = delivery.ledger, delivery.entry, delivery.index
        if index is None or index > INDEX_MAX:
            self._broken = UnsupportedFeatureError(UNNUMBERED)
            self._arrived.set()
            return
        if len(self._entries) > 2 * PERMITS:
            raise RemoteProtocolError(f"the broker sent more of {self._topic} than it was asked for")
        if index < self._received:
            return
        first = self._received
        if (ledger, number) != self._next_place:
            # It is the first entry, or entries before it were removed: only the entry says where it begins.
            by_hashes = self.subscription.bucket_hashes is not None
            first = max(index - _claimed_messages(delivery.data, by_hashes) + 1, 0)
        if first >= self._stop:
            # The store may have lost messages before the stop; none is left that could still arrive.
            self._stop_passed = True
            self._arrived.set()
            return
        self._received, self._next_place = index + 1, (ledger, number + 1)
        stored_ms = delivery.broker_timestamp or 0
        self._entries.append(RawEntry(first, index - first + 1, ledger, number, stored_ms, delivery.data))
        self._arrived.set()


def _claimed_messages(entry: bytes, by_hashes: bool) -> int:
    """The messages that an entry claims; 1 if the claim cannot be true or cannot be read.

    A broker that leaves payloads out, `by_hashes`, leaves out only those of entries that claim the truth.
    """
    try:
        claimed = read_outer(entry).num_messages
        if by_hashes and metadata_span(entry)[1] == len(entry):
            return min(max(claimed, 1), ENTRY_MESSAGES_MAX)
    except AnabranchError:
        return 1
    return permits_for(claimed, entry) if claimed > 0 else 1
