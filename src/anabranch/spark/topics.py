"""The port through which readers and writers reach topics.

A `Service` is pickled into every process of a job and connects there on first use. `service` implements it
with the client; tests implement it with files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from anabranch.spark.decide.sink.records import Pin, SinkState
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.topic_names import TopicPattern
from anabranch.spark.decide.source.topology import Slice, Topology

if TYPE_CHECKING:
    from anabranch.client.net.topics.schemas import TopicSchema

E = TypeVar("E")


class StoredEntry(NamedTuple):
    """A stored entry, the position of its first message, and the number of positions it takes."""

    first: int
    positions: int
    """0 marks the end of a slice, and has no data."""
    data: bytes
    complete: bool | None = None
    """Whether no message is missing before the entry; None if the positions tell."""
    elsewhere: bool = False
    """Whether all messages belong to other slices of the same positions; then the data is incomplete."""


class TopicReader(Protocol):
    """Reads layouts, extents of segments and stored entries. All calls block."""

    def topology(self, topic: str, *, fresh: bool = False) -> Topology:
        """Return the newest layout with the extents of its segments; raises TopicNotFoundError.

        With `fresh`, no cached extent is used, because messages may have been removed since.
        """

    def topics(self, pattern: TopicPattern) -> Sequence[str]:
        """Return the short names of the topics that exist now and match."""

    def positions_at(self, topic: str, topology: Topology, time_ms: int) -> Mapping[int, int]:
        """Return by segment the first position that was published then or later, or the end."""

    def cursor_positions(self, topic: str, topology: Topology, subscription: str) -> Mapping[int, int] | None:
        """Return by segment the first unacknowledged position, or None without such a subscription."""

    def mirror(self, topic: str, subscription: str, cut: TopicCut, topology: Topology) -> None:
        """Move the cursors of a durable subscription to a cut; create the subscription if it is missing."""

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        """Return when brokers stored the message at a position of each segment, in milliseconds.

        A removed message counts as the next one. Segments whose broker does not tell are absent. The topology
        of the topic must have been asked for before.
        """

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        """Return by segment the first position that was stored after a time, or the end; as `stored_at`."""

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        """Yield the entries of one slice after the other, a few at a time, with the index of their slice.

        Entries are in order and without gaps; the first and the last may reach beyond the slice. Raises
        OperationTimeoutError if no entry arrives within the time.
        """

    def settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        """Move positions of segments forward to the next stored message if positions have gaps."""

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        """Return a version of the topic's registered schema, the newest by default, or None without one."""

    def schema_topic(self, topic: str, segment: int) -> str:
        """Return the topic whose schema versions a segment's entries name; it may be the segment's own."""


class SliceReader(Protocol[E]):
    """Reads one slice; an empty list means its end."""

    async def read(self, timeout: float) -> list[E]: ...

    async def close(self) -> None: ...


Headers = tuple[tuple[str, str], ...]
"""The properties of one message in order; a key may occur more than once."""


@dataclass(frozen=True, slots=True)
class OutgoingRows:
    """Messages to write, in columns of equal length."""

    values: Any
    """Binary or string; null is a tombstone."""
    keys: Any | None = None
    hashes: Any | None = None
    """With keys: the raw key hash of each row as numpy uint32; undefined for a null key."""
    event_times_ms: Any | None = None
    """numpy int64; 0 for a row without an event time."""
    headers: Sequence[Headers | None] | None = None


class TopicWriter(Protocol):
    """Sends rows to one topic, and keeps the order of each key. All calls block."""

    def write(self, rows: OutgoingRows) -> None:
        """Send rows; may return before they are stored."""

    def finish(self) -> None:
        """Wait until all rows are stored; raises the error if a row could not be stored."""

    def close(self) -> None:
        """Release the producer; safe after a failure and after `finish`."""


class StagedRows(NamedTuple):
    """The rows of one task attempt in the row log of a sink."""

    attempt: str
    rows: int
    start: int
    stop: int
    """All rows lie in the positions `start` up to but not including `stop`, among rows of other attempts."""
    topics: tuple[str, ...] = ()
    """The topics of the rows."""


class Stager(Protocol):
    """Appends the rows of one task attempt to the row log of a sink. All calls block."""

    @property
    def message_bytes_max(self) -> int:
        """The largest message that can be staged."""

    def write(self, topic: str, rows: OutgoingRows) -> None:
        """Append rows for a topic; may return before they are stored."""

    def finish(self) -> StagedRows:
        """Wait until all rows are stored."""

    def close(self) -> None:
        """Release the producer; safe after a failure and after `finish`."""


class Sink(Protocol):
    """The logs of an exactly-once sink. All calls block."""

    def state(self) -> SinkState:
        """Return the present state according to the record log."""

    def stager(self, attempt: str, flush_bytes: int, compression: str | None) -> Stager:
        """Return a stager of rows for a task attempt, whose name must never be used again."""

    def settle(self, pin: Pin | None, topics: Collection[str]) -> None:
        """Append the pin unless its batch already has one; then publish all batches that are not published.

        `topics` are those of the pin's rows. Afterwards every batch of the record log is stored exactly once.
        """


class Service(Protocol):
    """Reaches topics; small and picklable."""

    def reader(self) -> TopicReader:
        """Return the reader of this process, made on first use."""

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> TopicWriter:
        """Return a writer that makes entries of up to about `flush_bytes`."""

    def sink(self, namespace: str, sink_id: str) -> Sink:
        """Return the logs of an exactly-once sink."""
