"""Which consumers may attach to a segment, and the state of attached ones."""

from __future__ import annotations

import pytest

from anabranch.controller.decide import admission, groups
from anabranch.controller.decide.admission import Admission, AttachRequest, Roster, RosterEntry
from anabranch.errors import ConsumerBusyError
from anabranch.metadata.records import AssignedRecord, ConsumerRecord, SubscriptionRecord
from anabranch.model.layout import Layout


def group(**consumers: ConsumerRecord) -> SubscriptionRecord:
    return SubscriptionRecord(type="STREAM", initial_position="earliest", consumers=consumers, generation=9)


def reader(
    generation: int, *ids: int, joined: int = 1, shared: bool = False, whole: bool = False
) -> ConsumerRecord:
    given = tuple(AssignedRecord(segment_id=id_, shared=shared) for id_ in ids)
    return ConsumerRecord(generation=generation, joined=joined, segments=given, whole=whole)


def admit(record: SubscriptionRecord, segment_id: int, name: str, generation: int | None) -> Admission:
    request = AttachRequest(segment_id=segment_id, consumer_name=name, generation=generation)
    return admission.admit(record, request)


def test_a_member_attaches_to_its_segments() -> None:
    record = group(a=reader(4, 0, 1), b=reader(5, 2))
    admitted = admit(record, 1, "a", 4)
    assert (admitted.member, admitted.generation) == ("a", 4)
    assert admitted.roster == admission.roster(record, 1)


@pytest.mark.parametrize(
    ("segment", "name", "generation"),
    [
        (1, "b", 5),  # another's segment
        (0, "a", 3),  # an assignment that is over
        (0, "a", 5),  # one of a group that was deleted since
        (0, "gone", 4),  # evicted
        (0, "gone", None),
        (0, "gone-seg-0", None),
        (0, "a-seg-1", None),  # the name it has on another segment
        (2, "a-seg-2", None),
    ],
)
def test_others_are_refused(segment: int, name: str, generation: int | None) -> None:
    record = group(a=reader(4, 0, 1), b=reader(5, 2))
    with pytest.raises(ConsumerBusyError):
        admit(record, segment, name, generation)


def test_an_evicted_consumer_is_refused_also_when_the_group_is_empty() -> None:
    with pytest.raises(ConsumerBusyError):
        admit(group(), 0, "a", 4)
    with pytest.raises(ConsumerBusyError):
        admit(group(), 0, "a-seg-0", None)


def test_a_client_that_never_registers_reads_while_no_consumer_is_registered() -> None:
    assert admit(group(), 0, "plain", None) == Admission()


def test_other_clients_are_known_by_name_and_segment() -> None:
    record = group(a=reader(4, 0), **{"a-seg-0": reader(5, 1)})
    assert admit(record, 1, "a-seg-0", None).member == "a-seg-0", "a name of its own comes first"
    assert admit(group(a=reader(4, 0)), 0, "a-seg-0", None).member == "a"


def test_a_client_that_gives_up_when_refused_is_let_in_to_finish() -> None:
    record = group(a=reader(4, whole=True), b=reader(5, 0, whole=True))
    admitted = admit(record, 0, "a-seg-0", None)
    assert admitted.roster is not None
    assert admitted.roster.state_of("a", admitted.generation, by_buckets=False) == "finishes"


def test_standing_on_a_roster() -> None:
    roster = Roster(9, (RosterEntry("a", 3, "whole"), RosterEntry("b", 3, "buckets"), RosterEntry("c", 7)))
    assert roster.state_of("a", 3, by_buckets=False) == "reads"
    assert roster.state_of("a", 8, by_buckets=False) == "reads", "kept segments are kept in later generations"
    assert roster.state_of("a", 2, by_buckets=False) == "gone", "a namesake that was evicted"
    assert roster.state_of("a", 3, by_buckets=True) == "finishes"
    assert roster.state_of("b", 5, by_buckets=True) == "reads"
    assert roster.state_of("b", 5, by_buckets=False) == "finishes"
    assert roster.state_of("c", 7, by_buckets=False) == "finishes"
    assert roster.state_of("d", 9, by_buckets=False) == "gone"


def test_segments_that_members_lose() -> None:
    before = group(a=reader(4, 0, 1), b=reader(5, 2), c=reader(5, 3, shared=True), d=reader(5, 4))
    after = group(a=reader(9, 0), b=reader(5, 2, 1), c=reader(9, 3), d=reader(9, 4, joined=9))
    assert admission.left(before, after) == ("d",)
    assert admission.reassigned(before, after) == {1, 3, 4}
    assert not admission.left(before, before)
    assert not admission.reassigned(before, before)


def test_a_consumer_that_leaves_and_returns_is_a_new_member() -> None:
    layout = Layout.initial(2, now_ms=0)
    record = groups.join(group(), layout, "a", {})
    held = record.consumers["a"]
    gone = groups.leave(record, layout, "a", {})
    assert gone.generation > record.generation, "owners can tell the newer roster"
    again = groups.join(gone, layout, "a", {})
    assert again.consumers["a"].joined > held.generation
    assert admission.roster(again, 0).state_of("a", held.generation, by_buckets=False) == "gone"
    more = groups.join(again, layout, "b", {})
    assert more.consumers["a"].joined == again.consumers["a"].joined, (
        "a new assignment does not make a member new"
    )
