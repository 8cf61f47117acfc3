"""Finds faults of a layout, and of a step from one layout to the next."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.model.hashing import check_bucket_splits
from anabranch.model.layout import Layout, Segment, list_ids
from anabranch.model.ranges import FULL


def check(layout: Layout) -> tuple[str, ...]:
    """One sentence for each fault of a layout; empty when it is sound."""
    wrong = [*_check_tiling(layout)]
    for id_, segment in sorted(layout.segments.items()):
        wrong += _check_segment(layout, id_, segment)
    return tuple(wrong)


def check_step(before: Layout, after: Layout) -> tuple[str, ...]:
    """One sentence for each fault of a step to a later layout: it may prune segments, never rewrite them."""
    wrong = [*check(after)]
    if after.epoch <= before.epoch:
        wrong.append(f"epoch {after.epoch} does not rise above {before.epoch}")
    if after.next_id < before.next_id:
        wrong.append(f"next id falls from {before.next_id} to {after.next_id}")
    for id_, old in sorted(before.segments.items()):
        new = after.segments.get(id_)
        wrong += _check_pruned(before, after, old) if new is None else _check_kept(old, new)
    for id_ in sorted(set(after.segments) - set(before.segments)):
        if any(id_ <= old for old in before.segments):
            wrong.append(f"id {id_} of a new segment is not above the ids before")
    return tuple(wrong)


def _check_pruned(before: Layout, after: Layout, old: Segment) -> Iterable[str]:
    heirs = (segment for segment in after.active if segment.range.overlaps(old.range))
    if old.active and any(heir.id in before.segments for heir in heirs):
        yield f"active segment {old.id} vanished without a successor"


def _check_kept(old: Segment, new: Segment) -> Iterable[str]:
    migrated = old.active and not new.active and old.is_classic
    range_ = FULL if migrated else old.range
    same = (range_, old.bucket_splits, old.created_epoch, old.created_ms, old.legacy_topic)
    if same != (new.range, new.bucket_splits, new.created_epoch, new.created_ms, new.legacy_topic):
        yield f"segment {old.id} changed its range, buckets or origin"
    if not set(new.parents) <= set(old.parents):
        yield f"segment {old.id} gained parents"
    if not old.active and (new.active or new.children != old.children):
        yield f"sealed segment {old.id} changed its state or children"


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
            yield f"{name} is active and has children {list_ids(segment.children)}"
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
    yield from _check_parents(layout, segment)
    yield from _check_children(layout, segment)


def _check_parents(layout: Layout, segment: Segment) -> Iterable[str]:
    for parent_id in segment.parents:
        parent = layout.segments.get(parent_id)
        if parent is None:
            yield f"segment {segment.id} names the unknown parent {parent_id}"
            continue
        if segment.id not in parent.children:
            yield f"segment {segment.id} names parent {parent_id}, which does not name it as a child"
        if parent_id >= segment.id:
            # Ids that grow along every link rule out cycles too.
            yield f"segment {segment.id} is not above its parent {parent_id}"
        if parent.sealed_epoch != segment.created_epoch:
            yield f"segment {segment.id} was not created in the epoch that sealed its parent {parent_id}"
        if not parent.range.overlaps(segment.range):
            yield f"segment {segment.id} ({segment.range}) takes nothing from its parent {parent_id}"


def _check_children(layout: Layout, segment: Segment) -> Iterable[str]:
    for child_id in segment.children:
        child = layout.segments.get(child_id)
        if child is None:
            yield f"segment {segment.id} names the unknown child {child_id}"
        elif segment.id not in child.parents:
            yield f"segment {segment.id} names child {child_id}, which does not name it as a parent"


def _check_cover(layout: Layout, segment: Segment) -> Iterable[str]:
    # A child is pruned only after its parents, so an unpruned segment has all its children.
    known = [layout.segments[id_].range for id_ in segment.children if id_ in layout.segments]
    covered = segment.range.start
    for part in sorted(known):
        if part.start <= covered:
            covered = max(covered, part.end + 1)
    if covered <= segment.range.end:
        yield f"the children of sealed segment {segment.id} leave {covered} of {segment.range} uncovered"
