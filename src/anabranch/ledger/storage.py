"""The port of segment storage: what the broker needs, without files.

A log stores one segment or classic topic. An entry has three coordinates in its log: the `Position` (ledger,
entry) is the one on the wire; the ordinal counts the entries of the log without gaps; the index counts the
messages (an entry holds one or more). Ordinals and indexes start at 0 and never change, also after a trim or
a restart. If durable entries were lost, their positions and indexes are not given to other entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from anabranch.errors import PersistenceError
from anabranch.ledger.cursors import LogCursors
from anabranch.ledger.findings import Finding
from anabranch.model.ids import Position
from anabranch.model.inheritance import Pieces


class Entry(NamedTuple):
    """One stored entry; `data` is the wire form from the checksum magic to the end, byte for byte."""

    position: Position
    ordinal: int
    index: int  # type: ignore[assignment]  # a position in the log here, not a tuple's method
    """Index of the first message of the entry."""
    count: int  # type: ignore[assignment]
    """Messages in the entry."""
    timestamp_ms: int
    """Broker clock at append."""
    data: bytes


AppendDone = Callable[[Entry | None, BaseException | None], None]
"""Called on the event loop, per log in append order, with the stored entry or the error."""


class EntryPlaces(Protocol):
    """The durable entries of a log: the first, the end, and the conversions between their coordinates."""

    @property
    def first_ordinal(self) -> int:
        """Lowest ordinal still stored."""

    @property
    def next_ordinal(self) -> int:
        """The end: one past the last durable entry. Entries below it may be read."""

    def ordinal_of(self, position: Position) -> int:
        """Ordinal of the first entry at or after `position`, or the end."""

    def position_of(self, ordinal: int) -> Position:
        """Position of a stored ordinal; for the end, the position after the last entry."""

    def index_of(self, ordinal: int) -> int:
        """Index of the first message of an entry; the next index for the end."""

    def count_of(self, ordinal: int) -> int:
        """Messages in an entry; 0 if it is not stored."""


class LogExtent(EntryPlaces, Protocol):
    """The durable entries of one log with their indexes, sizes and times."""

    @property
    def first_index(self) -> int: ...

    @property
    def next_index(self) -> int:
        """One past the last durable message."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def last_timestamp_ms(self) -> int:
        """Broker time of the last durable entry, 0 if the log never had an entry."""

    def ordinal_of_index(self, index: int) -> int:
        """Ordinal of the entry that holds message `index`, or the end if that message is not stored yet."""

    def ordinal_at_time(self, timestamp_ms: int) -> int:
        """First ordinal whose broker timestamp is at or after the time, or the end."""

    def time_of(self, ordinal: int) -> int | None:
        """Highest broker timestamp up to this entry, or the first one still stored; None for the end."""

    def bytes_between(self, first: int, end: int) -> int:
        """Stored bytes of the entries from `first` up to `end`, heads of records may be included."""

    def indexes_after(self, first: int, end: int) -> Sequence[int]:
        """For each stored entry from `first` up to `end`, the index after its last message."""

    def ordinal_keeping(self, size_bytes: int) -> int:
        """First ordinal of the newest ledger with `size_bytes` from it on, else `first_ordinal`."""


class ReadableLog(Protocol):
    """The reading side of a log."""

    @property
    def name(self) -> str: ...

    @property
    def sealed(self) -> bool: ...

    @property
    def extent(self) -> EntryPlaces: ...

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        """Durable entries from `ordinal` on; at least one if any is stored, even beyond `max_bytes`.

        A read below the first stored ordinal starts there. Raises DamagedEntriesError when the first entry
        is damaged, and PersistenceError when the disk cannot read it now.
        """

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        """As `read`, from memory only; None when the first entry is not in memory."""

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        """The entries with these ascending ordinals, from the first on; neighbours share one access.

        Ordinals that are trimmed, or not durable yet, are left out. The answer may end early, but holds at
        least one entry if any is stored, even beyond `max_bytes`; so an ordinal below the last one of the
        answer that is not in it is not stored. Errors are those of `read`.
        """

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        """As `read_each`, from memory only; None when the first stored entry is not in memory."""


class StoredSequences(NamedTuple):
    """Producers' sequence ids that a log remembers, also after a restart."""

    own: Mapping[str, int]
    """Last durable sequence id per producer name; names unused for long are dropped."""
    inherited: Pieces
    """Ids from the logs that this log follows, as `inherit` last stored them."""


class SegmentLog(ReadableLog, Protocol):
    """The append-only log of one segment; one writer."""

    @property
    def id(self) -> int:
        """Number of the log in its store; a log that is deleted and created again gets another one."""

    @property
    def full(self) -> str | None:
        """Why the log takes no entries for want of room on the disk; None while it takes them."""

    @property
    def slow(self) -> str | None:
        """Why commits wait for a slow disk now; None while they do not."""

    @property
    def extent(self) -> LogExtent:
        """The same object for the life of the log; it changes as entries become durable or are trimmed."""

    @property
    def cursors(self) -> LogCursors: ...

    @property
    def sequences(self) -> StoredSequences: ...

    def append(
        self,
        data: bytes,
        count: int,
        timestamp_ms: int,
        done: AppendDone,
        producer: str | None = None,
        sequence: int = -1,
    ) -> None:
        """Queue one entry for the next group commit.

        `sequence` becomes the producer's durable sequence id together with the entry. Raises
        TopicTerminatedError when sealed, StorageFullError while the disk is full, and PersistenceError once
        a commit has failed.
        """

    def watch(self, advanced: Callable[[], None]) -> Callable[[], None]:
        """Call `advanced` after each commit that moved the end, and after a seal; returns the undo."""

    def release(self) -> None:
        """Drop entries from memory that the disk can read again, because no client uses the log."""

    async def flush(self) -> None:
        """Return when everything queued before the call is durable."""

    async def seal(self) -> None:
        """Refuse further appends; durable when it returns, after every append accepted before. Repeatable."""

    async def trim(self, ordinal: int) -> None:
        """Drop the whole ledgers below `ordinal`."""

    async def inherit(self, pieces: Pieces) -> None:
        """Replace the sequence ids of the logs that this log follows; durable when it returns."""


class SegmentStorage(Protocol):
    """All logs of one store; one process at a time has it open."""

    async def open(self, name: str = "", fence: str | None = None) -> None:
        """Recover all logs; call this once, first. HeldError when another process has the store open.

        Another process that finds the store open learns `name`. A holder whose name is `fence` is killed.
        """

    @property
    def store_id(self) -> int:
        """Identity of the store, drawn when it was founded; 0 before `open`, and for stores in memory."""

    def watch_failure(self, failed: Callable[[PersistenceError], None]) -> None:
        """Call `failed` when the store refuses all further changes; then another process has to open it."""

    @property
    def full(self) -> str | None:
        """Why the store takes no entries for want of room on the disk; None while it takes them."""

    @property
    def findings(self) -> Sequence[Finding]:
        """The damaged places that `open` found; entries that it lost are damaged, all else was rebuilt."""

    async def checkpoint(self) -> None:
        """Make the next `open` short, unless the disk is full; calls go on meanwhile."""

    async def close(self, *, hastily: bool = False) -> None:
        """Make everything durable and release the files; `hastily` skips the checkpoint."""

    def names(self) -> Sequence[str]:
        """Names of the logs of topics that exist, sorted."""

    def side_names(self) -> Sequence[str]:
        """Names of the side logs that exist, sorted (`model/log_names/side_logs.py`)."""

    def get(self, name: str) -> SegmentLog | None: ...

    async def create(self, name: str) -> SegmentLog:
        """Return the log of that name; create it if it is missing. Durable when it returns."""

    async def delete(self, name: str) -> None:
        """Delete the log with its cursors if it exists; durable when this call, or a second one, returns."""


class Watchers:
    """The callbacks that want to know when one log moved."""

    __slots__ = ("_log_name", "_watchers")

    def __init__(self, log_name: str) -> None:
        self._log_name = log_name
        self._watchers: list[Callable[[], None]] = []

    def add(self, advanced: Callable[[], None]) -> Callable[[], None]:
        """Call `advanced` on each `notify`; returns the undo."""
        self._watchers.append(advanced)

        def undo() -> None:
            if advanced in self._watchers:
                self._watchers.remove(advanced)

        return undo

    def notify(self) -> None:
        for advanced in list(self._watchers):
            try:
                advanced()
            except Exception as error:
                report_failure(self._log_name, error)


def report_failure(log_name: str, error: Exception) -> None:
    """Report an exception of a callback to the event loop's exception handler."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"callback on {log_name} failed", "exception": error}
    )
