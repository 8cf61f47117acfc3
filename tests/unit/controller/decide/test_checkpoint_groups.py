"""Checkpoint groups that commit: the reader of each bucket, and the positions that count."""

from __future__ import annotations

from anabranch.controller.decide import checkpoint_groups, groups
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.topic.reports import waiting
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.ids import LATEST, MessageId
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.model.slot_positions import SlotPositions

ONE = Layout.initial(1, now_ms=0)
SPLIT = ONE.split(0, now_ms=1)
LOWER, UPPER = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


def at(entry: int) -> MessageId:
    return MessageId(0, 1, entry)


def told(record: SubscriptionRecord, layout: Layout, name: str, **fields: object) -> SubscriptionRecord:
    """The group after a member that commits has registered, under its newest generation by default."""
    member = record.consumers.get(name)
    generation = -1 if member is None else member.generation
    known = {"generation": generation, "positions": b"", "finished": (), "instance": 1}
    request = RegistrationRequest(commits=True, **{**known, **fields})  # type: ignore[arg-type]
    return groups.join(record, layout, name, {}, request)


def pair(layout: Layout = ONE) -> SubscriptionRecord:
    """Two members that share a segment, after the first has released the buckets of the second."""
    record = told(told(SubscriptionRecord(type="CHECKPOINT"), layout, "a"), layout, "b")
    return told(record, layout, "a", releases=True)


def reads(record: SubscriptionRecord, name: str) -> list[HashRange]:
    return [
        range_
        for held in record.consumers[name].segments
        for range_ in checkpoint_groups.ranges_of(held.buckets)
    ]


def positions(record: SubscriptionRecord) -> SlotPositions | None:
    return checkpoint_groups.committed_positions(record).slots(0)


def test_a_bucket_leaves_its_reader_before_another_member_gets_it() -> None:
    record = told(told(SubscriptionRecord(type="CHECKPOINT"), ONE, "a"), ONE, "b")
    assert (reads(record, "a"), reads(record, "b")) == ([LOWER], [])
    assert checkpoint_groups.ranges_of(record.consumers["a"].leaving[0]) == (UPPER,)
    given = Checkpoint({0: at(5)}).to_bytes()
    record = told(record, ONE, "a", positions=given, releases=True)
    assert (reads(record, "a"), reads(record, "b")) == ([LOWER], [UPPER])
    assert positions(record) == SlotPositions.whole(at(5)), "the member commits what leaves it, too"


def test_a_member_commits_only_its_own_buckets_and_under_its_own_generation() -> None:
    record = pair()
    stale = told(record, ONE, "a", positions=Checkpoint({0: at(9)}).to_bytes(), generation=0)
    assert positions(stale) is None
    record = told(record, ONE, "a", positions=Checkpoint({0: at(7)}).to_bytes())
    record = told(record, ONE, "b", positions=Checkpoint({0: at(3)}).to_bytes())
    assert positions(record) == SlotPositions.whole(at(7)).placed((UPPER,), at(3))
    record = told(record, ONE, "a", positions=Checkpoint({0: at(6)}).to_bytes())
    assert positions(record) == SlotPositions.whole(at(7)).placed((UPPER,), at(3)), "no position moves back"


def test_a_member_that_waited_long_enough_gets_the_bucket_without_a_commit() -> None:
    record = told(told(SubscriptionRecord(type="CHECKPOINT"), ONE, "a"), ONE, "b")
    assert told(record, ONE, "b", claims=0) is record, "the bucket leaves since a later generation"
    record = told(record, ONE, "b", claims=record.generation)
    assert reads(record, "b") == [UPPER]
    assert record.consumers["a"].leaving == {}


def test_a_child_opens_by_the_committed_ends_of_its_parent() -> None:
    record = groups.reassign(pair(), SPLIT, {})
    assert waiting(record, SPLIT)["1"][0]["consumers"] == ["a", "b"]
    end = Checkpoint({0: MessageId(0, *LATEST)}).to_bytes()
    record = told(record, SPLIT, "b", positions=end)
    (blocker,) = waiting(record, SPLIT)["1"]
    assert (blocker["buckets"], blocker["consumers"]) == ([str(LOWER)], ["a"])
    assert {held.segment_id for c in record.consumers.values() for held in c.segments} == {0, 1, 2}
    assert groups.finished_by_group(record) == frozenset()
    record = told(record, SPLIT, "a", positions=end)
    assert groups.finished_by_group(record) == frozenset({0})
    left = groups.leave(record, SPLIT, "b", {})
    assert groups.finished_by_group(left) == frozenset({0}), "a committed end stays when its member leaves"


def test_the_start_of_a_new_member_excludes_nothing_that_others_read() -> None:
    record = groups.reassign(pair(), SPLIT, {})
    joined = told(record, SPLIT, "c", finished=(0,))
    assert groups.finished_by_group(joined) == frozenset()


def test_a_group_begins_anew_with_a_new_process_of_its_only_member() -> None:
    record = told(SubscriptionRecord(type="CHECKPOINT"), ONE, "a")
    record = told(record, ONE, "a", positions=Checkpoint({0: at(7)}).to_bytes())
    assert positions(record) == SlotPositions.whole(at(7))
    assert positions(told(record, ONE, "a", instance=1)) == SlotPositions.whole(at(7))
    request = RegistrationRequest(instance=2, positions=b"", finished=())
    assert positions(groups.join(record, ONE, "a", {}, request)) is None
    assert positions(groups.leave(record, ONE, "a", {})) is None
