"""Reads the entries that wait in lanes, and keeps some of them in memory.

They are read one by one, as exactly as they are delivered, in a channel of their own; so neither the reading
of lanes nor that of fresh entries waits for the other. A short wait costs no second read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from anabranch.broker.dispatch.keyed import Handout
from anabranch.broker.dispatch.lanes import Lanes
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.ledger.storage import Entry

LOOK_ASIDE_BYTES = 4 * 2**20
ENTRY_OVERHEAD = 400
"""Memory of an entry beside its data."""

AHEAD_ENTRIES = 256
"""Entries that one read from disk takes for lanes, also if their consumers have permits for fewer."""


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


class LaneEntries:
    """The reader of the lanes of one subscription."""

    def __init__(self, path: ReadPath, lanes: Lanes) -> None:
        self._path = path
        self._lanes = lanes
        self.aside = LookAside()

    def read(self, handouts: Sequence[Handout]) -> dict[int, Entry]:
        """Return the entries of these handouts that are in memory; the others are fetched."""
        acks, found, missing = self._path.cursor.acks, dict[int, Entry](), list[int]()
        for entry in self._path.source.take_fetched():
            self.aside.keep(entry)
        slots: dict[int, None] = {}
        unreadable = self._path.source.unreadable
        stopped = {slot for _, ordinal, slot in handouts if ordinal == unreadable}
        for _, ordinal, slot in handouts:
            if (kept := self.aside.take(ordinal)) is not None:
                found[ordinal] = kept
            elif ordinal not in acks and slot not in stopped:
                missing.append(ordinal)
                slots[slot] = None
        if missing:
            missing.sort()
            entries = self._path.source.read_each(missing, self._ahead(slots, missing))
            found.update((entry.ordinal, entry) for entry in entries or ())
        return found

    def _ahead(self, slots: Iterable[int], missing: Sequence[int]) -> list[int]:
        """Return the next entries of these lanes after the missing ones, for one read from disk."""
        after = missing[-1] + 1
        # Entries far ahead would be dropped from memory before their turn comes.
        end, ahead = after + AHEAD_ENTRIES, list[int]()
        for slot in slots:
            room = AHEAD_ENTRIES - len(missing) - len(ahead)
            lane = self._lanes.get(slot)
            if room > 0 and lane is not None:
                ahead += (one for one in lane.between(after, end, room) if one not in self.aside)
        return sorted(ahead)
