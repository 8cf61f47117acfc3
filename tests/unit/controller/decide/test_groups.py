"""One subscription's consumers, as pure decisions."""

from __future__ import annotations

from anabranch.controller.decide import groups
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.decide.retention import prunable
from anabranch.controller.topic.reports import waiting
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.policies.retention import Retention
from anabranch.model.ranges import FULL, HashRange
from tests.harness.control import TWO, group

TOPIC = TopicName.parse("topic://public/default/orders")
GRANDCHILDREN = TWO.split(0, now_ms=1).split(2, now_ms=2)
"""0 -> 2, 3; 2 -> 4, 5; 1 was never touched."""


def held(record: SubscriptionRecord) -> dict[str, list[int]]:
    return {
        name: sorted(given.segment_id for given in consumer.segments)
        for name, consumer in sorted(record.consumers.items())
    }


def test_the_first_consumer_reads_everything_and_a_second_takes_half() -> None:
    one = group("a")
    assert held(one) == {"a": [0, 1]}
    two = groups.join(one, TWO, "b", {})
    assert sorted(map(len, held(two).values())) == [1, 1]
    assert two.generation == 2


def test_only_members_whose_segments_change_get_a_new_generation() -> None:
    layout = Layout.initial(4, now_ms=0)
    record = group("a", "b", layout=layout)
    before = {name: consumer.generation for name, consumer in record.consumers.items()}
    after = groups.drain(record, layout.split(0, now_ms=1), (), {})
    assert after is record, "a sealed segment that is not drained stays with its reader"
    child = groups.drain(record, layout.split(0, now_ms=1), (0,), {})
    owner = next(name for name, ids in held(record).items() if 0 in ids)
    other = next(name for name in before if name != owner)
    assert child.consumers[owner].generation == child.generation == record.generation + 1
    assert child.consumers[other] == record.consumers[other]


def test_joining_twice_and_leaving_unknown_change_nothing() -> None:
    record = group("a")
    assert groups.join(record, TWO, "a", {}) is record
    assert groups.leave(record, TWO, "b", {}) is record


def test_a_leaver_s_segments_go_to_the_others() -> None:
    record = groups.leave(group("a", "b"), TWO, "a", {})
    assert held(record) == {"b": [0, 1]}


def test_nothing_is_given_out_before_all_its_ancestors_are_drained() -> None:
    record = group("a", layout=GRANDCHILDREN)
    assert held(record) == {"a": [0, 1]}
    waits = waiting(record, GRANDCHILDREN)
    behind = {id_: [blocker["segment"] for blocker in found] for id_, found in waits.items()}
    assert behind == {"2": [0], "3": [0], "4": [0, 2], "5": [0, 2]}
    record = groups.drain(record, GRANDCHILDREN, (2,), {})
    assert held(record) == {"a": [0, 1]}, "a drained child of an undrained parent opens no segment"
    record = groups.drain(record, GRANDCHILDREN, (0,), {})
    assert held(record) == {"a": [1, 3, 4, 5]}


def test_children_go_to_the_reader_of_their_parent() -> None:
    record = group("a", "b")
    owner = next(name for name, ids in held(record).items() if ids == [0])
    layout = TWO.split(0, now_ms=1).split(1, now_ms=1)
    after = groups.drain(record, layout, (0, 1), {})
    assert held(after)[owner] == [2, 3]


def test_rewinding_takes_the_children_back() -> None:
    layout = TWO.split(0, now_ms=1)
    record = group("a", layout=layout, drained=(0,))
    assert held(record) == {"a": [1, 2, 3]}
    rewound = groups.rewind(record, layout, (), {})
    assert held(rewound) == {"a": [0, 1]}
    assert rewound.drained == ()


def test_a_pruned_segment_is_forgotten_by_the_drained_ones() -> None:
    layout = TWO.split(0, now_ms=1)
    record = group("a", layout=layout, drained=(0,))
    after = groups.reassign(record, layout.prune([0]), {})
    assert after.drained == ()
    assert held(after) == held(record)
    assert after.generation == record.generation


FOUR = Layout.initial(1, now_ms=0, bucket_budget=4)
SPLIT = FOUR.split(0, now_ms=1)
"""0, of four buckets -> 1, 2, of two buckets each."""
LOWER, UPPER = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


def by_buckets(record: SubscriptionRecord) -> set[tuple[str, int]]:
    return {
        (name, given.segment_id)
        for name, consumer in record.consumers.items()
        for given in consumer.segments
        if given.shared
    }


def test_children_open_with_the_first_bucket_and_are_read_by_buckets() -> None:
    record = groups.reassign(group("a", layout=FOUR), SPLIT, {})
    quarter = groups.drain(record, SPLIT, (), {}, {0: (HashRange(0, 0x3FFF),)})
    assert held(quarter) == {"a": [0]}, "a child's bucket is as wide as two of its parent"
    half = groups.drain(quarter, SPLIT, (), {}, {0: (HashRange(0x4000, 0x7FFF),)})
    assert held(half) == {"a": [0, 1, 2]}
    assert by_buckets(half) == {("a", 1), ("a", 2)}
    assert groups.open_for(half, SPLIT, 1) == (LOWER,)
    assert groups.open_for(half, SPLIT, 0) is None
    assert groups.open_by_buckets(half, SPLIT) == {1: (LOWER,), 2: (LOWER,)}


def test_more_buckets_and_the_rest_of_the_parent_disturb_no_member() -> None:
    record = groups.reassign(group("a", "b", layout=FOUR), SPLIT, {})
    assert by_buckets(record) == {("a", 0), ("b", 0)}
    half = groups.drain(record, SPLIT, (), {}, {0: (LOWER,)})
    assert held(half) == {"a": [0, 1], "b": [0, 2]}, "the parent stays with its readers"
    more = groups.drain(half, SPLIT, (), {}, {0: (HashRange(0x8000, 0xBFFF),)})
    assert more.consumers == half.consumers
    assert more.generation == half.generation
    whole = groups.drain(more, SPLIT, (), {}, {0: (HashRange(0xC000, 0xFFFF),)})
    assert whole.drained == (0,)
    assert whole.partly_drained == {}
    assert held(whole) == {"a": [1], "b": [2]}
    assert by_buckets(whole) == {("a", 1), ("b", 2)}, "attaching again would not help"
    assert groups.open_for(whole, SPLIT, 1) is None


def test_a_leaver_s_part_of_a_draining_segment_goes_to_its_other_readers() -> None:
    record = groups.reassign(group("a", "b", layout=FOUR), SPLIT, {})
    half = groups.drain(record, SPLIT, (), {}, {0: (LOWER,)})
    left = groups.leave(half, SPLIT, "a", {})
    assert held(left) == {"b": [0, 1, 2]}
    assert ("b", 0) in by_buckets(left), "it continues without attaching again"
    newcomer = groups.leave(groups.join(left, SPLIT, "c", {}), SPLIT, "b", {})
    assert held(newcomer) == {"c": [0, 1, 2]}


def test_a_member_that_reads_whole_segments_makes_all_wait_for_whole_segments() -> None:
    record = groups.reassign(group("a", layout=FOUR), SPLIT, {})
    half = groups.drain(record, SPLIT, (), {}, {0: (LOWER,)})
    mixed = groups.join(half, SPLIT, "m1", {}, RegistrationRequest(whole=True))
    assert sorted(id_ for ids in held(mixed).values() for id_ in ids) == [0]
    assert by_buckets(mixed) == set()
    waits = waiting(mixed, SPLIT)["1"]
    assert [(blocker["segment"], blocker["buckets"]) for blocker in waits] == [(0, [str(FULL)])]
    whole = groups.drain(mixed, SPLIT, (0,), {})
    assert sorted(id_ for ids in held(whole).values() for id_ in ids) == [1, 2]


def test_rewinding_forgets_partly_drained_segments() -> None:
    record = groups.reassign(group("a", layout=FOUR), SPLIT, {})
    half = groups.drain(record, SPLIT, (), {}, {0: (LOWER,)})
    rewound = groups.rewind(half, SPLIT, (), {})
    assert (rewound.drained, rewound.partly_drained) == ((), {})
    assert held(rewound) == {"a": [0]}
    again = groups.rewind(half, SPLIT, (), {}, {0: (UPPER,)})
    assert groups.open_for(again, SPLIT, 2) == (UPPER,)


def test_a_merge_opens_where_both_parents_are_drained_and_names_the_readers_it_waits_for() -> None:
    merged = Layout.initial(2, now_ms=0, bucket_budget=8).merge([0, 1], now_ms=1)
    record = groups.reassign(group("a", "b", layout=Layout.initial(2, now_ms=0)), merged, {})
    parts = {0: (HashRange(0x4000, 0xFFFF),), 1: (HashRange(0, 0xBFFF),)}
    record = groups.drain(record, merged, (), {}, parts)
    assert groups.open_for(record, merged, 2) == (HashRange(0x4000, 0xBFFF),)
    readers = {id_: name for name, ids in held(record).items() for id_ in ids if id_ < 2}
    assert waiting(record, merged)["2"] == [
        {"segment": 0, "buckets": [str(HashRange(0, 0x3FFF))], "consumers": [readers[0]]},
        {"segment": 1, "buckets": [str(HashRange(0xC000, 0xFFFF))], "consumers": [readers[1]]},
    ]


def test_a_blocked_bucket_of_a_shared_segment_names_its_reader_only() -> None:
    record = groups.reassign(group("a", "b", layout=FOUR), SPLIT, {})
    record = groups.drain(record, SPLIT, (), {}, {0: (HashRange(0, 0xBFFF),)})
    (blocker,) = waiting(record, SPLIT)["1"]
    assert blocker == {"segment": 0, "buckets": [str(HashRange(0xC000, 0xFFFF))], "consumers": ["b"]}


def test_grandchildren_open_where_all_generations_are_drained() -> None:
    layout = FOUR.rebucket(0, (0x4000, 0x8000, 0xC000, 0xE000), now_ms=1).rebucket(1, (0x6000,), now_ms=2)
    record = groups.reassign(group("a", layout=FOUR), layout, {})
    record = groups.drain(record, layout, (), {}, {0: (HashRange(0x4000, 0xFFFF),)})
    assert held(record) == {"a": [0, 1]}
    record = groups.drain(record, layout, (1,), {})
    assert held(record) == {"a": [0, 2]}
    assert groups.open_for(record, layout, 2) == (HashRange(0x6000, 0xFFFF),)


def test_surplus_consumers_share_by_all_the_buckets_of_the_segment() -> None:
    layout = Layout.initial(1, now_ms=0, bucket_budget=4)
    record = group("a", "b", "c", layout=layout)
    for name in "abc":
        (segment,) = groups.assignment(record, layout, TOPIC, name).segments
        assert segment.bucket_ranges == bucket_ranges(layout.segment(0).bucket_splits)
        assert segment.topic == "segment://public/default/orders/0000-ffff-0"
    alone = groups.leave(groups.leave(record, layout, "a", {}), layout, "b", {})
    (segment,) = groups.assignment(alone, layout, TOPIC, "c").segments
    assert segment.bucket_ranges == ()


def test_no_segment_is_shared_while_a_member_reads_only_whole_segments() -> None:
    layout = Layout.initial(1, now_ms=0, bucket_budget=4)
    mixed = groups.join(group("a", layout=layout), layout, "b", {}, RegistrationRequest(whole=True))
    assert held(mixed) == {"a": [0], "b": []}
    assert not mixed.consumers["a"].segments[0].shared
    assert groups.join(mixed, layout, "b", {}, RegistrationRequest(whole=True)) is mixed
    passed_on = groups.leave(mixed, layout, "a", {})
    assert held(passed_on) == {"b": [0]}
    assert passed_on.consumers["b"].whole
    shared = groups.join(mixed, layout, "b", {})
    assert held(shared) == {"a": [0], "b": [0]}
    assert shared.consumers["b"].segments[0].shared


def test_an_assignment_names_epoch_and_generation_and_a_stranger_reads_nothing() -> None:
    record = group("a")
    assignment = groups.assignment(record, TWO, TOPIC, "a")
    assert (assignment.epoch, assignment.generation) == (0, 1)
    assert groups.assignment(record, TWO, TOPIC, "nobody").segments == ()


def test_a_checkpoint_group_gets_the_whole_dag_and_never_shares() -> None:
    record = group("a", "b", kind="CHECKPOINT", layout=GRANDCHILDREN)
    everything = sorted(id_ for ids in held(record).values() for id_ in ids)
    assert everything == [0, 1, 2, 3, 4, 5]
    assert sorted(map(len, held(record).values())) == [3, 3]
    single = Layout.initial(1, now_ms=0)
    crowd = group("a", "b", kind="CHECKPOINT", layout=single)
    assert sorted(held(crowd).values()) == [[], [0]]


def test_a_checkpoint_group_s_new_segments_prefer_the_reader_of_their_parent() -> None:
    layout = Layout.initial(4, now_ms=0)
    record = group("a", "b", kind="CHECKPOINT", layout=layout)
    owner = next(name for name, ids in held(record).items() if 0 in ids)
    after = groups.reassign(record, layout.rebucket(0, (9,), now_ms=1), {})
    assert 4 in held(after)[owner]
    assert set(held(after)[owner]) >= set(held(record)[owner])


def test_a_checkpoint_group_gets_children_when_its_members_have_read_all_ancestors() -> None:
    layout = TWO.split(0, now_ms=100).merge([2, 3], now_ms=200)
    record = SubscriptionRecord(type="CHECKPOINT")
    for name in ("a", "b"):
        record = groups.join(record, layout, name, {}, RegistrationRequest(finished=()))
    assert sorted(id_ for ids in held(record).values() for id_ in ids) == [0, 1]
    reader = next(name for name, ids in held(record).items() if 0 in ids)
    assert waiting(record, layout)["4"][0]["consumers"] == [reader]
    assert prunable(layout, [record], Retention(0), 1000) == (), "it is still needed"
    record = groups.join(record, layout, reader, {}, RegistrationRequest(finished=(0,)))
    assert sorted(id_ for ids in held(record).values() for id_ in ids) == [1, 2, 3]
    record = groups.join(record, layout, reader, {}, RegistrationRequest(finished=(0, 2, 3)))
    assert sorted(id_ for ids in held(record).values() for id_ in ids) == [1, 4]
    assert waiting(record, layout) == {}
    assert prunable(layout, [record], Retention(0), 1000) == (0, 2, 3)
    # It came back from an older checkpoint, or does not come back at all.
    again = groups.join(record, layout, reader, {}, RegistrationRequest(finished=(0,)))
    assert sorted(id_ for ids in held(again).values() for id_ in ids) == [1, 2, 3]
    without = groups.leave(record, layout, reader, {})
    assert sorted(id_ for ids in held(without).values() for id_ in ids) == [0, 1]
    mixed = groups.join(record, layout, "c", {})
    everything = sorted(id_ for ids in held(mixed).values() for id_ in ids)
    assert everything == [0, 1, 2, 3, 4], "it cannot report drains, and would block for ever"
