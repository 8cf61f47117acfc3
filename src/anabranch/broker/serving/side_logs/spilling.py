"""Spills the lanes of one subscription: copies their entries to a side log, so that the log can be trimmed.

A slice of entries is copied, synced, and then acknowledged in the log; a crash after any of these steps loses
and reorders nothing (`spilling_cursor.py`). A side log without pending entries is deleted. This module must
not know consumers, nor how entries are delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from anabranch.broker.dispatch.spilled import Retained, spill_is_done, spill_is_due
from anabranch.broker.serving.context import SubscriptionContext
from anabranch.broker.serving.side_logs.side_log import CopyBatch, SideLog
from anabranch.broker.serving.side_logs.spilling_cursor import SpillingCursor
from anabranch.errors import AlreadyClosedError, AnabranchError, TopicNotFoundError, in_words
from anabranch.ledger.storage import Entry
from anabranch.model.names import TopicName
from anabranch.model.side_logs import LOG, SUBSCRIPTION, side_log_name

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Time between a change and a look at the bytes that lanes keep."""

RETRY_S = 10.0
"""Time after which a spill that failed is tried again."""

SLICE_ENTRIES = 250
SLICE_BYTES = 2**20
"""Entries that are read and copied in one turn of the event loop."""


class Spilling:
    """The side logs of one subscription."""

    def __init__(self, cursor: SpillingCursor, context: SubscriptionContext) -> None:
        self._read_up_to = 0
        self._cursor = cursor
        self._log = context.log
        self._sides = context.sides
        self._use = context.use
        self._broker = context.broker
        self._limit_bytes = context.broker.limits.spill_bytes
        self._timer: asyncio.TimerHandle | None = None
        self._current: SideLog | None = None
        self._failed_sides: list[SideLog] = []
        """Side logs with copies of entries that are pending in the log, because a spill failed."""
        self._garbage: list[str] = []
        self._spilling = self._deleting = False
        self.spilled_entries = self.spilled_bytes = 0
        """Copies since the subscription is loaded; the numbers only grow."""
        self.trouble: str | None = None
        """Why lanes cannot be spilled now; None while they can."""
        cursor.dropped = self._dropped
        cursor.filled()

    @property
    def working(self) -> bool:
        return self._spilling or self._deleting

    @property
    def size_bytes(self) -> int:
        """Bytes of the side logs."""
        return sum(side.log.extent.size_bytes for side in self._cursor.sides)

    def look_soon(self, read_up_to: int, delay_s: float = LOOK_S) -> None:
        """Spill soon if lanes keep too many bytes of the log; entries below `read_up_to` were read."""
        self._read_up_to = read_up_to
        if self._timer is None and self._limit_bytes is not None and not self._spilling:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        assert self._limit_bytes is not None
        if self._deleting:
            # After a seek back, a new side log may have the name of one that is being deleted.
            self.look_soon(self._read_up_to)
        elif spill_is_due(self._retained(), self._limit_bytes):
            self._spilling = True
            self._broker.spawn(self._spill())

    def _retained(self, copied: int = 0) -> Retained:
        """Measure the entries from the first pending one and from `copied` on that no other cursor keeps."""
        own, extent = self._cursor.main, self._log.extent
        others = (cursor.acks.mark for cursor in self._log.cursors.values() if cursor is not own)
        end = min([self._read_up_to, *others])
        first = max(own.acks.mark, extent.first_ordinal, copied)
        if end <= first:
            return Retained(0, 0, 0)
        pending = own.acks.pending_count(end) - own.acks.pending_count(first)
        return Retained(extent.bytes_between(first, end), end - first, pending)

    async def _spill(self) -> None:
        moves = self._cursor.moves
        for side in self._failed_sides:
            self._cursor.void_copies(side)
        self._failed_sides.clear()
        try:
            with self._use.call():
                while moves == self._cursor.moves and await self._spill_batch(moves):
                    pass
                await self._cursor.flush()
            await self._broker.failpoints.reach("spill.acknowledged")
            self.trouble = None
        except (AlreadyClosedError, TopicNotFoundError):
            return
        except (AnabranchError, OSError) as error:
            self._failed(error)
        finally:
            self._spilling = False
            if moves == self._cursor.moves:
                self._cursor.filled()
        self.look_soon(self._read_up_to, LOOK_S if self.trouble is None else RETRY_S)

    def _failed(self, error: Exception) -> None:
        # The places of copies that were not stored are not used again, so the side log takes no more.
        if self._current is not None:
            self._failed_sides.append(self._current)
            self._current = None
        trouble = f"lanes cannot be spilled and are tried again: {in_words(error.__cause__ or error)}"
        if trouble != self.trouble:
            _log.warning("%s: subscription %s: %s", self._log.name, self._cursor.name, trouble)
        self.trouble = trouble

    async def _spill_batch(self, moves: int) -> bool:
        """Copy, sync and acknowledge some entries; False if there was none, or the cursor was moved."""
        cursor, reach = self._cursor, self._broker.failpoints.reach
        first = max(cursor.main.acks.mark, self._log.extent.first_ordinal)
        side: SideLog | None = None
        batch = CopyBatch(self._broker.clock.wall_ms())
        while not batch.full and not self._is_done(first):
            entries = await self._oldest(first)
            if entries and side is None and moves == cursor.moves:
                side = await self._side_for(entries[0], moves)
            if side is None or not entries or moves != cursor.moves:
                break
            batch.add(side, entries)
            first = entries[-1].ordinal + 1
            # Deliveries of other slots go on between two slices.
            await asyncio.sleep(0)
        await reach("spill.copied")
        copies = await batch.durable()
        await reach("spill.synced")
        if side is None or moves != cursor.moves:
            return False
        # The acknowledgements are durable with the next batch, or with the end of the spill.
        cursor.take_copies(side, copies)
        self.spilled_entries += len(copies)
        self.spilled_bytes += batch.size_bytes
        return True

    def _is_done(self, first: int) -> bool:
        assert self._limit_bytes is not None
        return spill_is_done(self._retained(first), self._limit_bytes)

    async def _oldest(self, first: int) -> Sequence[Entry]:
        """Return the first pending entries of the log from `first` on."""
        pending = self._cursor.main.acks.pending_from(first, self._read_up_to, SLICE_ENTRIES)
        if not pending:
            return ()
        cached = self._log.read_each_cached(pending, SLICE_BYTES)
        return await self._log.read_each(pending, SLICE_BYTES) if cached is None else cached

    async def _side_for(self, first: Entry, moves: int) -> SideLog | None:
        """Return the side log that takes copies now; None if the cursor was moved before it was created."""
        cursor = self._cursor
        if self._current is None or self._current not in cursor.sides:
            name = side_log_name(TopicName.parse(self._log.name), cursor.name, first.ordinal)
            # Garbage of an earlier time may have the same name.
            await self._sides.delete(name)
            if moves != cursor.moves:
                return None
            cursor.expect_side(name, first.ordinal)
            log = await self._sides.create(name)
            if moves != cursor.moves:
                self._garbage.append(name)
                self._delete_garbage()
                return None
            origin = {LOG: self._log.name, SUBSCRIPTION: cursor.name}
            self._current = SideLog(log, first.ordinal, origin)
        cursor.fill(self._current)
        return self._current

    def _dropped(self, sides: Sequence[SideLog]) -> None:
        self._garbage += [side.log.name for side in sides]
        self._delete_garbage()

    def _delete_garbage(self) -> None:
        if not self._deleting:
            self._deleting = True
            self._broker.spawn(self._delete_all())

    async def _delete_all(self) -> None:
        """Delete the side logs that the note no longer names; a failed deletion is left to the trimming."""
        try:
            with self._use.call():
                await self._cursor.flush()
                await self._broker.failpoints.reach("spill.drained")
                while self._garbage:
                    await self._sides.delete(self._garbage.pop())
                    await self._broker.failpoints.reach("spill.deleted")
        except AlreadyClosedError:
            # The next owner of the store deletes it.
            return
        except (AnabranchError, OSError) as error:
            _log.warning("%s: a side log is not deleted yet: %s", self._log.name, in_words(error))
        finally:
            self._deleting = False

    async def delete(self) -> None:
        """Delete all side logs, because the subscription is deleted."""
        self.close()
        # A spill that is under way ends with its slice.
        self._cursor.moves += 1
        names = [*self._garbage, *(side.log.name for side in self._cursor.sides)]
        self._garbage.clear()
        for name in names:
            await self._sides.delete(name)

    def close(self) -> None:
        """Look no more; drop copies from memory, because no client uses the log."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # The cursor and this object are freed with their last reference.
        self._cursor.dropped = _keep
        for side in self._cursor.sides:
            side.log.release()


def _keep(sides: Sequence[SideLog]) -> None:
    """The side logs of a log without clients stay until it is used again."""
