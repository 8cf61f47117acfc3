"""Checkpoint groups: which buckets each member reads, and the positions from which the next reader resumes.

Pure. Members keep their checkpoints themselves. The leader knows the positions that they committed, and hands
them to the member that gets a bucket next. A member commits under the generation of its assignment, so a
bucket that has moved does not accept positions from its former reader. Sharing by buckets follows PIP-486;
PIP-460 asks for the stickiness: a bucket stays with its reader if possible.

Example: `a` holds all four buckets of a segment and `b` joins. `deal_buckets` gives each a share of two: `a`
keeps the first two, and `b` gets the other two. If the group commits, `b` gets them only after `a` has
committed its positions in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.metadata.records import AssignedRecord, ConsumerRecord, RangeRecord, SubscriptionRecord
from anabranch.model.assignment import Assigned, assign
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.drains import (
    ALL,
    NO_PARTS,
    Parts,
    Ranges,
    covers,
    difference,
    open_buckets,
    open_slots,
    union,
)
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.model.slot_positions import SlotPositions

Given = Mapping[str, Sequence[Assigned]]

Share = tuple[tuple[AssignedRecord, ...], dict[int, tuple[RangeRecord, ...]]]
"""The segments that a member reads, and the slots that it is giving up."""


class Progress(NamedTuple):
    """The sealed segments that a group has finished, and the finished slots of others."""

    finished: frozenset[int]
    parts: Parts = NO_PARTS


def progress(record: SubscriptionRecord) -> Progress | None:
    """Return the segments and slots that a checkpoint group has finished; None if a member does not report.

    Members that commit report committed ends, which the group's positions keep after the members have left.
    The ends that other members reached count only while they are members.
    """
    slots: dict[int, Ranges] = {}
    for consumer in record.consumers.values():
        if consumer.finished is None:
            return None
        slots.update(dict.fromkeys(consumer.finished, ALL))
    for consumer in record.consumers.values():
        for id_, part in consumer.partly_finished.items():
            slots[id_] = union((*slots.get(id_, ()), *ranges_of(part)))
    committed = committed_positions(record)
    for id_ in committed.positions:
        slots[id_] = union((*slots.get(id_, ()), *_slots(committed, id_).finished()))
    whole = frozenset(id_ for id_, found in slots.items() if found == ALL)
    return Progress(whole, {id_: found for id_, found in slots.items() if found and id_ not in whole})


def committed_positions(record: SubscriptionRecord) -> Checkpoint:
    """Return the positions that members have committed. Slots without one have an unknown position."""
    return Checkpoint.from_bytes(record.positions) if record.positions else Checkpoint()


def reported(record: SubscriptionRecord, name: str, request: RegistrationRequest) -> SubscriptionRecord:
    """Return the group with the positions of a request. A new process of the only member starts over."""
    known = record.consumers.get(name)
    alone = record.consumers.keys() <= {name}
    if alone and (known is None or known.instance != request.instance):
        record = begin_anew(record)
    else:
        positions = request.positions or b""
        record = commit(record, name, positions, request.generation, releases=request.releases)
    if request.claims is not None:
        record = claim(record, name, request.claims)
    if request.commits and not record.commits:
        record = msgspec.structs.replace(record, commits=True)
    return record


def commit(
    record: SubscriptionRecord, name: str, positions: bytes, generation: int, *, releases: bool = False
) -> SubscriptionRecord:
    """Return the group after a member reported positions under a generation of its assignment.

    A position never moves back. Reports of another generation, and positions of slots that other members
    hold, are ignored. A member that `releases` has nothing more to commit for the slots that it gives up.
    """
    member = record.consumers.get(name)
    if member is None or member.generation != generation:
        return record
    given = Checkpoint.from_bytes(positions) if positions else Checkpoint()
    known = committed_positions(record)
    found = {id_: _slots(known, id_) for id_ in known.positions}
    others = [holds(other) for of, other in record.consumers.items() if of != name]
    for id_ in given.positions:
        theirs = union(range_ for held in others for range_ in held.get(id_, ()))
        before = found.get(id_, SlotPositions.unknown(id_))
        found[id_] = before.merged(_slots(given, id_)).replaced(theirs, before)
    record = _with_positions(record, found)
    return _without_leaving(record, [name]) if releases else record


def claim(record: SubscriptionRecord, name: str, generation: int) -> SubscriptionRecord:
    """Return the group after a member stops waiting for slots that others have been leaving since then."""
    slow = [n for n, other in record.consumers.items() if n != name and other.generation <= generation]
    return _without_leaving(record, slow)


def _without_leaving(record: SubscriptionRecord, names: Iterable[str]) -> SubscriptionRecord:
    left = {
        name: msgspec.structs.replace(record.consumers[name], leaving={})
        for name in names
        if record.consumers[name].leaving
    }
    if not left:
        return record
    return msgspec.structs.replace(record, consumers={**record.consumers, **left})


def keep_listed(record: SubscriptionRecord, layout: Layout) -> SubscriptionRecord:
    """Return the group without positions of segments that the layout no longer lists."""
    known = committed_positions(record)
    if known.positions.keys() <= layout.segments.keys():
        return record
    return _with_positions(
        record, {id_: _slots(known, id_) for id_ in known.positions if id_ in layout.segments}
    )


def begin_anew(record: SubscriptionRecord) -> SubscriptionRecord:
    """Return the group without positions. Its next member starts from its own checkpoint."""
    if not record.positions and not record.commits:
        return record
    return msgspec.structs.replace(record, positions=b"", commits=False)


def assign_to_members(
    record: SubscriptionRecord,
    layout: Layout,
    before: Mapping[str, tuple[Assigned, ...]],
    load: Mapping[int, float],
    *,
    share: bool,
) -> dict[str, tuple[Assigned, ...]]:
    """Assign every segment that may be read to members, as only they know which segments they finished.

    After a member left, everything that it finished but did not commit has to be read again. If a member does
    not report what it finished, the group gets the whole DAG, and each member orders its own segments.
    """
    names = sorted(record.consumers)
    done = progress(record)
    if done is not None:
        return assign(layout, names, done.finished, before, load, share=share, parts=done.parts)
    unlinked = {id_: replace(segment, parents=(), children=()) for id_, segment in layout.segments.items()}
    flat = Layout(layout.epoch, layout.next_id, unlinked)
    return assign(flat, names, frozenset(), _with_heirs(layout, before), load, share=False)


def _with_heirs(
    layout: Layout, before: Mapping[str, tuple[Assigned, ...]]
) -> Mapping[str, tuple[Assigned, ...]]:
    """Also assign the children of a consumer's segments to it, so that it is preferred for them."""
    readers = {held.segment: name for name, given in before.items() for held in given}
    inherited: dict[str, tuple[Assigned, ...]] = dict(before)
    for id_ in sorted(layout.segments):
        reader = next((readers[p] for p in layout.segments[id_].parents if p in readers), None)
        if id_ not in readers and reader is not None:
            readers[id_] = reader
            inherited[reader] = (*inherited[reader], Assigned(id_))
    return inherited


def with_buckets(record: SubscriptionRecord, layout: Layout, given: Given) -> dict[str, Share]:
    """Return each member's assignment, with the slots that it reads of shared segments and those it leaves.

    Only open buckets are read. A bucket that the group has finished is assigned to no member. In a group that
    commits, a slot that moves first leaves its reader; the next reader gets it after a commit.
    """
    done = progress(record) or Progress(frozenset())
    targets = _targets(record, layout, given, done)
    due = layout.segments.keys() - done.finished
    leaving = {name: _leaving(record, name, targets[name], done) for name in given}
    leaving = {name: {id_: s for id_, s in left.items() if id_ in due} for name, left in leaving.items()}
    shares: dict[str, Share] = {}
    for name, held in given.items():
        records = []
        for a in held:
            others = union(r for of, left in leaving.items() if of != name for r in left.get(a.segment, ()))
            slots = difference(targets[name][a.segment], others)
            shared = a.shared or slots != ALL
            buckets = _stored(slots) if shared else ()
            records.append(AssignedRecord(segment_id=a.segment, shared=shared, buckets=buckets))
        left = {id_: _stored(slots) for id_, slots in sorted(leaving[name].items())}
        shares[name] = tuple(records), left
    return shares


def _leaving(
    record: SubscriptionRecord, name: str, target: Mapping[int, Ranges], done: Progress
) -> dict[int, Ranges]:
    """Return the slots that a member reads now, but must stop reading and commit."""
    if not record.commits:
        return {}
    held = holds(record.consumers[name]).items()
    rest = {id_: difference(s, union((*target.get(id_, ()), *done.parts.get(id_, ())))) for id_, s in held}
    return {id_: slots for id_, slots in rest.items() if slots}


def _targets(
    record: SubscriptionRecord, layout: Layout, given: Given, done: Progress
) -> dict[str, dict[int, Ranges]]:
    """Return the slots of each segment that each member should read."""
    found: dict[str, dict[int, Ranges]] = {
        name: {a.segment: difference(ALL, done.parts.get(a.segment, ())) for a in held}
        for name, held in given.items()
    }
    shared = sorted({a.segment for held in given.values() for a in held if a.shared})
    slots = open_slots(layout, done.finished, done.parts) if shared else {}
    for id_ in shared:
        segment = layout.segments[id_]
        readers = sorted(name for name in found if id_ in found[name])
        before = {name: _reads(record.consumers[name]).get(id_, ()) for name in readers}
        opened = difference(open_buckets(segment, slots[id_]), done.parts.get(id_, ()))
        buckets = [bucket for bucket in bucket_ranges(segment.bucket_splits) if covers(opened, bucket)]
        for name, part in deal_buckets(buckets, readers, before).items():
            found[name][id_] = part
    return found


def deal_buckets(
    buckets: Sequence[HashRange], names: Sequence[str], before: Mapping[str, Ranges]
) -> dict[str, Ranges]:
    """Divide buckets evenly among readers. Each keeps as many of its buckets as its share allows."""
    held = {name: [b for b in buckets if covers(before.get(name, ()), b)] for name in names}
    even, odd = divmod(len(buckets), len(names))
    ranked = sorted(names, key=lambda name: (-len(held[name]), name))
    share = {name: even + (place < odd) for place, name in enumerate(ranked)}
    found: dict[str, list[HashRange]] = {name: [] for name in names}
    taken: set[HashRange] = set()
    for name in names:
        found[name] = [bucket for bucket in held[name] if bucket not in taken][: share[name]]
        taken.update(found[name])
    free = [bucket for bucket in buckets if bucket not in taken]
    for name in names:
        missing = share[name] - len(found[name])
        found[name] += free[:missing]
        del free[:missing]
    return {name: union(given) for name, given in found.items()}


def ranges_of(stored: Iterable[RangeRecord]) -> Ranges:
    return tuple(HashRange(part.start, part.end) for part in stored)


def _reads(member: ConsumerRecord) -> dict[int, Ranges]:
    """Return the slots of each segment that a member reads."""
    return {held.segment_id: ranges_of(held.buckets) if held.shared else ALL for held in member.segments}


def holds(member: ConsumerRecord) -> dict[int, Ranges]:
    """Return the slots that a member reads, or has read and may still commit."""
    found = _reads(member)
    for id_, slots in member.leaving.items():
        found[id_] = union((*found.get(id_, ()), *ranges_of(slots)))
    return found


def _with_positions(record: SubscriptionRecord, slots: Mapping[int, SlotPositions]) -> SubscriptionRecord:
    stored = Checkpoint(parts=slots).to_bytes() if slots else b""
    return record if stored == record.positions else msgspec.structs.replace(record, positions=stored)


def _slots(checkpoint: Checkpoint, segment: int) -> SlotPositions:
    return checkpoint.slots(segment) or SlotPositions.unknown(segment)


def _stored(ranges: Ranges) -> tuple[RangeRecord, ...]:
    return tuple(RangeRecord(start=part.start, end=part.end) for part in ranges)
