"""The group of one subscription: pure functions from its stored record to its next record.

Example: `a` alone reads the active segments 0 to 3 in generation 1. When `b` joins, generation 2 moves two of
them to `b`, and `a` keeps the other two. When segment 0 is then split and drained, only its reader
gets generation 3; the other member reads on undisturbed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from anabranch.controller.decide import checkpoint_groups
from anabranch.controller.decide.operation import segment_name
from anabranch.controller.decide.registration_request import PLAIN_REQUEST, RegistrationRequest
from anabranch.metadata.records import (
    AssignedRecord,
    ConsumerRecord,
    RangeRecord,
    SubscriptionRecord,
)
from anabranch.model.assignment import Assigned, AssignedSegment, Assignment, assign
from anabranch.model.drains import ALL, NO_PARTS, Parts, Ranges, open_buckets, open_slots, union
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange

Load = Mapping[int, float]


def join(
    record: SubscriptionRecord,
    layout: Layout,
    name: str,
    load: Load,
    request: RegistrationRequest = PLAIN_REQUEST,
) -> SubscriptionRecord:
    """Return the group with one more consumer, or with a new description of a member."""
    before, by_buckets = record, True
    if record.type == "CHECKPOINT":
        by_buckets = request.positions is not None
        record = checkpoint_groups.reported(record, name, request)
    known = record.consumers.get(name, ConsumerRecord())
    member = msgspec.structs.replace(
        known,
        whole=request.whole or not by_buckets,
        finished=_believed(record, name, request),
        partly_finished=request.partly_finished,
        instance=request.instance,
        principal=request.principal,
    )
    if record is before and record.consumers.get(name) == member:
        return record
    joined = {**record.consumers, name: member}
    return reassign(msgspec.structs.replace(record, consumers=joined), layout, load)


def _believed(record: SubscriptionRecord, name: str, request: RegistrationRequest) -> tuple[int, ...] | None:
    """Return the finished segments of a request, without those that other members still read.

    The start of a new member may exclude a segment that the others have not finished.
    """
    if record.type != "CHECKPOINT" or request.finished is None:
        return request.finished
    known = record.consumers.get(name)
    held = {a.segment_id for n, other in record.consumers.items() if n != name for a in other.segments}
    if known is not None:
        held -= {a.segment_id for a in known.segments}.union(known.finished or ())
    return tuple(id_ for id_ in request.finished if id_ not in held)


def leave(record: SubscriptionRecord, layout: Layout, name: str, load: Load) -> SubscriptionRecord:
    """Return the group without one of its consumers. Its segments go to the other members."""
    if name not in record.consumers:
        return record
    left = {other: held for other, held in record.consumers.items() if other != name}
    # The generation rises even if no member is left, because the owners of segments order rosters by it.
    without = msgspec.structs.replace(record, consumers=left, generation=record.generation + 1)
    if not left:
        without = checkpoint_groups.begin_anew(without)
    return reassign(without, layout, load, _held(record))


def drain(
    record: SubscriptionRecord, layout: Layout, ids: Iterable[int], load: Load, parts: Parts = NO_PARTS
) -> SubscriptionRecord:
    """Return the group after it has drained these sealed segments, and these slots of other segments."""
    known = drained_parts(record)
    more = {id_: union((*known.get(id_, ()), *slots)) for id_, slots in parts.items()}
    return rewind(record, layout, {*record.drained, *ids}, load, {**known, **more})


def rewind(
    record: SubscriptionRecord, layout: Layout, drained: Iterable[int], load: Load, parts: Parts = NO_PARTS
) -> SubscriptionRecord:
    """Return the group with exactly these segments and slots drained. Children of others wait again."""
    whole = {*drained, *(id_ for id_, slots in parts.items() if slots == ALL)}
    left = {id_: slots for id_, slots in sorted(parts.items()) if slots and id_ not in whole}
    stored = {id_: tuple(RangeRecord(start=r.start, end=r.end) for r in slots) for id_, slots in left.items()}
    ids = tuple(sorted(whole))
    if (ids, stored) != (record.drained, record.partly_drained):
        record = msgspec.structs.replace(record, drained=ids, partly_drained=stored)
    return reassign(record, layout, load)


def read_again(
    record: SubscriptionRecord, layout: Layout, segment_id: int | None, load: Load
) -> SubscriptionRecord:
    """Return the group with this segment and its descendants undrained; None means all segments."""
    if segment_id is None or segment_id not in layout.segments:
        return rewind(record, layout, (), load)
    again = {segment_id, *layout.descendants(segment_id)}
    kept = [id_ for id_ in record.drained if id_ not in again]
    parts = {id_: part for id_, part in drained_parts(record).items() if id_ not in again}
    return rewind(record, layout, kept, load, parts)


def drained_parts(record: SubscriptionRecord) -> dict[int, Ranges]:
    """Return the drained slots of each segment that is not drained as a whole."""
    return {
        id_: tuple(HashRange(part.start, part.end) for part in ranges)
        for id_, ranges in record.partly_drained.items()
    }


def reassign(
    record: SubscriptionRecord,
    layout: Layout,
    load: Load,
    before: Mapping[str, tuple[Assigned, ...]] | None = None,
) -> SubscriptionRecord:
    """Return the group with its segments assigned for this layout; the same record if nothing changes.

    Only consumers whose segments change get the new generation; the others read on undisturbed. `before` has
    the former assignments if the record lacks some because a member left.
    """
    drained = tuple(id_ for id_ in record.drained if id_ in layout.segments)
    parts = {id_: ranges for id_, ranges in record.partly_drained.items() if id_ in layout.segments}
    if (drained, parts) != (record.drained, record.partly_drained):
        record = msgspec.structs.replace(record, drained=drained, partly_drained=parts)
    if record.type == "CHECKPOINT":
        record = checkpoint_groups.keep_listed(record, layout)
    assigned = _assign(record, layout, _held(record) if before is None else before, load)
    given = _stored(record, layout, assigned)
    generation = record.generation + 1
    consumers = {
        name: consumer
        if consumer.generation and given[name] == (consumer.segments, consumer.leaving)
        else msgspec.structs.replace(
            consumer,
            generation=generation,
            joined=consumer.joined or generation,
            segments=given[name][0],
            leaving=given[name][1],
        )
        for name, consumer in record.consumers.items()
    }
    if consumers == record.consumers:
        return record
    return msgspec.structs.replace(record, consumers=consumers, generation=generation)


def _stored(
    record: SubscriptionRecord, layout: Layout, given: Mapping[str, tuple[Assigned, ...]]
) -> Mapping[str, checkpoint_groups.Share]:
    if record.type == "CHECKPOINT":
        return checkpoint_groups.with_buckets(record, layout, given)
    return {
        name: (tuple(AssignedRecord(segment_id=a.segment, shared=a.shared) for a in held), {})
        for name, held in given.items()
    }


def _held(record: SubscriptionRecord) -> dict[str, tuple[Assigned, ...]]:
    return {
        name: tuple(Assigned(held.segment_id, held.shared) for held in consumer.segments)
        for name, consumer in record.consumers.items()
    }


def shares(record: SubscriptionRecord) -> bool:
    """Return whether members may share segments by buckets, which all their clients must support."""
    if record.type == "QUEUE" or any(consumer.whole for consumer in record.consumers.values()):
        return False
    # Without committed positions, a bucket that moves would be read again from its start.
    return record.type == "STREAM" or record.commits


def members_max(records: Iterable[SubscriptionRecord], *, sharing: bool) -> int:
    """Return the maximum number of group members that can share a segment by buckets, or that cannot."""
    return max((len(record.consumers) for record in records if shares(record) == sharing), default=0)


def _assign(
    record: SubscriptionRecord, layout: Layout, before: Mapping[str, tuple[Assigned, ...]], load: Load
) -> dict[str, tuple[Assigned, ...]]:
    names = sorted(record.consumers)
    if record.type != "CHECKPOINT":
        drained, parts = frozenset(record.drained), drained_parts(record)
        return assign(layout, names, drained, before, load, share=shares(record), parts=parts)
    return checkpoint_groups.assign_to_members(record, layout, before, load, share=shares(record))


def finished_by_group(record: SubscriptionRecord) -> frozenset[int] | None:
    """Return the segments that a checkpoint group has finished, or None if a member does not report."""
    done = checkpoint_groups.progress(record)
    return None if done is None else done.finished


def assignment(record: SubscriptionRecord, layout: Layout, topic: TopicName, name: str) -> Assignment:
    """Return the assignment of a consumer. A consumer that is not a member reads nothing."""
    consumer = record.consumers.get(name)
    if consumer is None:
        return Assignment(layout.epoch, record.generation)
    segments = []
    for held in consumer.segments:
        segment = layout.segments.get(held.segment_id)
        if segment is None:
            continue
        shared = bucket_ranges(segment.bucket_splits) if held.shared else ()
        if record.type == "CHECKPOINT" and held.shared:
            # The owner of the segment does not know the group, so the member has to know its own buckets.
            shared = checkpoint_groups.ranges_of(held.buckets)
            if not shared:
                continue
        segments.append(AssignedSegment(segment.id, segment.range, str(segment_name(topic, segment)), shared))
    leaving = tuple((id_, checkpoint_groups.ranges_of(slots)) for id_, slots in consumer.leaving.items())
    awaits = any(other.leaving for of, other in record.consumers.items() if of != name)
    return Assignment(layout.epoch, consumer.generation, tuple(segments), record.positions, leaving, awaits)


def has_cursors(record: SubscriptionRecord) -> bool:
    """Return whether the subscription has cursors on segments, so that owners know what is drained."""
    return record.type != "CHECKPOINT" and record.initial_position is not None


def open_parts(record: SubscriptionRecord) -> Parts:
    """Return the drained slots that open parts of children; none if a member reads only whole segments."""
    if not shares(record):
        return NO_PARTS
    if record.type == "CHECKPOINT":
        done = checkpoint_groups.progress(record)
        return NO_PARTS if done is None else done.parts
    return drained_parts(record)


def slots_of(record: SubscriptionRecord, layout: Layout) -> dict[int, Ranges]:
    """Return the slots of each segment that all its ancestors have drained. Walks the whole layout."""
    return open_slots(layout, frozenset(record.drained), open_parts(record))


def open_for(
    record: SubscriptionRecord, layout: Layout, id_: int, slots: Mapping[int, Ranges] | None = None
) -> Ranges | None:
    """Return the buckets of a segment that may be read now, None for all; `slots` saves a `slots_of` call."""
    if record.type != "STREAM":
        return None
    known = slots_of(record, layout) if slots is None else slots
    buckets = open_buckets(layout.segment(id_), known.get(id_, ()))
    return None if buckets == ALL else buckets


def open_by_buckets(record: SubscriptionRecord, layout: Layout) -> dict[int, Ranges]:
    """Return the segments that members read by buckets, each with its open buckets."""
    given = {held.segment_id for c in record.consumers.values() for held in c.segments if held.shared}
    if not given or record.type != "STREAM":
        return {}
    slots = slots_of(record, layout)
    return {id_: open_buckets(layout.segments[id_], slots[id_]) for id_ in sorted(given) if id_ in slots}
