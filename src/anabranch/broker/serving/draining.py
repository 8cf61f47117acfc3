"""Which buckets of a sealed log have nothing left for a subscription, while others still have.

Looked at once the reader has reached the end: what is pending then is read once more, for the bucket of each
entry, and from there on only acknowledgements change it. Must not know consumers, nor how entries go out.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable

from google.protobuf.message import DecodeError

from anabranch.broker.serving.log_reader import FETCH_BYTES_MAX, Spawn
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    CorruptDataError,
    RemoteProtocolError,
    ServiceNotReadyError,
)
from anabranch.ledger.storage import Cursor, SegmentLog
from anabranch.model.acks import AckSet
from anabranch.model.drains import Ranges, union
from anabranch.model.hashing import bucket_index, bucket_ranges
from anabranch.protocol.commands import read_outer
from anabranch.protocol.frames import metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb

_log = logging.getLogger(__name__)

PENDING_MAX = 100_000
"""Entries whose buckets are kept; with more than that pending only the whole log counts as drained."""

READ_ENTRIES = 500

LINGER_S = 0.25
"""How long drained buckets wait for the rest, which mostly follows at once; then nobody reads by buckets."""


class PendingBuckets:
    """Pending entries of a log that gets no more of them, by bucket."""

    def __init__(self, splits: tuple[int, ...]) -> None:
        self._splits = splits
        self._ranges = bucket_ranges(splits)
        self._pending = {at: array("Q") for at in range(len(self._ranges))}
        self._heads = [0] * len(self._ranges)

    def add(self, ordinal: int, slots: tuple[int, int] | None) -> None:
        """Take the next pending entry, with its lowest and highest slot; None counts for all buckets."""
        low, high = (0, len(self._ranges) - 1) if slots is None else (self._bucket(slot) for slot in slots)
        for at in range(low, high + 1):
            self._pending[at].append(ordinal)

    def _bucket(self, slot: int) -> int:
        return bucket_index(self._splits, slot)

    def drained(self, acks: AckSet) -> Ranges:
        """The slots of the buckets without an entry that is not acknowledged; they only become more."""
        for at in list(self._pending):
            ordinals, head = self._pending[at], self._heads[at]
            while head < len(ordinals) and ordinals[head] in acks:
                head += 1
            self._heads[at] = head
            if head == len(ordinals):
                del self._pending[at]
        return union(part for at, part in enumerate(self._ranges) if at not in self._pending)


class BucketDrain:
    """Tells as buckets of one sealed log are drained on one subscription."""

    def __init__(
        self,
        log: SegmentLog,
        cursor: Cursor,
        splits: Callable[[], tuple[int, ...]],
        spawn: Spawn,
        tell: Callable[[Ranges], None],
    ) -> None:
        self._log = log
        self._cursor = cursor
        self._splits = splits
        self._spawn = spawn
        self._tell = tell
        self._pending: PendingBuckets | None = None
        self._told: Ranges = ()
        self._busy = False
        self._later: bool | None = None
        """Whether there is more to look at when it is not busy any more, and then what."""
        self._damaged = False
        self._moves = 0

    def look(self, *, at_end: bool) -> None:
        """Something was acknowledged, or the reader went on; `at_end` says whether it read the whole log."""
        if self._busy:
            self._later = at_end or self._later is True
            return
        if self._damaged or not self._splits():
            return
        if self._pending is not None:
            self._busy = True
            self._spawn(self._announce())
        elif at_end and self._cursor.acks.pending_count(self._log.extent.next_ordinal) <= PENDING_MAX:
            self._busy = True
            self._spawn(self._find_pending())

    def forget(self) -> None:
        """The cursor was moved: what was acknowledged may be pending again."""
        self._moves += 1
        self._pending = None
        self._damaged = False
        self._later = None
        self._told = ()

    async def drained(self) -> Ranges:
        """The slots that are drained, as far as is known; acknowledged durably when this returns."""
        if self._pending is None:
            return ()
        moves, found = self._moves, self._pending.drained(self._cursor.acks)
        if found:
            # Nobody may build on an acknowledgement that a crash could take back.
            await self._cursor.flush()
        return found if moves == self._moves else ()

    async def _announce(self) -> None:
        try:
            # Buckets are counted once in a while, not with every acknowledgement.
            await asyncio.sleep(LINGER_S)
            if self._pending is not None and self._pending.drained(self._cursor.acks) != self._told:
                await asyncio.sleep(LINGER_S)
                found = await self.drained()
                if found:
                    self._told = found
                    self._tell(found)
        except AlreadyClosedError:
            # The store went to another broker, which finds out by itself.
            return
        except AnabranchError as error:
            _log.error(
                "%s: drained buckets of %s are not durable: %s", self._log.name, self._cursor.name, error
            )
        finally:
            self._busy = False
        self._look_again()

    def _look_again(self) -> None:
        later, self._later = self._later, None
        if later is not None:
            self.look(at_end=later)

    async def _find_pending(self) -> None:
        moves, found = self._moves, PendingBuckets(self._splits())
        try:
            await self._read_pending(found)
        except AlreadyClosedError:
            return
        except AnabranchError as error:
            # The next event on the subscription tries again, unless that is in vain: then the log is drained
            # as a whole or not at all.
            _log.error("%s: pending entries cannot be read: %s", self._log.name, error)
            self._damaged = isinstance(error, CorruptDataError)
            return
        finally:
            self._busy = False
        if moves == self._moves:
            self._pending = found
            self._later = True
        self._look_again()

    async def _read_pending(self, found: PendingBuckets) -> None:
        acks, end = self._cursor.acks, self._log.extent.next_ordinal
        ordinal = acks.next_pending(max(acks.mark, self._log.extent.first_ordinal))
        while ordinal < end:
            entries = self._log.read_cached(ordinal, READ_ENTRIES, FETCH_BYTES_MAX)
            if entries is None:
                entries = await self._log.read(ordinal, READ_ENTRIES, FETCH_BYTES_MAX)
            if not entries:
                raise ServiceNotReadyError(f"{self._log.name} is being deleted")
            for entry in entries:
                if entry.ordinal not in acks:
                    found.add(entry.ordinal, slots_of(entry.data))
            await asyncio.sleep(0)
            ordinal = acks.next_pending(entries[-1].ordinal + 1)


def slots_of(entry: bytes) -> tuple[int, int] | None:
    """The lowest and highest bucket hash among an entry's keys; None for a batch that does not say."""
    try:
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
        if metadata.HasField("entry_hash_min") or not metadata.HasField("num_messages_in_batch"):
            outer = read_outer(entry)
            return outer.bucket_hash, outer.bucket_hash_max
    except (RemoteProtocolError, DecodeError):
        return None
    return None
