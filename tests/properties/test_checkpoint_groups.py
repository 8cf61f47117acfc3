"""Laws of a checkpoint group that commits, over any history of layouts, members and commits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.decide import checkpoint_groups, groups
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.drains import ALL, Ranges, difference, intersection, open_slots, union
from anabranch.model.hashing import bucket_ranges
from anabranch.model.ids import LATEST, MessageId
from anabranch.model.layout import Layout
from anabranch.model.slot_positions import SlotPositions

NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = ["join", "join", "leave", "commit", "commit", "commit", "claim", "split", "merge", "rebucket"]


def slots_of(record: SubscriptionRecord, name: str) -> dict[int, Ranges]:
    member = record.consumers[name]
    return {
        held.segment_id: checkpoint_groups.ranges_of(held.buckets) if held.shared else ALL
        for held in member.segments
    }


def leaving_of(record: SubscriptionRecord, name: str) -> dict[int, Ranges]:
    leaving = record.consumers[name].leaving
    return {id_: checkpoint_groups.ranges_of(slots) for id_, slots in leaving.items()}


class GroupSteps:
    """A record with its layout, and the steps of its members."""

    def __init__(self, segments: int) -> None:
        self.layout = Layout.initial(segments, now_ms=0)
        self.record = SubscriptionRecord(type="CHECKPOINT")

    def request(self, name: str, **fields: object) -> None:
        member = self.record.consumers.get(name)
        request = RegistrationRequest(
            finished=(),
            commits=True,
            instance=1,
            generation=-1 if member is None else member.generation,
            **{"positions": b"", **fields},  # type: ignore[arg-type]
        )
        self.record = groups.join(self.record, self.layout, name, {}, request)

    def commit(self, data: st.DataObject, name: str) -> None:
        """Commit later positions, or the end, of some buckets that the member holds."""
        given: dict[int, SlotPositions] = {}
        releases = data.draw(st.booleans())
        for slots in (slots_of(self.record, name), leaving_of(self.record, name)):
            for id_, held in slots.items():
                segment = self.layout.segments[id_]
                buckets = [b for b in bucket_ranges(segment.bucket_splits) if intersection((b,), held)]
                place = MessageId(id_, 1, data.draw(st.integers(0, 9)))
                if not segment.active and data.draw(st.booleans()):
                    place = MessageId(id_, *LATEST)
                part = (
                    intersection(union(data.draw(st.sets(st.sampled_from(buckets)))), held) if buckets else ()
                )
                given[id_] = given.get(id_, SlotPositions.unknown(id_)).placed(part, place)
        positions = Checkpoint(parts=given).to_bytes() if given else b""
        self.request(name, positions=positions, releases=releases)

    def step(self, data: st.DataObject, what: str, at: int) -> None:
        if what == "join":
            self.request(data.draw(NAMES))
        elif what == "leave":
            self.record = groups.leave(self.record, self.layout, data.draw(NAMES), {})
        elif what == "commit" and self.record.consumers:
            self.commit(data, data.draw(st.sampled_from(sorted(self.record.consumers))))
        elif what == "claim" and self.record.consumers:
            self.request(
                data.draw(st.sampled_from(sorted(self.record.consumers))), claims=self.record.generation
            )
        elif what in ("split", "merge", "rebucket"):
            self.layout = change(data, self.layout, what, at)
            self.record = groups.reassign(self.record, self.layout, {})


def change(data: st.DataObject, layout: Layout, what: str, at: int) -> Layout:
    if what == "merge" and len(layout.active) > 1:
        return layout.merge([segment.id for segment in layout.active[:2]], now_ms=at)
    segment = data.draw(st.sampled_from(layout.active))
    if what == "split":
        return layout.split(segment.id, now_ms=at)
    splits = data.draw(st.sets(st.integers(2, 65535), max_size=4))
    if tuple(sorted(splits)) == segment.bucket_splits:
        return layout
    return layout.rebucket(segment.id, tuple(sorted(splits)), now_ms=at)


def check(record: SubscriptionRecord, layout: Layout) -> None:
    done = checkpoint_groups.progress(record)
    assert done is not None
    opened = open_slots(layout, done.finished, done.parts)
    read: dict[int, Ranges] = {}
    for name in record.consumers:
        for id_, slots in [*slots_of(record, name).items(), *leaving_of(record, name).items()]:
            assert not intersection(read.get(id_, ()), slots), "a slot has one reader, or one that leaves it"
            read[id_] = union((*read.get(id_, ()), *slots))
        for id_, slots in slots_of(record, name).items():
            assert not difference(slots, opened[id_]), "a slot opens when all its ancestors are committed"
            assert not intersection(slots, done.parts.get(id_, ())), "a finished slot is not read again"
    if record.consumers:
        for id_ in layout.segments:
            if id_ not in done.finished:
                buckets = bucket_ranges(layout.segments[id_].bucket_splits)
                due = union(b for b in buckets if not difference((b,), opened[id_]))
                assert not difference(due, union((*read.get(id_, ()), *done.parts.get(id_, ()))))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_slot_that_is_open_has_one_reader(data: st.DataObject) -> None:
    group = GroupSteps(data.draw(st.integers(1, 2)))
    for at in range(data.draw(st.integers(1, 14))):
        before = group.record
        group.step(data, data.draw(st.sampled_from(STEPS)), at)
        check(group.record, group.layout)
        assert groups.reassign(group.record, group.layout, {}) is group.record, (
            "deciding again changes nothing"
        )
        known, found = (checkpoint_groups.committed_positions(r) for r in (before, group.record))
        for id_ in known.positions if group.record.consumers else ():
            if id_ in found.positions:
                earlier, later = known.slots(id_), found.slots(id_)
                assert earlier is not None
                assert later is not None
                assert not earlier.exceeding(later) or len(before.consumers) <= 1, "no position moves back"


@given(st.data())
def test_buckets_are_dealt_evenly_and_stay_with_their_readers(data: st.DataObject) -> None:
    splits = tuple(sorted(data.draw(st.sets(st.integers(2, 65535), max_size=8))))
    buckets = bucket_ranges(splits)
    names = sorted(data.draw(st.sets(NAMES, min_size=1)))
    before = checkpoint_groups.deal_buckets(buckets, names, {})
    joined = sorted({*names, "e"})
    after = checkpoint_groups.deal_buckets(buckets, joined, before)
    for dealt, readers in ((before, names), (after, joined)):
        counts = [sum(not difference((b,), dealt[name]) for b in buckets) for name in readers]
        assert sum(counts) == len(buckets)
        assert max(counts) - min(counts) <= 1
    for name in names:
        assert not difference(after[name], before[name]), "only the new reader gains"
