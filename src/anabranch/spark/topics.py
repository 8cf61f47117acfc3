"""What the readers and writers ask of topics, and nothing about how they are reached.

A `Service` is pickled into every process of a job and connects there on first use. `live` is the one over
the client; tests have one over files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from anabranch.spark.decide.planner import Slice, Topology


class StoredEntry(NamedTuple):
    """An entry as it is stored, and the position of its first message."""

    first: int
    data: bytes


class TopicReader(Protocol):
    """Layouts, tails and stored entries. All calls block."""

    def topology(self, topic: str) -> Topology:
        """The newest layout, then the tails of its segments; raises TopicNotFoundError."""
        ...

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        """The entries of each slice in turn, a few at a time, with the index of their slice.

        Entries come in order and without gaps; the first and the last may reach beyond the slice. Raises
        OperationTimeoutError when nothing comes for so long.
        """
        ...


@dataclass(frozen=True, slots=True)
class OutgoingRows:
    """Messages to write, in columns; Arrow arrays of one length."""

    values: Any
    """Binary or string; null is a tombstone."""
    keys: Any | None = None
    hashes: Any | None = None
    """The raw key hash of each row as numpy uint32, when there are keys; undefined where the key is null."""
    event_times_ms: Any | None = None
    """numpy int64; 0 where there is none."""
    headers: Sequence[dict[str, str] | None] | None = None


class TopicWriter(Protocol):
    """Sends rows to one topic, keeping the order of each key. All calls block."""

    def write(self, rows: OutgoingRows) -> None:
        """Take rows over; may return before they are stored."""
        ...

    def finish(self) -> None:
        """Return when all rows are stored; raises what kept one from being stored."""
        ...

    def close(self) -> None:
        """Give everything up; safe after a failure and after `finish`."""
        ...


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How a writer batches."""

    flush_bytes: int
    """About the largest entry."""
    compression: str | None


class Service(Protocol):
    """A way to topics; small and picklable."""

    def reader(self) -> TopicReader:
        """The reader of this process, made on first use."""
        ...

    def writer(self, topic: str, settings: WriterSettings) -> TopicWriter: ...
