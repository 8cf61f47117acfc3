from __future__ import annotations

from anabranch.model.assignment import Assigned, assign
from anabranch.model.layout import Layout
from tests.fakes.ready import ready_segments

NOBODY = frozenset[int]()


def segments(given: tuple[Assigned, ...]) -> list[int]:
    return [assigned.segment for assigned in given]


def test_nothing_is_read_before_all_ancestors_are_drained() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1).split(1, now_ms=2)
    assert [segment.id for segment in ready_segments(layout, NOBODY)] == [0]
    assert [segment.id for segment in ready_segments(layout, frozenset({0}))] == [1, 2]
    assert [segment.id for segment in ready_segments(layout, frozenset({0, 1}))] == [3, 4, 2]


def test_a_drained_parent_does_not_open_a_child_whose_grandparent_is_not() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1).split(1, now_ms=2)
    assert [segment.id for segment in ready_segments(layout, frozenset({1}))] == [0]


def test_pruned_ancestors_hold_nothing_back() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1).prune([0])
    assert [segment.id for segment in ready_segments(layout, NOBODY)] == [1, 2]


def test_segments_are_dealt_evenly() -> None:
    result = assign(Layout.initial(5, now_ms=0), ["b", "a"], NOBODY)
    assert result == {
        "a": (Assigned(0), Assigned(2), Assigned(4)),
        "b": (Assigned(1), Assigned(3)),
    }


def test_without_consumers_the_assignment_is_empty() -> None:
    assert assign(Layout.initial(2, now_ms=0), [], NOBODY) == {}


def test_a_name_given_twice_is_one_consumer() -> None:
    assert list(assign(Layout.initial(2, now_ms=0), ["a", "a"], NOBODY)) == ["a"]


def test_a_joining_consumer_takes_only_its_share() -> None:
    layout = Layout.initial(6, now_ms=0)
    before = assign(layout, ["a", "b"], NOBODY)
    after = assign(layout, ["a", "b", "c"], NOBODY, before)
    assert set(after["a"]) < set(before["a"])
    assert set(after["b"]) < set(before["b"])
    assert len(after["c"]) == 2


def test_only_the_segments_of_a_leaving_consumer_move() -> None:
    layout = Layout.initial(6, now_ms=0)
    before = assign(layout, ["a", "b", "c"], NOBODY)
    after = assign(layout, ["a", "c"], NOBODY, before)
    assert set(after["a"]) > set(before["a"])
    assert set(after["c"]) > set(before["c"])


def test_children_go_to_the_reader_of_their_parent() -> None:
    layout = Layout.initial(4, now_ms=0)
    before = assign(layout, ["a", "b"], NOBODY)
    assert segments(before["a"]) == [0, 2]
    split = layout.split(2, now_ms=1)
    assert assign(split, ["a", "b"], NOBODY, before) == before
    after = assign(split, ["a", "b"], frozenset({2}), before)
    assert segments(after["a"]) == [0, 4, 5]
    assert segments(after["b"]) == [1, 3]


def test_children_stay_apart_as_their_parents_were() -> None:
    layout = Layout.initial(2, now_ms=0)
    before = assign(layout, ["a", "b"], NOBODY)
    split = layout.split(0, now_ms=1).split(1, now_ms=2)
    after = assign(split, ["a", "b"], frozenset({0, 1}), before)
    assert {name: segments(given) for name, given in after.items()} == {"a": [2, 3], "b": [4, 5]}


def test_segments_being_read_come_before_inherited_ones() -> None:
    layout = Layout.initial(3, now_ms=0).split(0, now_ms=1)
    before = {"a": (Assigned(0),), "b": (Assigned(1), Assigned(2))}
    after = assign(layout, ["a", "b", "c"], frozenset({0}), before)
    assert {name: segments(given) for name, given in after.items()} == {"a": [3], "b": [1, 2], "c": [4]}


def test_balance_comes_before_inheritance() -> None:
    layout = Layout.initial(2, now_ms=0)
    before = assign(layout, ["a", "b"], NOBODY)
    split = layout.split(0, [100, 200, 300], now_ms=1)
    after = assign(split, ["a", "b"], frozenset({0}), before)
    assert sorted(len(given) for given in after.values()) == [2, 3]
    assert len(after["a"]) == 3


def test_grandchildren_remember_the_reader_of_their_grandparent() -> None:
    layout = Layout.initial(2, now_ms=0)
    before = {"a": (Assigned(1),), "b": (Assigned(0),)}
    split = layout.split(0, now_ms=1).rebucket(2, [9], now_ms=2)
    after = assign(split, ["a", "b"], frozenset({0, 2}), before)
    assert segments(after["b"]) == [4, 3]


def test_a_drained_sealed_segment_counts_for_nothing() -> None:
    layout = Layout.initial(1, now_ms=0).rebucket(0, [2, 3, 4, 5, 6, 7, 8], now_ms=1)
    after = assign(layout, list("abcde"), frozenset({0}))
    assert all(given == (Assigned(1, shared=True),) for given in after.values())


def test_surplus_consumers_share_in_proportion_to_buckets() -> None:
    layout = Layout.initial(2, now_ms=0, bucket_budget=4).rebucket(1, [2, 3, 4, 5, 6, 7, 8], now_ms=1)
    after = assign(layout, list("abcde"), frozenset({1}))
    sharers = {id_: [name for name, given in after.items() if id_ in segments(given)] for id_ in (0, 2)}
    assert (len(sharers[0]), len(sharers[2])) == (1, 4)
    assert after[sharers[0][0]] == (Assigned(0, shared=False),)


def test_consumers_beyond_the_last_bucket_stay_idle() -> None:
    layout = Layout.initial(2, now_ms=0, bucket_budget=4)
    before = assign(layout, list("abcd"), NOBODY)
    after = assign(layout, list("0abcd"), NOBODY, before)
    assert after == {"0": (), **before}


def test_sharing_can_be_switched_off() -> None:
    layout = Layout.initial(2, now_ms=0, bucket_budget=8)
    after = assign(layout, list("abcd"), NOBODY, share=False)
    assert sorted(after.values(), key=len) == [(), (), (Assigned(0),), (Assigned(1),)]


def test_a_newcomer_to_a_shared_segment_moves_no_other_consumer() -> None:
    layout = Layout.initial(2, now_ms=0, bucket_budget=16)
    before = assign(layout, list("bcde"), NOBODY)
    after = assign(layout, list("abcde"), NOBODY, before)
    assert all(segments(after[name]) == segments(before[name]) for name in "bcde")


def test_sharers_of_a_parent_share_its_child() -> None:
    layout = Layout.initial(2, now_ms=0, bucket_budget=8)
    before = assign(layout, list("abcd"), NOBODY)
    old = [name for name, given in before.items() if segments(given) == [0]]
    after = assign(layout.rebucket(0, [2, 3, 4], now_ms=1), list("abcd"), frozenset({0}), before)
    assert [name for name, given in after.items() if segments(given) == [2]] == old


def test_one_of_the_sharers_goes_on_alone() -> None:
    layout = Layout.initial(2, now_ms=0, bucket_budget=8)
    before = assign(layout, list("abcd"), NOBODY)
    stay = {segments(given)[0]: name for name, given in before.items()}
    after = assign(layout, list(stay.values()), NOBODY, before)
    assert {name: segments(given) for name, given in after.items()} == {
        name: [id_] for id_, name in stay.items()
    }
    assert not any(assigned.shared for given in after.values() for assigned in given)


def test_heavy_segments_are_spread_where_the_counts_allow() -> None:
    layout = Layout.initial(4, now_ms=0)
    load = {0: 100.0, 1: 90.0, 2: 1.0, 3: 1.0}
    fresh = assign(layout, ["a", "b"], NOBODY, load=load)
    assert sorted(sum(load[id_] for id_ in segments(given)) for given in fresh.values()) == [91.0, 101.0]
    joined = assign(layout, ["a", "b"], NOBODY, {"a": tuple(Assigned(id_) for id_ in range(4))}, load)
    assert sorted(sum(load[id_] for id_ in segments(given)) for given in joined.values()) == [91.0, 101.0]
