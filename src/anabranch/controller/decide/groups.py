"""One subscription's consumers: who is a member, who reads what, what is drained.

Two pure halves. Functions over the stored record say what the next record is; `NameHolds` says which
connection holds a name, and for how long after it was lost. The shell stores, pushes and measures time, and
comes back with an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from anabranch.controller.decide.operation import segment_name
from anabranch.errors import ConsumerBusyError
from anabranch.metadata.records import AssignedRecord, ConsumerRecord, RangeRecord, SubscriptionRecord
from anabranch.model.assignment import Assigned, AssignedSegment, Assignment, assign, bucket_owners
from anabranch.model.drains import (
    ALL,
    NO_PARTS,
    Parts,
    Ranges,
    covers,
    open_buckets,
    open_slots,
    union,
)
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange

Load = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """What a consumer says of itself when it registers."""

    whole: bool = False
    """Whether its client can only read segments alone, not by buckets."""
    finished: tuple[int, ...] | None = None
    """In a checkpoint group: what it has read to the end; None when its client cannot tell."""
    address: str = ""
    instance: int | None = None
    """Tells it from others of its name, where its client says so."""
    attempt: int = 0
    """Rises each time the same instance registers on another connection."""
    opened_in: int | None = None
    """The incarnation of the topic in which it has opened the subscription: there it is not made again."""

    def returns(self, former: RegistrationRequest) -> bool:
        """Whether this is the consumer that said the other, come back; not if that came back later."""
        same = self.instance is not None and self.instance == former.instance
        return same and self.attempt >= former.attempt


PLAIN_REQUEST = RegistrationRequest()


def join(
    record: SubscriptionRecord,
    layout: Layout,
    name: str,
    load: Load,
    said: RegistrationRequest = PLAIN_REQUEST,
) -> SubscriptionRecord:
    """The group with one more consumer, or with one that says something new of itself."""
    known = record.consumers.get(name, ConsumerRecord())
    told = msgspec.structs.replace(known, whole=said.whole, finished=said.finished, instance=said.instance)
    if record.consumers.get(name) == told:
        return record
    joined = {**record.consumers, name: told}
    return reassign(msgspec.structs.replace(record, consumers=joined), layout, load)


def leave(record: SubscriptionRecord, layout: Layout, name: str, load: Load) -> SubscriptionRecord:
    """The group without one of its consumers; what it read goes to the others.

    The generation is new even if nobody else is left: owners of segments tell by it which news are newer.
    """
    if name not in record.consumers:
        return record
    left = {other: held for other, held in record.consumers.items() if other != name}
    without = msgspec.structs.replace(record, consumers=left, generation=record.generation + 1)
    return reassign(without, layout, load, _held(record))


def drain(
    record: SubscriptionRecord, layout: Layout, ids: Iterable[int], load: Load, parts: Parts = NO_PARTS
) -> SubscriptionRecord:
    """The group once these sealed segments, and these slots of others, have nothing left for it."""
    known = drained_parts(record)
    more = {id_: union((*known.get(id_, ()), *slots)) for id_, slots in parts.items()}
    return _drained(record, layout, {*record.drained, *ids}, {**known, **more}, load)


def rewind(
    record: SubscriptionRecord, layout: Layout, drained: Iterable[int], load: Load, parts: Parts = NO_PARTS
) -> SubscriptionRecord:
    """The group when exactly this counts as drained: children of the rest wait again."""
    return _drained(record, layout, drained, parts, load)


def read_again(
    record: SubscriptionRecord, layout: Layout, segment_id: int | None, load: Load
) -> SubscriptionRecord:
    """The group when nothing of this segment and its descendants counts as drained; None means all."""
    if segment_id is None or segment_id not in layout.segments:
        return rewind(record, layout, (), load)
    again = {segment_id, *layout.descendants(segment_id)}
    kept = [id_ for id_ in record.drained if id_ not in again]
    parts = {id_: part for id_, part in drained_parts(record).items() if id_ not in again}
    return rewind(record, layout, kept, load, parts)


def _drained(
    record: SubscriptionRecord, layout: Layout, ids: Iterable[int], parts: Parts, load: Load
) -> SubscriptionRecord:
    whole = {*ids, *(id_ for id_, slots in parts.items() if slots == ALL)}
    left = {id_: slots for id_, slots in sorted(parts.items()) if slots and id_ not in whole}
    stored = {id_: tuple(RangeRecord(start=r.start, end=r.end) for r in slots) for id_, slots in left.items()}
    drained = tuple(sorted(whole))
    if (drained, stored) != (record.drained, record.partly_drained):
        record = msgspec.structs.replace(record, drained=drained, partly_drained=stored)
    return reassign(record, layout, load)


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
    """The group with its segments dealt out for this layout; the same record if nothing changes.

    Only the consumers whose segments change get the new generation: nobody else is disturbed. `before` is
    what was held until now, where the record does not tell because somebody left.
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
        else ConsumerRecord(
            generation=generation,
            joined=consumer.joined or generation,
            segments=tuple(AssignedRecord(segment_id=a.segment, shared=a.shared) for a in given[name]),
            whole=consumer.whole,
            finished=consumer.finished,
            instance=consumer.instance,
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
    """Whether the members may read by buckets, which the weakest client decides."""
    return record.type == "STREAM" and not any(consumer.whole for consumer in record.consumers.values())


def _assign(
    record: SubscriptionRecord,
    layout: Layout,
    before: Mapping[str, tuple[Assigned, ...]],
    load: Load,
) -> dict[str, tuple[Assigned, ...]]:
    names = sorted(record.consumers)
    if record.type != "CHECKPOINT":
        drained, parts = frozenset(record.drained), drained_parts(record)
        return assign(layout, names, drained, before, load, share=shares(record), parts=parts)
    # Positions of a checkpoint group are its own, so only its members can tell what is read to its end. What
    # one of them has finished counts while it is a member: without it, somebody has to read that again.
    finished = finished_by_group(record)
    if finished is not None:
        return assign(layout, names, finished, before, load, share=False)
    # Where not all can tell, the group gets the whole DAG, and each member keeps the order of what it reads.
    unlinked = {id_: replace(segment, parents=(), children=()) for id_, segment in layout.segments.items()}
    flat = Layout(layout.epoch, layout.next_id, unlinked)
    return assign(flat, names, frozenset(), _with_heirs(layout, before), load, share=False)


def finished_by_group(record: SubscriptionRecord) -> frozenset[int] | None:
    """What the members of a checkpoint group have read to the end; None when not all of them can tell."""
    told = [consumer.finished for consumer in record.consumers.values()]
    if any(finished is None for finished in told):
        return None
    return frozenset(id_ for finished in told for id_ in finished or ())


def _with_heirs(
    layout: Layout, before: Mapping[str, tuple[Assigned, ...]]
) -> Mapping[str, tuple[Assigned, ...]]:
    """Count the children of what a consumer reads as read by it too, so that they prefer it."""
    readers = {held.segment: name for name, given in before.items() for held in given}
    inherited: dict[str, tuple[Assigned, ...]] = dict(before)
    for id_ in sorted(layout.segments):
        reader = next((readers[p] for p in layout.segments[id_].parents if p in readers), None)
        if id_ not in readers and reader is not None:
            readers[id_] = reader
            inherited[reader] = (*inherited[reader], Assigned(id_))
    return inherited


def assignment(record: SubscriptionRecord, layout: Layout, topic: TopicName, name: str) -> Assignment:
    """What a member reads, as it is told; a stranger reads nothing."""
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
    """Whether the subscription exists on segments, so that their owners can say what is drained."""
    return record.type != "CHECKPOINT" and record.initial_position is not None


def undrained(record: SubscriptionRecord, layout: Layout) -> tuple[Segment, ...]:
    """The sealed segments that are not known to be drained, parents first."""
    drained = frozenset(record.drained)
    return tuple(segment for segment in layout.sealed if segment.id not in drained)


def _open_parts(record: SubscriptionRecord) -> Parts:
    return drained_parts(record) if shares(record) else NO_PARTS


def slots_of(record: SubscriptionRecord, layout: Layout) -> dict[int, Ranges]:
    """Of each segment the slots that its ancestors have drained; looks at the whole layout."""
    return open_slots(layout, frozenset(record.drained), _open_parts(record))


def open_for(
    record: SubscriptionRecord, layout: Layout, id_: int, slots: Mapping[int, Ranges] | None = None
) -> Ranges | None:
    """The buckets of a segment that may be read there; None means all of them.

    `slots` are those of `slots_of`, for who asks about many segments.
    """
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


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """What holds a segment back: buckets of an ancestor that are not drained, and who reads them."""

    segment_id: int
    buckets: Ranges
    consumers: tuple[str, ...]


def waiting(record: SubscriptionRecord, layout: Layout) -> dict[int, tuple[WaitsFor, ...]]:
    """Each segment that is held back, at least in part, with what it waits for."""
    drained = finished_by_group(record) if record.type == "CHECKPOINT" else frozenset(record.drained)
    if drained is None or record.type == "QUEUE":
        return {}
    parts = _open_parts(record)
    blockers = {
        segment.id: _blocker(record, segment, parts.get(segment.id, ()))
        for segment in layout.sealed
        if segment.id not in drained
    }
    found = {}
    for id_ in sorted(layout.segments):
        behind = sorted(layout.ancestors(id_) - drained)
        if behind:
            found[id_] = tuple(blockers[ancestor] for ancestor in behind)
    return found


def _blocker(record: SubscriptionRecord, segment: Segment, drained: Ranges) -> WaitsFor:
    """The buckets of a sealed segment that are not drained, with their readers."""
    readers = sorted(
        name
        for name, consumer in record.consumers.items()
        if any(held.segment_id == segment.id for held in consumer.segments)
    )
    buckets = bucket_ranges(segment.bucket_splits)
    behind = [at for at, bucket in enumerate(buckets) if not covers(drained, bucket)]
    owners = bucket_owners(len(buckets), readers)
    return WaitsFor(
        segment.id,
        union(buckets[at] for at in behind),
        tuple(sorted({owners[at] for at in behind if owners})),
    )


@dataclass(frozen=True, slots=True)
class ConsumerJoined:
    """A name was taken by a connection; or, restored from storage, by one that is lost already."""

    name: str
    token: int
    said: RegistrationRequest = PLAIN_REQUEST
    connected: bool = True


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    token: int


@dataclass(frozen=True, slots=True)
class ConsumerGone:
    """The member left or was evicted, and that is stored."""

    token: int


NameHoldEvent = ConsumerJoined | ConnectionLost | ConsumerGone


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Come back with an eviction after the grace period, unless cancelled."""

    token: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    token: int


NameHoldEffect = StartTimer | CancelTimer


@dataclass(frozen=True, slots=True)
class NameHold:
    """A name held by the connection that `token` stands for."""

    name: str
    token: int
    said: RegistrationRequest
    connected: bool
    restored: bool = False
    """Whether it is only known from storage: its holder may live, and be looking for its new leader."""


class NameHolds:
    """Which connection holds each name; an event of a connection that holds nothing changes nothing."""

    def __init__(self) -> None:
        self._by_name: dict[str, NameHold] = {}
        self._by_token: dict[int, NameHold] = {}

    def holder(self, name: str) -> NameHold | None:
        return self._by_name.get(name)

    def of(self, token: int) -> NameHold | None:
        return self._by_token.get(token)

    def all(self) -> tuple[NameHold, ...]:
        return tuple(self._by_name[name] for name in sorted(self._by_name))

    def check_free(self, name: str, said: RegistrationRequest) -> None:
        """ConsumerBusyError while the connection of another consumer holds the name."""
        lease = self._by_name.get(name)
        if lease is not None and lease.connected and not said.returns(lease.said):
            raise ConsumerBusyError(
                f"consumer {name} is connected already, from {lease.said.address or 'elsewhere'}; "
                "close it, or choose another consumer name"
            )

    def handle(self, event: NameHoldEvent) -> tuple[NameHoldEffect, ...]:
        match event:
            case ConsumerJoined(name, token, said, connected):
                self.check_free(name, said)
                former = self._drop(self._by_name.get(name))
                lease = NameHold(name, token, said, connected, restored=not connected)
                self._by_name[name] = self._by_token[token] = lease
                return former if connected else (*former, StartTimer(token))
            case ConnectionLost(token):
                held = self._by_token.get(token)
                if held is None or not held.connected:
                    return ()
                self._by_name[held.name] = self._by_token[token] = replace(held, connected=False)
                return (StartTimer(token),)
            case ConsumerGone(token):
                return self._drop(self._by_token.get(token))

    def _drop(self, lease: NameHold | None) -> tuple[NameHoldEffect, ...]:
        if lease is None:
            return ()
        del self._by_name[lease.name]
        del self._by_token[lease.token]
        return () if lease.connected else (CancelTimer(lease.token),)
