"""The entries and the cursor of one subscription, whether or not some of its entries are spilled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.broker.serving.context import SubscriptionContext
from anabranch.broker.serving.side_logs.spilled_log import SpilledLog
from anabranch.broker.serving.side_logs.spilling import Spilling
from anabranch.broker.serving.side_logs.spilling_cursor import SpillingCursor
from anabranch.ledger.cursors import Cursor, DurableCursor
from anabranch.ledger.storage import Entry, EntryPlaces, ReadableLog


class Backing:
    """A subscription reads `log` and acknowledges in `cursor`; only a durable cursor has side logs."""

    def __init__(self, cursor: Cursor, context: SubscriptionContext) -> None:
        self.cursor = cursor
        self.log: ReadableLog = context.log
        self.places: EntryPlaces = context.log.extent
        """The entries that the present consumers can read, also those that only a compaction has."""
        self._stored = context.log.extent
        self._compacted = context.compacted
        self.is_compacted = False
        """Whether the present consumers read compacted."""
        self.kept_bits: Callable[[Entry], int | None] | None = None
        """As `ReadPath.kept_bits`, for the present consumers."""
        self._is_read = False
        """Whether a consumer came since the log was loaded, so that it is known what consumers read."""
        self._spilling: Spilling | None = None
        if isinstance(cursor, DurableCursor):
            self.cursor = spilling = SpillingCursor(cursor, context.sides.get)
            self.log = SpilledLog(context.log, spilling)
            self._spilling = Spilling(spilling, context)

    def view(self, *, compacted: bool) -> ReadableLog:
        """Return the entries for the next consumers, compacted or not."""
        self._is_read = True
        if not compacted or self._compacted is None:
            self.is_compacted, self.places, self.kept_bits = False, self._stored, None
            return self.log
        view = self._compacted()
        self.is_compacted, self.places, self.kept_bits = True, view.extent, view.kept_bits
        return view

    @property
    def working(self) -> bool:
        return self._spilling is not None and self._spilling.working

    @property
    def troubles(self) -> list[str]:
        """Why lanes cannot be spilled now, in words."""
        return [] if self._spilling is None or self._spilling.trouble is None else [self._spilling.trouble]

    @property
    def spilled_bytes(self) -> int:
        """Bytes of the side logs."""
        return 0 if self._spilling is None else self._spilling.size_bytes

    async def ordinal_at_time(self, time_ms: int) -> int:
        """Return the first entry for the present consumers that was stored at that time or later."""
        if self.is_compacted and self._compacted is not None:
            return await self._compacted().ordinal_at_time(time_ms)
        return self._stored.ordinal_at_time(time_ms)

    def pass_trimmed(self) -> Sequence[int]:
        """Count trimmed entries as acknowledged, unless they are spilled; returns them."""
        first, mark = self.places.first_ordinal, self.cursor.acks.mark
        if not self._is_read and mark < first and self._compacted is not None:
            # The consumers may read compacted when they come back.
            first = min(first, self._compacted().first_ordinal)
        # A trim keeps the last entry. A log without entries is being deleted, not drained.
        if not mark < first < self.places.next_ordinal:
            return ()
        if isinstance(self.cursor, SpillingCursor):
            return self.cursor.pass_trimmed(first)
        self.cursor.acknowledge_up_to(first)
        return range(mark, first)

    def look_soon(self, read_up_to: int) -> None:
        """Spill lanes soon if they keep too much; entries below `read_up_to` were read."""
        if self._spilling is not None:
            self._spilling.look_soon(read_up_to)

    def close(self) -> None:
        """Look no more, because no client uses the log."""
        if self._spilling is not None:
            self._spilling.close()

    async def delete(self) -> None:
        """Delete the side logs; the cursor is deleted already."""
        if self._spilling is not None:
            await self._spilling.delete()
