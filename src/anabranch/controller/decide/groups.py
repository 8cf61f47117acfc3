"""The group of one subscription: pure functions from its stored record to its next record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from anabranch.controller.decide.operation import segment_name
from anabranch.metadata.records import (
    AssignedRecord,
    ConsumerRecord,
    InitialPosition,
    RangeRecord,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.assignment import Assigned, AssignedSegment, Assignment, assign
from anabranch.model.drains import ALL, NO_PARTS, Parts, Ranges, open_buckets, open_slots, union
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.rights.names import is_foreign

Load = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A registering consumer, as it describes itself."""

    kind: SubscriptionKind = "STREAM"
    start: InitialPosition | None = None
    """The position of a new subscription; without one, the first consumer with a position gives it one."""
    whole: bool = False
    """Whether its client reads only whole segments, not buckets."""
    finished: tuple[int, ...] | None = None
    """In a checkpoint group: the segments it has read to the end; None if its client does not report them."""
    address: str = ""
    instance: int | None = None
    """Distinguishes it from other consumers of its name; None if its client sends none."""
    attempt: int = 0
    """Rises each time the same instance registers on another connection."""
    opened_in: int | None = None
    """The incarnation of the topic in which it opened the subscription, which is not recreated there."""
    principal: str = ""
    """The role that the consumer's name belongs to; empty without authentication."""

    def returns(self, former: RegistrationRequest) -> bool:
        """Whether the consumer of the `former` request has come back with this one, and not the reverse."""
        same = self.instance is not None and self.instance == former.instance
        return same and self.attempt >= former.attempt

    def is_foreign_to(self, former: RegistrationRequest) -> bool:
        """Whether the name of the `former` request belongs to another role."""
        return is_foreign(former.principal, self.principal)


PLAIN_REQUEST = RegistrationRequest()


def join(
    record: SubscriptionRecord,
    layout: Layout,
    name: str,
    load: Load,
    request: RegistrationRequest = PLAIN_REQUEST,
) -> SubscriptionRecord:
    """The group with one more consumer, or with a new description of a member."""
    known = record.consumers.get(name, ConsumerRecord())
    member = msgspec.structs.replace(
        known,
        whole=request.whole,
        finished=request.finished,
        instance=request.instance,
        principal=request.principal,
    )
    if record.consumers.get(name) == member:
        return record
    joined = {**record.consumers, name: member}
    return reassign(msgspec.structs.replace(record, consumers=joined), layout, load)


def leave(record: SubscriptionRecord, layout: Layout, name: str, load: Load) -> SubscriptionRecord:
    """The group without one of its consumers, whose segments go to the other members."""
    if name not in record.consumers:
        return record
    left = {other: held for other, held in record.consumers.items() if other != name}
    # The generation rises even if no member is left, because owners of segments order rosters by it.
    without = msgspec.structs.replace(record, consumers=left, generation=record.generation + 1)
    return reassign(without, layout, load, _held(record))


def drain(
    record: SubscriptionRecord, layout: Layout, ids: Iterable[int], load: Load, parts: Parts = NO_PARTS
) -> SubscriptionRecord:
    """The group after it has drained these sealed segments, and these slots of other segments."""
    known = drained_parts(record)
    more = {id_: union((*known.get(id_, ()), *slots)) for id_, slots in parts.items()}
    return rewind(record, layout, {*record.drained, *ids}, load, {**known, **more})


def rewind(
    record: SubscriptionRecord, layout: Layout, drained: Iterable[int], load: Load, parts: Parts = NO_PARTS
) -> SubscriptionRecord:
    """The group when exactly these segments and slots count as drained; children of others wait again."""
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
    """The group when this segment and its descendants count as undrained; None means all segments."""
    if segment_id is None or segment_id not in layout.segments:
        return rewind(record, layout, (), load)
    again = {segment_id, *layout.descendants(segment_id)}
    kept = [id_ for id_ in record.drained if id_ not in again]
    parts = {id_: part for id_, part in drained_parts(record).items() if id_ not in again}
    return rewind(record, layout, kept, load, parts)


def drained_parts(record: SubscriptionRecord) -> dict[int, Ranges]:
    """The slots drained of each segment that is not drained as a whole."""
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
    """The group with its segments assigned for this layout; the same record if nothing changes.

    Only consumers whose segments change get the new generation; the others read on undisturbed. `before` has
    the former assignments if the record lacks some because a member left.
    """
    drained = tuple(id_ for id_ in record.drained if id_ in layout.segments)
    parts = {id_: ranges for id_, ranges in record.partly_drained.items() if id_ in layout.segments}
    if (drained, parts) != (record.drained, record.partly_drained):
        record = msgspec.structs.replace(record, drained=drained, partly_drained=parts)
    held = _held(record)
    given = _assign(record, layout, held if before is None else before, load)
    generation = record.generation + 1
    consumers = {
        name: consumer
        if consumer.generation and given[name] == held[name]
        else msgspec.structs.replace(
            consumer,
            generation=generation,
            joined=consumer.joined or generation,
            segments=tuple(AssignedRecord(segment_id=a.segment, shared=a.shared) for a in given[name]),
        )
        for name, consumer in record.consumers.items()
    }
    if consumers == record.consumers:
        return record
    return msgspec.structs.replace(record, consumers=consumers, generation=generation)


def _held(record: SubscriptionRecord) -> dict[str, tuple[Assigned, ...]]:
    return {
        name: tuple(Assigned(held.segment_id, held.shared) for held in consumer.segments)
        for name, consumer in record.consumers.items()
    }


def shares(record: SubscriptionRecord) -> bool:
    """Whether members may share segments by buckets: if the clients of all members can."""
    return record.type == "STREAM" and not any(consumer.whole for consumer in record.consumers.values())


def members_max(records: Iterable[SubscriptionRecord], *, sharing: bool) -> int:
    """The most members of one group that can share a segment by buckets, or that cannot."""
    return max((len(record.consumers) for record in records if shares(record) == sharing), default=0)


def _assign(
    record: SubscriptionRecord, layout: Layout, before: Mapping[str, tuple[Assigned, ...]], load: Load
) -> dict[str, tuple[Assigned, ...]]:
    names = sorted(record.consumers)
    if record.type != "CHECKPOINT":
        drained, parts = frozenset(record.drained), drained_parts(record)
        return assign(layout, names, drained, before, load, share=shares(record), parts=parts)
    # A checkpoint group keeps its own positions, so only its members know which segments they finished. After
    # a member left, the segments it finished have to be read again.
    finished = finished_by_group(record)
    if finished is not None:
        return assign(layout, names, finished, before, load, share=False)
    # If a member does not report them, the group gets the whole DAG, and each member orders its own segments.
    unlinked = {id_: replace(segment, parents=(), children=()) for id_, segment in layout.segments.items()}
    flat = Layout(layout.epoch, layout.next_id, unlinked)
    return assign(flat, names, frozenset(), _with_heirs(layout, before), load, share=False)


def finished_by_group(record: SubscriptionRecord) -> frozenset[int] | None:
    """The segments that the members of a checkpoint group have finished; None if a member does not report."""
    reports = [consumer.finished for consumer in record.consumers.values()]
    if any(finished is None for finished in reports):
        return None
    return frozenset(id_ for finished in reports for id_ in finished or ())


def _with_heirs(
    layout: Layout, before: Mapping[str, tuple[Assigned, ...]]
) -> Mapping[str, tuple[Assigned, ...]]:
    """Assign the children of a consumer's segments to it too, so that it is preferred for them."""
    readers = {held.segment: name for name, given in before.items() for held in given}
    inherited: dict[str, tuple[Assigned, ...]] = dict(before)
    for id_ in sorted(layout.segments):
        reader = next((readers[p] for p in layout.segments[id_].parents if p in readers), None)
        if id_ not in readers and reader is not None:
            readers[id_] = reader
            inherited[reader] = (*inherited[reader], Assigned(id_))
    return inherited


def assignment(record: SubscriptionRecord, layout: Layout, topic: TopicName, name: str) -> Assignment:
    """The assignment of a consumer; one that is no member reads nothing."""
    consumer = record.consumers.get(name)
    if consumer is None:
        return Assignment(layout.epoch, record.generation)
    segments = []
    for held in consumer.segments:
        segment = layout.segments.get(held.segment_id)
        if segment is not None:
            shared = bucket_ranges(segment.bucket_splits) if held.shared else ()
            segments.append(
                AssignedSegment(segment.id, segment.range, str(segment_name(topic, segment)), shared)
            )
    return Assignment(layout.epoch, consumer.generation, tuple(segments))


def has_cursors(record: SubscriptionRecord) -> bool:
    """Whether the subscription has cursors on segments, so that owners know what is drained."""
    return record.type != "CHECKPOINT" and record.initial_position is not None


def open_parts(record: SubscriptionRecord) -> Parts:
    """The drained slots that open parts of children; none while a member reads only whole segments."""
    return drained_parts(record) if shares(record) else NO_PARTS


def slots_of(record: SubscriptionRecord, layout: Layout) -> dict[int, Ranges]:
    """The slots of each segment that all its ancestors have drained; walks the whole layout."""
    return open_slots(layout, frozenset(record.drained), open_parts(record))


def open_for(
    record: SubscriptionRecord, layout: Layout, id_: int, slots: Mapping[int, Ranges] | None = None
) -> Ranges | None:
    """The buckets of a segment that may be read now, None for all; `slots` saves a call of `slots_of`."""
    if record.type != "STREAM":
        return None
    known = slots_of(record, layout) if slots is None else slots
    buckets = open_buckets(layout.segment(id_), known.get(id_, ()))
    return None if buckets == ALL else buckets


def open_by_buckets(record: SubscriptionRecord, layout: Layout) -> dict[int, Ranges]:
    """The segments that members read by buckets, each with the buckets that are open."""
    given = {held.segment_id for c in record.consumers.values() for held in c.segments if held.shared}
    if not given:
        return {}
    slots = slots_of(record, layout)
    return {id_: open_buckets(layout.segments[id_], slots[id_]) for id_ in sorted(given) if id_ in slots}
