"""A topic as the planner sees it: its layout, the extent of each segment, and slices of segments.

Plain values. This module must not know how the values are obtained or what is decided with them.

Example: a segment whose first 10 of 100 messages retention has removed is SegmentSpan(first=10, next=100).
From position 40 there are 60 messages to read, and 30 messages further is position 70. A query that is at
position 5 has lost messages, and one at position 10 has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.ranges import FULL, HashRange
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.places import place_of, position_after, rows_between


class SegmentSpan(NamedTuple):
    """The stored positions of a segment: from `first` up to `next`, which is not included."""

    first: int
    next: int
    sealed: bool
    """Whether `next` is final."""
    per_entry: float | None = None
    """Estimated messages per entry if positions are places on Pulsar; None if positions count messages."""
    log: int | None = None
    """Identity of the log: a different number means that it was recreated. None if it is unknown."""

    def lost_before(self, position: int) -> bool:
        """Whether messages from `position` on are no longer stored.

        Pulsar does not tell where a segment began. So a segment that is read from its beginning, which is
        position 0 there, never counts as having lost messages.
        """
        return self.first > position and (self.per_entry is None or position > 0)

    def rows(self, lo: int, hi: int) -> int:
        """Return the number of messages from one position up to another; an estimate on Pulsar."""
        if self.per_entry is None:
            return max(0, hi - lo)
        return rows_between(self.begin(lo), hi, self.per_entry)

    def after(self, position: int, rows: int) -> int:
        """Return the position this many messages further, at most `next`; approximate on Pulsar."""
        if self.per_entry is None:
            return min(position + rows, self.next)
        return position_after(self.begin(position), rows, self.next, self.per_entry)

    def begin(self, position: int) -> int:
        """Return the position itself; for the beginning of a segment on Pulsar, its first stored position."""
        return self.first if self.per_entry is not None and position == 0 else position

    def text(self, position: int) -> str:
        """Return a position as users write it: a number, or a place on Pulsar."""
        return _text(position, places=self.per_entry is not None)

    def is_other_log(self, log: int | None) -> bool:
        """Whether `log` is a different log than this one, so that its positions mean nothing here."""
        return log is not None and self.log is not None and log != self.log


@dataclass(frozen=True, slots=True)
class Topology:
    """A layout, and the extents of its segments. They were read after it, so sealed ones are final."""

    layout: Layout
    tails: Mapping[int, SegmentSpan]

    @staticmethod
    def of(layout: Layout, tails: Mapping[int, SegmentSpan]) -> Topology:
        """Return the topology with pruned segments as sealed ones whose messages are all trimmed.

        A segment that a query had read to its end before it was pruned then counts as finished, and one that
        it had not read to its end has lost messages. No other code needs to know about pruning.
        """
        if not layout.pruned:
            return Topology(layout, tails)
        gone = {
            id_: SegmentSpan(pruned.next_index, pruned.next_index, sealed=True)
            for id_, pruned in layout.pruned.items()
        }
        return Topology(_with_pruned(layout), {**gone, **tails})

    def finished(self, segment: int, position: int) -> bool:
        """Whether no message can ever be stored at or after `position`."""
        tail = self.tails[segment]
        return tail.sealed and tail.begin(position) >= tail.next

    def unsettled(self, cut: Mapping[int, int]) -> dict[int, int]:
        """Return the positions of a cut that may be past the end of their ledger on Pulsar."""
        return {
            id_: position
            for id_, position in cut.items()
            if (tail := self.tails[id_]).per_entry is not None
            and 0 < position < tail.next
            and place_of(position).ledger < place_of(tail.next).ledger
        }

    def logs(self, segments: Iterable[int]) -> dict[int, int]:
        """Return the known identities of the logs of these segments."""
        tails = ((id_, self.tails.get(id_)) for id_ in segments)
        return {id_: tail.log for id_, tail in tails if tail is not None and tail.log is not None}

    def cut(self, positions: Mapping[int, int]) -> TopicCut:
        """Return a cut of this topic at these positions."""
        return TopicCut(dict(positions), self.layout.epoch, self.logs(positions))


def _with_pruned(layout: Layout) -> Layout:
    known = layout.segments.keys() | layout.pruned.keys()
    parents: dict[int, list[int]] = {}
    for id_, pruned in sorted(layout.pruned.items()):
        for child in pruned.children:
            parents.setdefault(child, []).append(id_)
    segments = {
        id_: Segment(
            id_,
            pruned.range,
            SegmentState.SEALED,
            tuple(parents.get(id_, ())),
            tuple(child for child in pruned.children if child in known),
        )
        for id_, pruned in layout.pruned.items()
    }
    for id_, segment in layout.segments.items():
        older = tuple(parents.get(id_, ()))
        segments[id_] = replace(segment, parents=(*older, *segment.parents)) if older else segment
    return replace(layout, segments=segments)


class Slice(NamedTuple):
    """Messages `lo` up to `hi` of one segment; `hi` is not included."""

    topic: str
    segment: int
    range: HashRange
    lo: int
    hi: int
    routed: bool = True
    """Whether all keys lie in the range; a partition of a classic topic may hold any key."""
    estimate: int | None = None
    """Estimated messages if positions are places on Pulsar; None if positions count messages."""
    log: int | None = None
    """Identity of the log; None if it is unknown."""
    bucket_hashes: HashRange | None = None
    """The low halves of the key hashes that belong to the slice; None if all messages belong to it."""

    @property
    def rows(self) -> int:
        return self.hi - self.lo if self.estimate is None else self.estimate

    def text(self, position: int) -> str:
        """Return a position as users write it: a number, or a place on Pulsar."""
        return _text(position, places=self.estimate is not None)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Estimated bytes of one message, by topic and segment."""

    known: Mapping[tuple[str, int], float] = field(default_factory=dict)
    otherwise: float = 1024.0

    def of(self, topic: str, segment: int) -> float:
        return max(1.0, self.known.get((topic, segment), self.otherwise))

    def total(self, slices: Iterable[Slice]) -> float:
        return sum(part.rows * self.of(part.topic, part.segment) for part in slices)


@dataclass(frozen=True, slots=True)
class Limit:
    """The messages that one micro-batch may take; None means no limit."""

    rows: int | None = None
    bytes: int | None = None

    def load(self, rows: int, size_bytes: float) -> float:
        """Return the share of the limit that these messages use; above 1 they do not fit."""
        return max(
            0.0 if self.rows is None else rows / self.rows,
            0.0 if self.bytes is None else size_bytes / self.bytes,
        )

    @property
    def reached(self) -> bool:
        return (self.rows is not None and self.rows <= 0) or (self.bytes is not None and self.bytes <= 0)

    def less(self, rows: int, size_bytes: int) -> Limit:
        """Return the limit that is left after taking these messages."""
        return Limit(
            None if self.rows is None else self.rows - rows,
            None if self.bytes is None else self.bytes - size_bytes,
        )


Key = tuple[str, int]
"""A topic and one of its segments."""

Ends = Mapping[Key, int]
"""Positions up to which segments may be read; an absent segment may not be read at all."""

Lost = Callable[[str], None]
"""Called with a description of lost messages; raises, or logs it and returns."""

NO_LIMIT = Limit()

UNKNOWN_SIZES = Sizes()


def _text(position: int, *, places: bool) -> str:
    return str(place_of(position)) if places else str(position)


def uncovered(ranges: Iterable[HashRange], within: HashRange = FULL) -> list[HashRange]:
    """Return the parts of a range, by default of the whole hash space, that none of the ranges covers."""
    found = []
    expected = within.start
    for part in sorted(part for part in ranges if part.overlaps(within)):
        if part.start > expected:
            found.append(HashRange(expected, part.start - 1))
        expected = max(expected, part.end + 1)
    if expected <= within.end:
        found.append(HashRange(expected, within.end))
    return found
