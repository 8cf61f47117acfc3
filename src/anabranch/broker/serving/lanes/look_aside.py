"""Entries that wait in lanes and stay in memory for a while, so that a short wait costs no second read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from anabranch.ledger.storage import Entry

LOOK_ASIDE_BYTES = 4 * 2**20
ENTRY_OVERHEAD = 400
"""Memory of an entry beside its data."""


class LookAside:
    """A bounded map of entries by ordinal; the entry that was kept first makes room for new ones."""

    def __init__(self, bytes_max: int = LOOK_ASIDE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._size = 0

    def keep(self, entry: Entry) -> None:
        if entry.ordinal in self._entries:
            return
        self._entries[entry.ordinal] = entry
        self._size += len(entry.data) + ENTRY_OVERHEAD
        # The newest entry stays however large it is, because its consumer waits for it.
        while self._size > self._bytes_max and len(self._entries) > 1:
            self.take(next(iter(self._entries)))

    def take(self, ordinal: int) -> Entry | None:
        """Return an entry and forget it; None if it is not here."""
        entry = self._entries.pop(ordinal, None)
        if entry is not None:
            self._size -= len(entry.data) + ENTRY_OVERHEAD
        return entry

    def drop(self, ordinals: Iterable[int]) -> None:
        for ordinal in ordinals:
            self.take(ordinal)

    def __contains__(self, ordinal: int) -> bool:
        return ordinal in self._entries

    def clear(self) -> None:
        self._entries.clear()
        self._size = 0
