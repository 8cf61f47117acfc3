"""The port of segment storage: what the broker needs, independent of files.

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
    """One stored entry. `data` is the wire form from the checksum magic to the end, byte for byte."""

    position: Position
    ordinal: int
    index: int  # type: ignore[assignment]  # a position in the log here, not a tuple's method
    """The index of the entry's first message."""
    count: int  # type: ignore[assignment]
    """The number of messages in the entry."""
    timestamp_ms: int
    """The broker's clock at the time of the append."""
    data: bytes


AppendDone = Callable[[Entry | None, BaseException | None], None]
"""Called on the event loop with the stored entry or the error, in append order within each log."""


class EntryPlaces(Protocol):
    """The range of a log's durable entries, and conversions between their coordinates."""

    @property
    def first_ordinal(self) -> int:
        """The lowest ordinal that is still stored."""

    @property
    def next_ordinal(self) -> int:
        """The end: one past the last durable entry. Only entries below it can be read."""

    def ordinal_of(self, position: Position) -> int:
        """Return the ordinal of the first entry at or after `position`, or the end."""

    def position_of(self, ordinal: int) -> Position:
        """Return the position of a stored ordinal. For the end, it is the position after the last entry."""

    def index_of(self, ordinal: int) -> int:
        """Return the index of the entry's first message. For the end, it is the next index."""

    def count_of(self, ordinal: int) -> int:
        """Return the number of messages in an entry, or 0 if it is not stored."""


class LogExtent(EntryPlaces, Protocol):
    """The durable entries of one log with their indexes, sizes and times."""

    @property
    def first_index(self) -> int: ...

    @property
    def next_index(self) -> int:
        """The index after the last durable message."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def last_timestamp_ms(self) -> int:
        """The broker time of the last durable entry, or 0 if the log never had an entry."""

    def ordinal_of_index(self, index: int) -> int:
        """Return the ordinal of the entry with message `index`, or the end if it is not stored yet."""

    def ordinal_at_time(self, timestamp_ms: int) -> int:
        """Return the first ordinal whose broker timestamp is at or after the time, or the end."""

    def time_of(self, ordinal: int) -> int | None:
        """Return the highest broker timestamp up to this entry, or the first one stored; None for the end."""

    def bytes_between(self, first: int, end: int) -> int:
        """Return the stored bytes of the entries from `first` up to `end`, perhaps including record heads."""

    def indexes_after(self, first: int, end: int) -> Sequence[int]:
        """Return the index after the last message of each stored entry from `first` up to `end`."""

    def ordinal_keeping(self, size_bytes: int) -> int:
        """Return the start of the newest ledger with `size_bytes` from there on, else `first_ordinal`."""


class ReadableLog(Protocol):
    """The reading side of a log."""

    @property
    def name(self) -> str: ...

    @property
    def sealed(self) -> bool: ...

    @property
    def extent(self) -> EntryPlaces: ...

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        """Return durable entries from `ordinal` on, at least one if any is stored, even beyond `max_bytes`.

        A read below the first stored ordinal starts there. Raises DamagedEntriesError when the first entry is
        damaged, and PersistenceError when the disk cannot read it now.
        """

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        """Like `read`, but from memory only; None if the first entry is not in memory."""

    async def read_each(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        """Return the entries with these ascending ordinals; neighbours share one disk access.

        Ordinals that are trimmed or not durable yet are left out. The result may end early, but has at least
        one entry if any is stored, even beyond `max_bytes`. So an ordinal that is missing, but lower than the
        last one in the result, is not stored. Raises like `read`.
        """

    def read_each_cached(self, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        """Like `read_each`, but from memory only; None if the first stored entry is not in memory."""


class StoredSequences(NamedTuple):
    """The producers' sequence ids that a log remembers, even after a restart."""

    own: Mapping[str, int]
    """The last durable sequence id per producer name. Names that were unused for long are dropped."""
    inherited: Pieces
    """The ids from the logs that precede this one, as `inherit` last stored them."""


class SegmentLog(ReadableLog, Protocol):
    """The append-only log of one segment. It has one writer."""

    @property
    def id(self) -> int:
        """The number of the log in its store. A log that is deleted and recreated gets another one."""

    @property
    def full(self) -> str | None:
        """Why the log refuses entries because the disk is full, or None if it accepts them."""

    @property
    def slow(self) -> str | None:
        """Why commits are waiting for a slow disk, or None if they are not."""

    @property
    def extent(self) -> LogExtent:
        """The extent of the log: one object for its whole life, updated as entries are stored or trimmed."""

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
        """Call `advanced` after each commit that moved the end, and after a seal.

        Returns an undo function.
        """

    def release(self) -> None:
        """Drop entries from memory that can be read from disk again, because no client uses the log."""

    async def flush(self) -> None:
        """Return once everything queued before the call is durable."""

    async def seal(self) -> None:
        """Refuse further appends.

        On return the seal and all accepted appends are durable. May be repeated.
        """

    async def trim(self, ordinal: int) -> None:
        """Drop the whole ledgers below `ordinal`."""

    async def inherit(self, pieces: Pieces) -> None:
        """Replace the sequence ids inherited from the preceding logs; they are durable on return."""


class SegmentStorage(Protocol):
    """All logs of one store, which only one process at a time has open."""

    async def open(self, name: str = "", fence: str | None = None) -> None:
        """Recover all logs. Must be the first call. Raises HeldError if another process has the store open.

        A process that finds the store open is told `name`. A holder whose name is `fence` is killed.
        """

    @property
    def store_id(self) -> int:
        """The identity of the store, chosen when it was created.

        0 before `open`, and for stores in memory.
        """

    def watch_failure(self, failed: Callable[[PersistenceError], None]) -> None:
        """Call `failed` when the store refuses all further changes. Then another process has to open it."""

    @property
    def full(self) -> str | None:
        """Why the store refuses entries because the disk is full, or None if it accepts them."""

    @property
    def findings(self) -> Sequence[Finding]:
        """The damage that `open` found. Lost entries stay damaged; everything else was rebuilt."""

    async def checkpoint(self) -> None:
        """Make the next `open` quick, unless the disk is full. Other calls continue meanwhile."""

    async def close(self, *, hastily: bool = False) -> None:
        """Make everything durable and release the files; `hastily` skips the checkpoint."""

    def names(self) -> Sequence[str]:
        """Return the sorted names of the existing logs of topics."""

    def side_names(self) -> Sequence[str]:
        """Return the sorted names of the existing side logs (`model/log_names/side_logs.py`)."""

    def get(self, name: str) -> SegmentLog | None: ...

    async def create(self, name: str) -> SegmentLog:
        """Return the log of that name, creating it if it is missing. It is durable on return."""

    async def delete(self, name: str) -> None:
        """Delete the log and its cursors if it exists.

        On return, also of a repeated call, this is durable.
        """


class Watchers:
    """The callbacks to run when one log has advanced."""

    __slots__ = ("_log_name", "_watchers")

    def __init__(self, log_name: str) -> None:
        self._log_name = log_name
        self._watchers: list[Callable[[], None]] = []

    def add(self, advanced: Callable[[], None]) -> Callable[[], None]:
        """Call `advanced` on each `notify`. Returns an undo function."""
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
