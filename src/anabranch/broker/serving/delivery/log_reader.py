"""Reads the log of one subscription, and deals with reads that fail and entries that are damaged.

A read that fails is repeated after growing waits, without an event from outside. A damaged entry stops the
reader, or is reported and passed; the subscription decides. This module must not know consumers.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter

from anabranch.aio import Backoff
from anabranch.broker.serving.context import Spawn, SubscriptionLimits
from anabranch.broker.serving.delivery.counters import Counters
from anabranch.errors import AlreadyClosedError, AnabranchError, DamagedEntriesError, in_words
from anabranch.ledger.storage import Entry, ReadableLog

_log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 2**20
"""Most bytes from disk that one subscription keeps; a thousand slow subscriptions keep a gibibyte."""

RETRIES = Backoff(0.1, 5.0)
"""Waits between attempts to read entries that the disk could not read."""

DAMAGE_RETRIES = Backoff(5.0, 60.0)
"""Waits between attempts to read a damaged entry; a repaired file is noticed within the longest one."""


class LogReader:
    """Entries of a log: from memory at once, or one batch from disk, and then it calls `ready`.

    Three channels do not wait for each other: entries in the order of the log, chosen entries of lanes, and
    those that are read after a restart to find the slots of pending entries.
    """

    def __init__(
        self,
        log: ReadableLog,
        spawn: Spawn,
        ready: Callable[[], None],
        limits: SubscriptionLimits,
        passed: Callable[[DamagedEntriesError], Sequence[Entry] | None],
    ) -> None:
        """`passed` returns the entries to deliver instead of damaged ones, or None to stop there."""
        self.log = log
        self.spawn = spawn
        self.ready = ready
        self.passed = passed
        self._max_entries = limits.batch_entries
        self._max_bytes = min(limits.batch_bytes, FETCH_BYTES_MAX)
        self.errors = 0
        """Reads that failed and were repeated; the number only grows."""
        self.counters = Counters()
        self._in_order, self._scanned = _Channel(self), _Channel(self)
        self._chosen = _Channel(self, several=True)

    @property
    def _channels(self) -> Sequence[_Channel]:
        return self._in_order, self._chosen, self._scanned

    @property
    def trouble(self) -> str | None:
        """Why the entries that a consumer waits for cannot be read now; None while reading works."""
        return next((one.trouble for one in self._channels if one.trouble is not None), None)

    @property
    def end(self) -> int:
        """One past the last entry that may be read."""
        return self.log.extent.next_ordinal

    def read(self, ordinal: int, max_entries: int) -> Sequence[Entry] | None:
        """Return entries from `ordinal` on, none at the end; None means to ask again after `ready`."""
        limit, channel = min(max_entries, self._max_entries), self._in_order
        entries = self.log.read_cached(ordinal, limit, self._max_bytes)
        if entries is not None:
            channel.fetched = ()
            self.counters.entries_read += len(entries)
            return entries
        fetched = channel.fetched
        if fetched and channel.fetched_at <= ordinal <= fetched[-1].ordinal:
            # Spilled entries have gaps between them.
            at = bisect_left(fetched, ordinal, key=attrgetter("ordinal"))
            return fetched[at : at + limit]
        channel.start(ordinal, partial(self.log.read, ordinal, self._max_entries, self._max_bytes))
        return None

    def read_each(
        self, ordinals: Sequence[int], ahead: Sequence[int] = (), *, scan: bool = False
    ) -> Sequence[Entry] | None:
        """Return the stored entries of these ascending ordinals, perhaps only the first; None as in `read`.

        A read from disk takes the later ordinals of `ahead` too, in expectation of the next calls.
        """
        channel = self._scanned if scan else self._chosen
        if channel.fetched:
            wanted = set(ordinals)
            found = [entry for entry in channel.fetched if entry.ordinal in wanted]
            if found and found[0].ordinal == ordinals[0]:
                return found
        entries = self.log.read_each_cached(ordinals, self._max_bytes)
        if entries is not None:
            self.counters.entries_read += len(entries)
            return entries
        chosen = [*ordinals, *ahead]
        channel.start(ordinals[0], partial(self.log.read_each, chosen, self._max_bytes))
        return None

    @property
    def unreadable(self) -> int:
        """The chosen entry that cannot be read for now; -1 if all can."""
        return self._chosen.stopped_at

    def take_fetched(self) -> Sequence[Entry]:
        """Return the chosen entries that came from disk since the last call; `read_each` forgets them."""
        entries, self._chosen.fetched = self._chosen.fetched, ()
        return entries

    @property
    def working(self) -> bool:
        """Whether a read is under way, or will be repeated."""
        return any(channel.working for channel in self._channels)

    def forget(self) -> None:
        """Drop the batches from disk, because no consumer reads for now or the cursor was moved."""
        for channel in self._channels:
            channel.forget()

    def read_from(self, log: ReadableLog) -> None:
        """Read another view of the log from now on."""
        self.forget()
        self.log = log

    def close(self) -> None:
        """Forget the callbacks too, so that the subscription is freed with its last reference.

        No read may be under way.
        """
        self.forget()
        self.ready, self.passed = _do_nothing, _stop
        for channel in self._channels:
            channel.close()


class _Channel:
    """At most one read from disk at a time, and the entries of the last one."""

    def __init__(self, reader: LogReader, *, several: bool = False) -> None:
        """`several`: entries of other lanes are read while one that failed waits for its next attempt."""
        self._reader = reader
        self._several = several
        self.fetched: Sequence[Entry] = ()
        self.fetched_at = 0
        """The ordinal from which on the entries were read."""
        self.trouble: str | None = None
        self._fetching = False
        self._failures = 0
        self.stopped_at = -1
        """The entry that could not be read, until the next attempt; -1 if there is none."""
        self._retry: asyncio.TimerHandle | None = None

    @property
    def working(self) -> bool:
        return self._fetching or self._retry is not None

    def start(self, ordinal: int, read: Callable[[], Awaitable[Sequence[Entry]]]) -> None:
        """Read from disk, unless a read is under way or entry `ordinal` could not be read just now."""
        if not self._fetching and ordinal != self.stopped_at:
            self._fetching = True
            self._reader.spawn(self._fetch(ordinal, read))

    def close(self) -> None:
        """Forget the reader, which refers to this channel; neither is used any more."""
        del self._reader

    def forget(self) -> None:
        self.fetched = ()
        self._failures = 0
        self.trouble = None
        self._go_on()

    def _go_on(self) -> None:
        self.stopped_at = -1
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def _fetch(self, ordinal: int, read: Callable[[], Awaitable[Sequence[Entry]]]) -> None:
        reader = self._reader
        try:
            self.fetched = await read()
            reader.counters.entries_read += len(self.fetched)
            reader.counters.entries_fetched += len(self.fetched)
        except AlreadyClosedError:
            # The next owner of the store reads for its own consumers.
            return
        except DamagedEntriesError as error:
            instead = reader.passed(error)
            if instead is None:
                first = self._retry is None
                self._stop_at_damage(ordinal, error)
                if self._several and first:
                    reader.ready()
                return
            self.fetched = instead
        except (AnabranchError, OSError) as error:
            self._read_failed(ordinal, error)
            return
        finally:
            self._fetching = False
        self.fetched_at = ordinal
        if not self._several or self._retry is None or ordinal == self.stopped_at:
            self._succeeded(ordinal)
        reader.ready()

    def _succeeded(self, ordinal: int) -> None:
        if self.trouble is not None:
            _log.info("%s: entry %d can be read again", self._reader.log.name, ordinal)
        self._failures = 0
        self.trouble = None
        self._go_on()

    def _stop_at_damage(self, ordinal: int, error: DamagedEntriesError) -> None:
        # Passing the entry would be silent loss, so the operator decides.
        log = self._reader.log
        trouble = (
            f"delivery stops at {log.extent.position_of(error.first)}, because {error}; "
            "repair the file, or move the subscription, or pass damaged entries with damaged_entries=skip"
        )
        if trouble != self.trouble:
            _log.error("%s: %s", log.name, trouble)
        self._wait(ordinal, trouble, DAMAGE_RETRIES)

    def _read_failed(self, ordinal: int, error: Exception) -> None:
        self._reader.errors += 1
        cause = error.__cause__ or error
        trouble = f"entry {ordinal} cannot be read and is tried again: {in_words(cause)}"
        if self.trouble is None:
            _log.warning("%s: %s", self._reader.log.name, trouble)
        self._wait(ordinal, trouble, RETRIES)

    def _wait(self, ordinal: int, trouble: str, retries: Backoff) -> None:
        self.trouble = trouble
        self._go_on()
        self.stopped_at = ordinal
        self._retry = asyncio.get_running_loop().call_later(retries.delay(self._failures), self._try_again)
        self._failures += 1

    def _try_again(self) -> None:
        self._go_on()
        self._reader.ready()


def _do_nothing() -> None:
    """A subscription that is closed delivers nothing."""


def _stop(error: DamagedEntriesError) -> None:
    """A subscription that is closed passes no damaged entries."""
