"""Reads the log of one subscription, and deals with reads that fail and entries that are damaged.

A read that fails is repeated after growing waits, without an event from outside. A damaged entry stops the
reader, or is reported and passed; the subscription decides. This module must not know consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.aio import Backoff
from anabranch.broker.serving.context import Spawn, SubscriptionLimits
from anabranch.errors import AlreadyClosedError, AnabranchError, DamagedEntriesError, in_words
from anabranch.ledger.storage import Entry, SegmentLog

_log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 2**20
"""Most bytes from disk that one subscription holds; a thousand slow subscriptions hold a gibibyte."""

RETRIES = Backoff(0.1, 5.0)
"""Waits between attempts to read entries that the disk could not read."""

DAMAGE_RETRIES = Backoff(5.0, 60.0)
"""Waits between attempts to read a damaged entry; a repaired file is noticed within the longest one."""


@dataclass(slots=True)
class Counters:
    """Deliveries and read faults of one subscription; the numbers only grow."""

    messages_out: int = 0
    bytes_out: int = 0
    bucket_moves: int = 0
    """How often a bucket went from one consumer to another."""
    damaged_entries: int = 0
    """Damaged entries that were passed without delivery."""
    damaged_messages: int = 0
    """Messages in those entries, as far as their number is known."""


class LogReader:
    """Entries of a log: from memory at once, or one batch from disk, and then it calls `ready`."""

    def __init__(
        self,
        log: SegmentLog,
        spawn: Spawn,
        ready: Callable[[], None],
        limits: SubscriptionLimits,
        passed: Callable[[DamagedEntriesError], Sequence[Entry] | None],
    ) -> None:
        """`passed` returns the entries to deliver instead of damaged ones, or None to stop there."""
        self._log = log
        self._spawn = spawn
        self._ready = ready
        self._passed = passed
        self._max_entries = limits.batch_entries
        self._max_bytes = min(limits.batch_bytes, FETCH_BYTES_MAX)
        self._fetched: Sequence[Entry] = ()
        self._fetching = False
        self._failures = 0
        self._stopped_at = -1
        self._retry: asyncio.TimerHandle | None = None
        self.errors = 0
        """Reads that failed and were repeated; the number only grows."""
        self.trouble: str | None = None
        """Why the entries that a consumer waits for cannot be read now; None while reading works."""

    @property
    def end(self) -> int:
        """One past the last entry that may be read."""
        return self._log.extent.next_ordinal

    def read(self, ordinal: int, max_entries: int) -> Sequence[Entry] | None:
        """Entries from `ordinal` on, none at the end, or None: ask again when `ready` is called."""
        limit = min(max_entries, self._max_entries)
        entries = self._log.read_cached(ordinal, limit, self._max_bytes)
        if entries is not None:
            self._fetched = ()
            return entries
        fetched = self._fetched
        if fetched:
            at = ordinal - fetched[0].ordinal
            if 0 <= at < len(fetched):
                return fetched[at : at + limit]
        if not self._fetching and ordinal != self._stopped_at:
            self._fetching = True
            self._spawn(self._fetch(ordinal))
        return None

    @property
    def working(self) -> bool:
        """Whether a read is under way, or will be repeated."""
        return self._fetching or self._retry is not None

    def forget(self) -> None:
        """Drop the batch from disk, because no consumer reads for now or the cursor was moved."""
        self._fetched = ()
        self._failures = 0
        self.trouble = None
        self._go_on()

    def _go_on(self) -> None:
        self._stopped_at = -1
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def close(self) -> None:
        """Forget the callbacks too, so that the subscription is freed with its last reference."""
        self.forget()
        self._ready, self._passed = _do_nothing, _stop

    async def _fetch(self, ordinal: int) -> None:
        try:
            self._fetched = await self._log.read(ordinal, self._max_entries, self._max_bytes)
        except AlreadyClosedError:
            # The next owner of the store reads for its own consumers.
            return
        except DamagedEntriesError as error:
            instead = self._passed(error)
            if instead is None:
                self._stop_at_damage(ordinal, error)
                return
            self._fetched = instead
        except (AnabranchError, OSError) as error:
            self._read_failed(ordinal, error)
            return
        finally:
            self._fetching = False
        if self.trouble is not None:
            _log.info("%s: entry %d can be read again", self._log.name, ordinal)
        self._failures = 0
        self.trouble = None
        self._go_on()
        self._ready()

    def _stop_at_damage(self, ordinal: int, error: DamagedEntriesError) -> None:
        # Passing the entry would be silent loss, so the operator decides.
        trouble = (
            f"delivery stops at {self._log.extent.position_of(error.first)}, because {error}; "
            "repair the file, or move the subscription, or pass damaged entries with damaged_entries=skip"
        )
        if trouble != self.trouble:
            _log.error("%s: %s", self._log.name, trouble)
        self._wait(ordinal, trouble, DAMAGE_RETRIES)

    def _read_failed(self, ordinal: int, error: Exception) -> None:
        self.errors += 1
        cause = error.__cause__ or error
        trouble = f"entry {ordinal} cannot be read and is tried again: {in_words(cause)}"
        if self.trouble is None:
            _log.warning("%s: %s", self._log.name, trouble)
        self._wait(ordinal, trouble, RETRIES)

    def _wait(self, ordinal: int, trouble: str, retries: Backoff) -> None:
        self.trouble = trouble
        self._go_on()
        self._stopped_at = ordinal
        self._retry = asyncio.get_running_loop().call_later(retries.delay(self._failures), self._try_again)
        self._failures += 1

    def _try_again(self) -> None:
        self._go_on()
        self._ready()


def _do_nothing() -> None:
    """A subscription that is closed delivers nothing."""


def _stop(error: DamagedEntriesError) -> None:
    """A subscription that is closed passes no damaged entries."""
