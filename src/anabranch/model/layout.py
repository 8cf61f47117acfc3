"""Segment and Layout: the DAG of a topic, and the ways it may change.

A layout is a value. `split`, `merge`, `rebucket`, `migrate` and `prune` return the next one and leave the old
one as it is. Nothing here knows where segments are stored, who reads them or why the layout changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from anabranch.errors import LayoutError, SegmentNotFoundError
from anabranch.model.hashing import MAX_BUCKETS, check_bucket_splits, equal_bucket_splits
from anabranch.model.ranges import FULL, HashRange, initial_ranges

IDS_NAMED = 8
"""Most segments that an error lists."""


class SegmentState(StrEnum):
    """There is deliberately no state in between."""

    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


@dataclass(frozen=True, slots=True)
class Segment:
    """One node of the DAG; range, parents and buckets never change while it lives.

    A classic topic shows some range while it is active, and the whole ring, where its keys are, from then on.
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
    """The classic topic that holds the data, when it is not stored as a segment."""
    store: int = 0
    """Which store holds the data, for as long as it exists."""

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


@dataclass(frozen=True)
class Layout:
    """All segments of a topic that are still known, by id; `check` says whether they form a sound DAG."""

    epoch: int
    next_id: int
    segments: Mapping[int, Segment]

    @staticmethod
    def initial(count: int, *, now_ms: int, bucket_budget: int = 4, first_id: int = 0) -> Layout:
        """The layout of a new topic; its segments share the bucket budget."""
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
        """The segment of this id; raises SegmentNotFoundError."""
        try:
            return self.segments[id_]
        except KeyError:
            active = [str(segment.id) for segment in self.active]
            some = ", ".join(active[:IDS_NAMED]) + (", ..." if len(active) > IDS_NAMED else "")
            raise SegmentNotFoundError(
                f"the layout of epoch {self.epoch} has no segment {id_}; active are {some or 'none'}"
            ) from None

    def reserve(self, count: int) -> Layout:
        """The same layout with `count` ids taken out of use; a later operation gets them by `first_id`."""
        if count < 0:
            raise LayoutError(f"cannot reserve {count} ids")
        return replace(self, next_id=self.next_id + count)

    def split(
        self, id_: int, points: Sequence[int] | None = None, *, now_ms: int, first_id: int | None = None
    ) -> Layout:
        """Seal a segment and put children over the parts of its range; in the middle unless points are given.

        Points are the first slots of the children after the first. The lowest part gets the lowest id.
        """
        parent = self._to_seal(id_)
        if parent.range.width == 1:
            raise LayoutError(f"segment {id_} covers the single slot {parent.range} and cannot be split")
        ranges = parent.range.halves() if points is None else parent.range.split(points)
        splits = equal_bucket_splits(max(1, parent.bucket_count // len(ranges)))
        return self._succeed((parent,), [(part, splits) for part in ranges], now_ms, first_id)

    def merge(self, ids: Iterable[int], *, now_ms: int, first_id: int | None = None) -> Layout:
        """Seal a run of neighbours, named in any order, and put one child over all of them."""
        given = tuple(ids)
        if len(given) < 2 or len(set(given)) < len(given):
            raise LayoutError(f"a merge takes two or more different segments, not {_list(given)}")
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
        """Seal a segment and put one child over the same range with these bucket boundaries."""
        parent = self._to_seal(id_)
        wrong = check_bucket_splits(splits)
        if wrong:
            raise LayoutError(f"segment {id_} cannot be rebucketed: {wrong}")
        if tuple(splits) == parent.bucket_splits:
            raise LayoutError(f"segment {id_} has these bucket boundaries already")
        return self._succeed((parent,), [(parent.range, tuple(splits))], now_ms, first_id)

    def migrate(self, splits: Sequence[int] = (), *, now_ms: int, first_id: int | None = None) -> Layout:
        """Seal the classic topics that hold everything so far and put as many segments over the ring.

        The keys of a classic topic come from anywhere on the ring, and only while all of them are active are
        they routed in another way than by range. So each gets the whole ring when it is sealed, and every new
        segment descends from all of them.
        """
        if not self.active or any(not segment.is_classic for segment in self.active):
            raise LayoutError("only a topic whose active segments are all classic topics can be migrated")
        parents = tuple(replace(segment, range=FULL) for segment in self.active)
        ranges = initial_ranges(len(parents))
        return self._succeed(parents, [(part, tuple(splits)) for part in ranges], now_ms, first_id)

    def prune(self, ids: Iterable[int]) -> Layout:
        """Forget sealed segments, oldest first: no ancestor of a forgotten segment may stay."""
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
                    f"segment {id_} cannot be pruned before its ancestors {_list(sorted(kept))}"
                )
        left = {
            id_: _without_links(segment, gone) for id_, segment in self.segments.items() if id_ not in gone
        }
        return Layout(self.epoch + 1, self.next_id, left)

    def ancestors(self, id_: int) -> frozenset[int]:
        """Ids of all segments this one descends from, as far as the layout still knows them."""
        return self._reach(id_, lambda segment: segment.parents)

    def descendants(self, id_: int) -> frozenset[int]:
        """Ids of all segments that descend from this one."""
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
            raise LayoutError(f"segment {id_} is sealed already; its children are {_list(segment.children)}")
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
        return Layout(epoch, max(self.next_id, first + len(children)), segments)


_Links = Callable[[Segment], tuple[int, ...]]


def check(layout: Layout) -> tuple[str, ...]:
    """Everything that is wrong with a layout, in words; empty when it is sound."""
    wrong = [*_check_tiling(layout)]
    for id_, segment in sorted(layout.segments.items()):
        wrong += _check_segment(layout, id_, segment)
    return tuple(wrong)


def check_step(before: Layout, after: Layout) -> tuple[str, ...]:
    """What is wrong with a step from one layout to a later one: history may be pruned, never rewritten."""
    wrong = [*check(after)]
    if after.epoch <= before.epoch:
        wrong.append(f"epoch {after.epoch} does not rise above {before.epoch}")
    if after.next_id < before.next_id:
        wrong.append(f"next id falls from {before.next_id} to {after.next_id}")
    for id_, old in sorted(before.segments.items()):
        new = after.segments.get(id_)
        if new is None:
            heirs = (segment for segment in after.active if segment.range.overlaps(old.range))
            if old.active and any(heir.id in before.segments for heir in heirs):
                wrong.append(f"active segment {id_} vanished without a successor")
            continue
        migrated = old.active and not new.active and old.is_classic
        range_ = FULL if migrated else old.range
        same = (range_, old.bucket_splits, old.created_epoch, old.created_ms, old.legacy_topic)
        if same != (new.range, new.bucket_splits, new.created_epoch, new.created_ms, new.legacy_topic):
            wrong.append(f"segment {id_} changed its range, buckets or origin")
        if not set(new.parents) <= set(old.parents):
            wrong.append(f"segment {id_} gained parents")
        if not old.active and (new.active or new.children != old.children):
            wrong.append(f"sealed segment {id_} changed its state or children")
    for id_ in sorted(set(after.segments) - set(before.segments)):
        if any(id_ <= old for old in before.segments):
            wrong.append(f"id {id_} of a new segment is not above the ids before")
    return tuple(wrong)


def _check_tiling(layout: Layout) -> Iterable[str]:
    expected = 0
    for segment in layout.active:
        if segment.range.start != expected:
            yield f"active segment {segment.id} starts at {segment.range.start}, not at {expected}"
        expected = segment.range.end + 1
    if expected != FULL.end + 1:
        yield f"active segments end at {expected - 1}, not at {FULL.end}"


def _check_segment(layout: Layout, id_: int, segment: Segment) -> Iterable[str]:
    name = f"segment {id_}"
    if segment.id != id_:
        yield f"{name} is listed under another id, its own is {segment.id}"
    if not 0 <= segment.id < layout.next_id:
        yield f"{name} has an id outside 0 to {layout.next_id - 1}"
    wrong = check_bucket_splits(segment.bucket_splits)
    if wrong:
        yield f"{name}: {wrong}"
    if not 0 <= segment.created_epoch <= layout.epoch:
        yield f"{name} was created at epoch {segment.created_epoch} of {layout.epoch}"
    if segment.active:
        if segment.children:
            yield f"{name} is active and has children {_list(segment.children)}"
        if (segment.sealed_epoch, segment.sealed_ms) != (-1, -1):
            yield f"{name} is active and has a time of sealing"
    else:
        if not segment.created_epoch <= segment.sealed_epoch <= layout.epoch:
            yield f"{name} was sealed at epoch {segment.sealed_epoch}, created at {segment.created_epoch}"
        yield from _check_cover(layout, segment)
    yield from _check_links(layout, segment)


def _check_links(layout: Layout, segment: Segment) -> Iterable[str]:
    for links, kind in ((segment.parents, "parent"), (segment.children, "child")):
        if len(set(links)) < len(links):
            yield f"segment {segment.id} names a {kind} twice"
    for parent_id in segment.parents:
        parent = layout.segments.get(parent_id)
        if parent is None:
            yield f"segment {segment.id} names the unknown parent {parent_id}"
            continue
        if segment.id not in parent.children:
            yield f"segment {segment.id} names parent {parent_id}, which does not name it as a child"
        if parent_id >= segment.id:
            # Ids that grow along every link also rule out cycles.
            yield f"segment {segment.id} is not above its parent {parent_id}"
        if parent.sealed_epoch != segment.created_epoch:
            yield f"segment {segment.id} was not created in the epoch that sealed its parent {parent_id}"
        if not parent.range.overlaps(segment.range):
            yield f"segment {segment.id} ({segment.range}) takes nothing from its parent {parent_id}"
    for child_id in segment.children:
        child = layout.segments.get(child_id)
        if child is None:
            yield f"segment {segment.id} names the unknown child {child_id}"
        elif segment.id not in child.parents:
            yield f"segment {segment.id} names child {child_id}, which does not name it as a parent"


def _check_cover(layout: Layout, segment: Segment) -> Iterable[str]:
    # A child is pruned only after its parents, so the children of a segment that is still here are all here.
    known = [layout.segments[id_].range for id_ in segment.children if id_ in layout.segments]
    covered = segment.range.start
    for part in sorted(known):
        if part.start <= covered:
            covered = max(covered, part.end + 1)
    if covered <= segment.range.end:
        yield f"the children of sealed segment {segment.id} leave {covered} of {segment.range} uncovered"


def _without_links(segment: Segment, gone: Collection[int]) -> Segment:
    # Children of a kept segment are never among the gone: they would be pruned before their parent.
    parents = tuple(id_ for id_ in segment.parents if id_ not in gone)
    return segment if parents == segment.parents else replace(segment, parents=parents)


def _list(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids)) or "none"
