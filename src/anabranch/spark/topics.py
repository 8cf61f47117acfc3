"""The port through which readers and writers reach topics.

A `Service` is pickled into every process of a job and connects there on first use. `live` implements it with
the client; tests implement it with files.
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
    """An entry as it is stored, the position of its first message, and the number of positions it takes."""

    first: int
    positions: int
    """0 for the end of a slice, which has no data: the reader reached it."""
    data: bytes
    complete: bool | None = None
    """Whether no message is missing before the entry; None where the positions tell."""
    elsewhere: bool = False
    """Whether all messages belong to other slices of the same positions; the data is not complete then."""


class TopicReader(Protocol):
    """Layouts, extents of segments and stored entries. All calls block."""

    def topology(self, topic: str, *, fresh: bool = False) -> Topology:
        """Return the newest layout with the extents of its segments; raises TopicNotFoundError.

        With `fresh` no extent is one that another query asked for: its first messages may be removed since.
        """

    def topics(self, pattern: TopicPattern) -> Sequence[str]:
        """Return the short names of the topics that exist now and match."""

    def places_at(self, topic: str, topology: Topology, time_ms: int) -> Mapping[int, int]:
        """Return, by segment, the first position that was published then or later, or the end."""

    def places_of(self, topic: str, topology: Topology, subscription: str) -> Mapping[int, int] | None:
        """Return, by segment, the first position that is not acknowledged; None without the subscription."""

    def mirror(self, topic: str, subscription: str, cut: TopicCut, topology: Topology) -> None:
        """Move the cursors of a durable subscription, made if it is missing, to a cut."""

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        """Return when brokers stored the message at a position of each segment, in milliseconds.

        A message that was removed counts as the next one. Segments whose broker does not tell are missing.
        Only for topics whose topology was asked for before.
        """

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        """Return the first position of each segment that was stored after a time, or the end; as above."""

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        """Yield the entries of each slice in turn, a few at a time, with the index of their slice.

        Entries are in order and without gaps; the first and the last may reach beyond the slice. Raises
        OperationTimeoutError when no entry arrives within the time.
        """

    def settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        """Move positions of segments forward to the next stored message, where positions have gaps."""

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        """Return a version of the topic's registered schema, the newest by default; None without it."""

    def schema_topic(self, topic: str, segment: int) -> str:
        """Return the topic whose schema versions the entries of a segment name; perhaps its own."""


class SliceReader(Protocol[E]):
    """Reads one slice; no entries mean its end."""

    async def read(self, timeout: float) -> list[E]: ...

    async def close(self) -> None: ...


Headers = tuple[tuple[str, str], ...]
"""The properties of one message in their order; a key may repeat."""


@dataclass(frozen=True, slots=True)
class OutgoingRows:
    """Messages to write, in columns; Arrow arrays of one length."""

    values: Any
    """Binary or string; null is a tombstone."""
    keys: Any | None = None
    hashes: Any | None = None
    """With keys: the raw key hash of each row as numpy uint32; undefined for a null key."""
    event_times_ms: Any | None = None
    """numpy int64; 0 for a row without an event time."""
    headers: Sequence[Headers | None] | None = None


class TopicWriter(Protocol):
    """Sends rows to one topic and keeps the order of each key. All calls block."""

    def write(self, rows: OutgoingRows) -> None:
        """Send rows; may return before they are stored."""

    def finish(self) -> None:
        """Wait until all rows are stored; raises the error of a row that could not be stored."""

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
        """Return what the record log says now."""

    def stager(self, attempt: str, flush_bytes: int, compression: str | None) -> Stager:
        """Return a stager of rows for a task attempt with a name that is never used again."""

    def settle(self, pin: Pin | None, topics: Collection[str]) -> None:
        """Append the pin of rows for these topics, unless its batch has one; then publish all batches that
        are not published yet.

        When it returns, every batch of the record log is stored in its topics once.
        """


class Service(Protocol):
    """A way to topics; small and picklable."""

    def reader(self) -> TopicReader:
        """Return the reader of this process, made on first use."""

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> TopicWriter:
        """Return a writer that makes entries of up to about `flush_bytes`."""

    def sink(self, namespace: str, sink_id: str) -> Sink:
        """Return the logs of an exactly-once sink."""
