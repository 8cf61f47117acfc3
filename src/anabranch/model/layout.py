"""Segment and Layout: the DAG of a topic, and the ways it may change.

A layout is a value. `split`, `merge`, `rebucket`, `migrate` and `prune` return the next layout and leave the
old one as it is. This module does not know where segments are stored, which consumers read them, or why the
layout changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from anabranch.errors import LayoutError, SegmentNotFoundError
from anabranch.model.hashing import MAX_BUCKETS, check_bucket_splits, equal_bucket_splits
from anabranch.model.ranges import FULL, HashRange, initial_ranges
from anabranch.model.scaling.pruned import PrunedSegment, newest_of

IDS_NAMED = 8
"""Most segments that an error lists."""


class SegmentState(StrEnum):
    """A segment is active or sealed; there is no state in between."""

    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


@dataclass(frozen=True, slots=True)
class Segment:
    """One node of the DAG; its range and buckets never change, except when a classic topic is sealed.

    A classic topic has an arbitrary range while it is active. When it is sealed it gets the whole ring,
    because its keys lie anywhere on the ring.
    """

    id: int
    range: HashRange
    state: SegmentState = SegmentState.ACTIVE
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    created_epoch: int = 0
    sealed_epoch: int = -1
    created_ms: int = 0
    sealed_ms: int = -1
    bucket_splits: tuple[int, ...] = ()
    """First slots of the buckets after bucket 0, ascending; empty means one bucket."""
    legacy_topic: str | None = None
    """Name of the classic topic that stores the messages; None if the segment has its own log."""
    store: int = 0
    """The store that holds the log for its whole life."""

    @property
    def active(self) -> bool:
        """Whether the segment takes messages."""
        return self.state is SegmentState.ACTIVE

    @property
    def is_classic(self) -> bool:
        """Whether a classic topic, rather than a segment's own log, holds the messages."""
        return self.legacy_topic is not None

    @property
    def bucket_count(self) -> int:
        return len(self.bucket_splits) + 1

    def shares_keys(self, other: Segment) -> bool:
        """Return whether a key may lie in both segments.

        The keys of a classic topic lie anywhere on the ring.
        """
        return self.is_classic or self.range.overlaps(other.range)


@dataclass(frozen=True)
class Layout:
    """The segments of a topic by id, without pruned ones."""

    epoch: int
    next_id: int
    segments: Mapping[int, Segment]
    pruned: Mapping[int, PrunedSegment] = field(default_factory=dict)
    """The newest pruned segments whose final position is known, by id."""
    by_low_half: bool = False
    """Whether the low half of a key's hash picks its segment, as at brokers of Pulsar 5.0.0-M1."""

    @staticmethod
    def initial(count: int, *, now_ms: int, bucket_budget: int = 4, first_id: int = 0) -> Layout:
        """Return the layout of a new topic; its segments share the bucket budget."""
        ranges = initial_ranges(count)
        splits = equal_bucket_splits(min(MAX_BUCKETS, max(1, bucket_budget // count)))
        segments = {
            id_: Segment(id_, part, created_ms=now_ms, bucket_splits=splits)
            for id_, part in enumerate(ranges, first_id)
        }
        return Layout(0, first_id + count, segments)

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The segments that take messages, by range."""
        found = (segment for segment in self.segments.values() if segment.active)
        return tuple(sorted(found, key=lambda segment: (segment.range, segment.id)))

    @cached_property
    def sealed(self) -> tuple[Segment, ...]:
        """The segments that take no more messages, by id: parents come before children."""
        found = (segment for segment in self.segments.values() if not segment.active)
        return tuple(sorted(found, key=lambda segment: segment.id))

    def segment(self, id_: int) -> Segment:
        """Return the segment with this id; raises SegmentNotFoundError."""
        try:
            return self.segments[id_]
        except KeyError:
            active = [str(segment.id) for segment in self.active]
            some = ", ".join(active[:IDS_NAMED]) + (", ..." if len(active) > IDS_NAMED else "")
            raise SegmentNotFoundError(
                f"the layout of epoch {self.epoch} has no segment {id_}; active segments: {some or 'none'}"
            ) from None

    def reserve(self, count: int) -> Layout:
        """Return the same layout with `count` ids reserved; a later operation takes them by `first_id`."""
        if count < 0:
            raise LayoutError(f"cannot reserve {count} ids")
        return replace(self, next_id=self.next_id + count)

    def split(
        self, id_: int, points: Sequence[int] | None = None, *, now_ms: int, first_id: int | None = None
    ) -> Layout:
        """Seal a segment and create a child for each part of its range, two halves unless points are given.

        Points are the first slots of the children after the first. The lowest part gets the lowest id.
        """
        parent = self._to_seal(id_)
        if parent.range.width == 1:
            raise LayoutError(f"segment {id_} covers the single slot {parent.range} and cannot be split")
        ranges = parent.range.halves() if points is None else parent.range.split(points)
        splits = equal_bucket_splits(max(1, parent.bucket_count // len(ranges)))
        return self._succeed((parent,), [(part, splits) for part in ranges], now_ms, first_id)

    def merge(self, ids: Iterable[int], *, now_ms: int, first_id: int | None = None) -> Layout:
        """Seal a run of neighbours, given in any order, and create one child over all of them."""
        given = tuple(ids)
        if len(given) < 2 or len(set(given)) < len(given):
            raise LayoutError(f"a merge takes two or more different segments, not {list_ids(given)}")
        parents = sorted((self._to_seal(id_) for id_ in given), key=lambda segment: segment.range)
        for left, right in pairwise(parents):
            if not left.range.touches(right.range):
                raise LayoutError(
                    f"segments {left.id} ({left.range}) and {right.id} ({right.range}) are not neighbours"
                )
        joined = HashRange.join(parent.range for parent in parents)
        buckets = min(MAX_BUCKETS, sum(parent.bucket_count for parent in parents))
        return self._succeed(tuple(parents), [(joined, equal_bucket_splits(buckets))], now_ms, first_id)

    def rebucket(
        self, id_: int, splits: Sequence[int], *, now_ms: int, first_id: int | None = None
    ) -> Layout:
        """Seal a segment and create one child over the same range with these bucket boundaries."""
        parent = self._to_seal(id_)
        wrong = check_bucket_splits(splits)
        if wrong:
            raise LayoutError(f"segment {id_} cannot be rebucketed: {wrong}")
        if tuple(splits) == parent.bucket_splits:
            raise LayoutError(f"segment {id_} has these bucket boundaries already")
        return self._succeed((parent,), [(parent.range, tuple(splits))], now_ms, first_id)

    def renew(self, id_: int, *, now_ms: int, first_id: int | None = None) -> Layout:
        """Seal a segment and create one child over the same range with the same bucket boundaries."""
        parent = self._to_seal(id_)
        return self._succeed((parent,), [(parent.range, parent.bucket_splits)], now_ms, first_id)

    def migrate(self, splits: Sequence[int] = (), *, now_ms: int, first_id: int | None = None) -> Layout:
        """Seal the classic topics that store all messages so far, and create as many segments over the ring.

        The keys of a classic topic lie anywhere on the ring. So each classic topic gets the whole ring when
        it is sealed, and every new segment descends from all of them.
        """
        if not self.active or any(not segment.is_classic for segment in self.active):
            raise LayoutError("only a topic whose active segments are all classic topics can be migrated")
        parents = tuple(replace(segment, range=FULL) for segment in self.active)
        ranges = initial_ranges(len(parents))
        return self._succeed(parents, [(part, tuple(splits)) for part in ranges], now_ms, first_id)

    def prune(self, ids: Iterable[int], ends: Mapping[int, int] | None = None) -> Layout:
        """Remove sealed segments; a segment may go only together with all its ancestors.

        `ends` has the index after the last message of each removed segment, as far as it is known.
        """
        gone = frozenset(ids)
        if not gone:
            raise LayoutError("a prune needs at least one segment")
        for id_ in sorted(gone):
            segment = self.segment(id_)
            if segment.active:
                raise LayoutError(f"segment {id_} is active; only sealed segments can be pruned")
            kept = self.ancestors(id_) - gone
            if kept:
                raise LayoutError(
                    f"segment {id_} cannot be pruned before its ancestors {list_ids(sorted(kept))}"
                )
        left = {
            id_: _without_links(segment, gone) for id_, segment in self.segments.items() if id_ not in gone
        }
        now = {
            id_: PrunedSegment(id_, self.segments[id_].range, self.segments[id_].children, end)
            for id_, end in (ends or {}).items()
            if id_ in gone
        }
        return Layout(self.epoch + 1, self.next_id, left, newest_of({**self.pruned, **now}))

    def ancestors(self, id_: int) -> frozenset[int]:
        """Return the ids of all segments that this one descends from, without pruned ones."""
        return self._reach(id_, lambda segment: segment.parents)

    def descendants(self, id_: int) -> frozenset[int]:
        """Return the ids of all segments that descend from this one."""
        return self._reach(id_, lambda segment: segment.children)

    def _reach(self, id_: int, links: _Links) -> frozenset[int]:
        found: set[int] = set()
        waiting = list(links(self.segment(id_)))
        while waiting:
            next_id = waiting.pop()
            if next_id not in found:
                found.add(next_id)
                waiting.extend(links(self.segment(next_id)))
        return frozenset(found)

    def _to_seal(self, id_: int) -> Segment:
        segment = self.segment(id_)
        if not segment.active:
            raise LayoutError(
                f"segment {id_} is sealed already; its children are {list_ids(segment.children)}"
            )
        return segment

    def _succeed(
        self,
        parents: tuple[Segment, ...],
        children: Sequence[tuple[HashRange, tuple[int, ...]]],
        now_ms: int,
        first_id: int | None,
    ) -> Layout:
        first = self.next_id if first_id is None else first_id
        ids = tuple(range(first, first + len(children)))
        newest = max(self.segments)
        if first <= newest:
            raise LayoutError(f"id {first} is not free: new ids must be above {newest}")
        epoch = self.epoch + 1
        segments = dict(self.segments)
        for parent in parents:
            segments[parent.id] = replace(
                parent, state=SegmentState.SEALED, children=ids, sealed_epoch=epoch, sealed_ms=now_ms
            )
        parent_ids = tuple(parent.id for parent in parents)
        for id_, (part, splits) in zip(ids, children, strict=True):
            segments[id_] = Segment(
                id_, part, parents=parent_ids, created_epoch=epoch, created_ms=now_ms, bucket_splits=splits
            )
        return Layout(epoch, max(self.next_id, first + len(children)), segments, self.pruned)


_Links = Callable[[Segment], tuple[int, ...]]


def _without_links(segment: Segment, gone: Collection[int]) -> Segment:
    # A child of a kept segment is never pruned, because its parent would be pruned first.
    parents = tuple(id_ for id_ in segment.parents if id_ not in gone)
    return segment if parents == segment.parents else replace(segment, parents=parents)


def list_ids(ids: Iterable[int]) -> str:
    """Return the ids as an error text shows them."""
    return ", ".join(map(str, ids)) or "none"
