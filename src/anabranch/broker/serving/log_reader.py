"""Entries of a log for one subscription: from memory at once, from disk a little later.

Dispatch never waits: when an entry is not in memory yet, the reader calls `ready` once it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from anabranch.broker.serving.context import Spawn, SubscriptionLimits
from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.ledger.storage import Entry, SegmentLog

_log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 2**20
"""Most bytes from disk that one subscription holds; a thousand slow subscriptions hold a gibibyte."""


class LogReader:
    """Holds at most one batch from disk; the cache of the log is shared and not counted here."""

    def __init__(
        self, log: SegmentLog, spawn: Spawn, ready: Callable[[], None], limits: SubscriptionLimits
    ) -> None:
        self._log = log
        self._spawn = spawn
        self._ready = ready
        self._max_entries = limits.batch_entries
        self._max_bytes = min(limits.batch_bytes, FETCH_BYTES_MAX)
        self._fetched: Sequence[Entry] = ()
        self._fetching = False
        self._damaged = -1

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
        if not self._fetching and ordinal != self._damaged:
            self._fetching = True
            self._spawn(self._fetch(ordinal))
        return None

    def forget(self) -> None:
        """Drop the batch from disk, because no consumer reads for now."""
        self._fetched = ()
        self._damaged = -1

    async def _fetch(self, ordinal: int) -> None:
        try:
            self._fetched = await self._log.read(ordinal, self._max_entries, self._max_bytes)
        except CorruptDataError as error:
            # Skipping the entry would be silent loss: the subscription stops here until an operator seeks.
            _log.error("%s: reading stops at damaged entry %d: %s", self._log.name, ordinal, error)
            self._damaged = ordinal
            return
        except AnabranchError as error:
            # The next event on the subscription tries again; a broken disk also fails appends.
            _log.error("%s: entry %d cannot be read: %s", self._log.name, ordinal, error)
            return
        finally:
            self._fetching = False
        self._ready()
