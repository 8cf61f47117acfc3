"""Reports what a subscription drained of a sealed log: single buckets first, then the whole log.

The shell around `DrainMachine`: it reads the pending entries once for their buckets, waits, and makes
acknowledgements durable before it reports them. Must not know consumers, nor how entries are delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import TypeVar

from anabranch.broker.dispatch.drains import (
    AT_REST,
    DrainEffect,
    DrainEvent,
    DrainMachine,
    DrainState,
    PendingBuckets,
    slots_of,
)
from anabranch.broker.serving.context import LogUse, Spawn
from anabranch.broker.serving.delivery.log_reader import FETCH_BYTES_MAX, RETRIES
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    DamagedEntriesError,
    TopicNotFoundError,
    in_words,
)
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import ReadableLog
from anabranch.model.drains import ALL, Ranges

T = TypeVar("T")

_log = logging.getLogger(__name__)

READ_ENTRIES = 500

LINGER_S = 0.25
"""Delay before reporting a partial drain; the rest usually drains first and bucket sharing is not needed."""


class DrainReporter:
    """Calls `report` with the drained slots of one sealed log, as they become durable."""

    def __init__(
        self,
        log: ReadableLog,
        cursor: Cursor,
        use: LogUse,
        spawn: Spawn,
        report: Callable[[Ranges], None],
    ) -> None:
        self._log = log
        self._cursor = cursor
        self._use = use
        self._spawn = spawn
        self._report = report
        self._machine = DrainMachine()

    @property
    def done(self) -> bool:
        """Whether the log is sealed and all of it acknowledged."""
        return self._log.sealed and self._cursor.acks.mark >= self._log.extent.next_ordinal

    @property
    def working(self) -> bool:
        """Whether entries are being read for their buckets, or a report is under way."""
        return self._machine.state not in AT_REST

    def check(self, *, at_end: bool, by_buckets: bool) -> None:
        """Look at the log after an ACK or a read; `by_buckets` says whether single buckets of it matter."""
        if self.done:
            self._carry_out(self._machine.handle(DrainEvent.ALL_ACKNOWLEDGED))
        elif by_buckets and self._log.sealed and self._use.splits:
            unknown = self._machine.state is DrainState.UNKNOWN
            event = DrainEvent.END_READ if at_end and unknown else DrainEvent.ADVANCED
            self._carry_out(self._machine.handle(event))

    def cursor_moved(self) -> None:
        self._machine.cursor_moved()

    async def drained(self) -> Ranges:
        """Return the slots that are known to be drained; their acknowledgements are durable then."""
        moves = self._machine.moves
        if self.done:
            found = ALL
        elif self._machine.pending is not None:
            found = self._machine.pending.drained(self._cursor.acks)
        else:
            return ()
        if found:
            # The leader opens children by this answer, so a crash must not take an acknowledgement back.
            with self._use.call():
                await self._cursor.flush()
        return found if moves == self._machine.moves else ()

    def _carry_out(self, effect: DrainEffect | None) -> None:
        match effect:
            case DrainEffect.READ_PENDING:
                self._spawn(self._read_pending())
            case DrainEffect.REPORT_BUCKETS:
                self._spawn(self._report_buckets())
            case DrainEffect.MAKE_END_DURABLE:
                self._spawn(self._make_end_durable())
            case DrainEffect.REPORT_END:
                self._report(ALL)

    async def _read_pending(self) -> None:
        moves, found = self._machine.moves, PendingBuckets(self._use.splits)
        event = DrainEvent.PENDING_UNREADABLE
        try:
            await self._read_into(found, moves)
            event = DrainEvent.PENDING_READ
            if moves == self._machine.moves:
                self._machine.pending = found
        except (AlreadyClosedError, TopicNotFoundError):
            # The next owner of the store reads its pending entries itself.
            pass
        self._carry_out(self._machine.result(moves, event))

    async def _read_into(self, found: PendingBuckets, moves: int) -> None:
        acks, end = self._cursor.acks, self._log.extent.next_ordinal
        ordinal = acks.next_pending(max(acks.mark, self._log.extent.first_ordinal))
        while ordinal < end:
            entries = await self._until_done(partial(self._read_from, ordinal), "read", moves)
            for at, data in entries:
                if at not in acks:
                    found.add(at, None if data is None else slots_of(data))
            ordinal = entries[-1][0] + 1
            await asyncio.sleep(0)
            ordinal = acks.next_pending(ordinal)

    async def _read_from(self, ordinal: int) -> list[tuple[int, bytes | None]]:
        """Return the next entries; None for a damaged entry, which may belong to any bucket."""
        try:
            entries = self._log.read_cached(ordinal, READ_ENTRIES, FETCH_BYTES_MAX)
            if entries is None:
                entries = await self._log.read(ordinal, READ_ENTRIES, FETCH_BYTES_MAX)
        except DamagedEntriesError as error:
            return [(at, None) for at in range(error.first, error.end)]
        if not entries:
            raise TopicNotFoundError(f"{self._log.name} is being deleted")
        return [(entry.ordinal, entry.data) for entry in entries]

    async def _until_done(self, attempt: Callable[[], Awaitable[T]], what: str, moves: int) -> T:
        """Repeat an attempt that the disk prevents; TopicNotFoundError or AlreadyClosedError end it."""
        for failures in count():
            try:
                return await attempt()
            except (AlreadyClosedError, TopicNotFoundError):
                raise
            except (AnabranchError, OSError) as error:
                if failures == 0:
                    name = self._cursor.name
                    _log.warning(
                        "%s: subscription %s cannot %s, so its drains are not reported yet: %s",
                        self._log.name,
                        name,
                        what,
                        in_words(error),
                    )
            await asyncio.sleep(RETRIES.delay(failures))
            if moves != self._machine.moves:
                raise AlreadyClosedError("the cursor was moved")
        raise AssertionError("the attempts have no end")

    async def _report_buckets(self) -> None:
        machine = self._machine
        moves = machine.moves
        try:
            # Buckets are counted once in a while, not with every acknowledgement.
            await asyncio.sleep(LINGER_S)
            if machine.pending is not None and machine.pending.drained(self._cursor.acks) != machine.reported:
                await asyncio.sleep(LINGER_S)
                found = await self._until_done(self.drained, "make acknowledgements durable", moves)
                if found and not self.done and moves == machine.moves:
                    machine.reported = found
                    self._report(found)
        except (AlreadyClosedError, TopicNotFoundError):
            return
        self._carry_out(machine.result(moves, DrainEvent.BUCKETS_REPORTED))

    async def _make_end_durable(self) -> None:
        moves, event = self._machine.moves, DrainEvent.END_DURABLE
        try:
            await self._until_done(self._cursor.flush, "make the end durable", moves)
        except (AlreadyClosedError, TopicNotFoundError):
            event = DrainEvent.END_NOT_DURABLE
        self._carry_out(self._machine.result(moves, event))
