"""Owners of segments get rosters before their readers get assignments."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.decide import groups
from anabranch.controller.decide.admission import AttachRequest, ReaderState, Roster
from anabranch.controller.ports.leader import Membership
from anabranch.controller.ports.segments import Aim
from anabranch.controller.topic.announcements import SENT_AT_ONCE
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import ConsumerBusyError, NotConnectedError, NotLeaderError, SegmentNotFoundError
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.assignment import Assignment
from anabranch.model.drains import Ranges
from anabranch.model.layout import Layout
from anabranch.model.names import Place, TopicName
from tests.fakes.segments import MemorySegments
from tests.harness.control import (
    FROM_EARLIEST,
    TOPIC,
    ControlPlane,
    DiedError,
    FakeConsumer,
    SilentConsumer,
    ids_of,
)


async def join(plane: ControlPlane, name: str, inbox: FakeConsumer | None = None) -> Assignment:
    return (await plane.join(name, inbox)).assignment


async def attach(plane: ControlPlane, name: str, segment_id: int, generation: int) -> None:
    controller = await plane.controller()
    await plane.call(
        controller.admit("s", AttachRequest(segment_id=segment_id, consumer_name=name, generation=generation))
    )


async def state_of(plane: ControlPlane, name: str, segment_id: int, generation: int) -> ReaderState | None:
    """The state of a consumer in the owner's roster; None if the owner has no roster."""
    controller = await plane.controller()
    roster = plane.disk.rosters.get((plane.segment(controller.layout, segment_id), "s"))
    return None if roster is None else roster.state_of(name, generation, by_buckets=False)


class RosterWitness(FakeConsumer):
    """Notes the owner's roster entry of another consumer whenever this consumer receives an assignment."""

    def __init__(self, plane: ControlPlane, other: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._plant = plane
        self._other = other

    def __call__(self, assignment: Assignment | None) -> None:
        super().__call__(assignment)
        for segment in assignment.segments if assignment is not None else ():
            roster = self._plant.disk.rosters[TopicName.parse(segment.topic), "s"]
            self.seen.append(roster.state_of(self._other, 1, by_buckets=False))


async def test_owners_hear_of_an_eviction_before_the_next_reader_does(plane: ControlPlane) -> None:
    await plane.lead()
    witness = RosterWitness(plane, "a")
    held = await join(plane, "a")
    for segment_id in (0, 1):
        await attach(plane, "a", segment_id, held.generation)
    await join(plane, "b", witness)
    assert await state_of(plane, "a", 1, 1) == "finishes", "the half that went to b"
    controller = await plane.controller()
    await evict(plane, "a")
    assert ids_of(witness.told[-1]) == [0, 1]
    assert witness.seen[-2:] == ["gone", "gone"]
    assert controller.why()["troubles"] == {}


async def registrations(plane: ControlPlane) -> list[str]:
    controller = await plane.controller()
    return sorted(controller.records["s"].consumers)


async def evict(plane: ControlPlane, name: str) -> None:
    """Let the connection of a member be lost for longer than its grace."""
    controller = await plane.controller()
    hold = controller.members.holds.named("s", name)
    assert hold is not None
    controller.members.lost(hold.token)
    await asyncio.sleep(61)


async def test_an_evicted_consumer_is_gone_also_where_it_only_finished(plane: ControlPlane) -> None:
    await plane.lead()
    held = await join(plane, "a")
    await attach(plane, "a", 1, held.generation)
    await join(plane, "b")
    assert await state_of(plane, "a", 1, held.generation) == "finishes"
    await evict(plane, "a")
    assert await state_of(plane, "a", 1, held.generation) == "gone"
    with pytest.raises(ConsumerBusyError):
        await attach(plane, "a", 1, held.generation)


@pytest.mark.parametrize("silent", [False, True])
async def test_an_owner_that_does_not_answer_delays_no_change_and_gets_the_roster_later(
    plane: ControlPlane, silent: bool
) -> None:
    await plane.lead()
    inbox = FakeConsumer()
    await join(plane, "a")
    await join(plane, "b", inbox)
    controller = await plane.controller()
    restrict, answers = plane.segments.restrict, asyncio.Event()

    async def unreachable(*arguments: object) -> None:
        if not answers.is_set():
            if silent:
                await answers.wait()
            raise NotConnectedError("the owner is away")
        await restrict(*arguments)  # type: ignore[arg-type]

    plane.segments.restrict = unreachable  # type: ignore[assignment, method-assign]
    began = plane.loop.time()
    await evict(plane, "a")
    await plane.call(controller.settled())
    assert plane.loop.time() - began < 66
    assert inbox.ids == [0, 1], (
        "the next reader gets its assignment; no consumer attaches before the roster is there"
    )
    assert await state_of(plane, "a", 0, 1) != "gone"

    def unreached() -> list[str]:
        return list(controller.why()["subscriptions"]["s"]["unreached"])  # type: ignore[index]

    assert unreached() == ["0", "1"], "it may be attached wherever it was given a segment"
    answers.set()
    await asyncio.sleep(5)
    assert await state_of(plane, "a", 0, 1) == "gone"
    assert unreached() == []


async def test_a_leader_that_dies_before_owners_hear_is_made_good_by_the_next(plane: ControlPlane) -> None:
    await plane.lead()
    await join(plane, "a")
    await join(plane, "b")
    controller = await plane.controller()
    generation = controller.records["s"].consumers["a"].generation

    def die(verb: str, name: TopicName) -> Exception | None:
        if verb == "restrict":
            plane.kill()
            return NotConnectedError("killed")
        return None

    plane.segments.fails = die
    with pytest.raises(DiedError):
        await plane.call(leave(plane, "a"))
    assert await state_by_rosters(plane, "a", 0, generation) != "gone"
    await plane.boot()
    assert await registrations(plane) == ["b"]
    assert await state_of(plane, "a", 0, generation) == "gone"


async def leave(plane: ControlPlane, name: str) -> None:
    controller = await plane.service.controller(TOPIC)
    assert isinstance(controller, TopicController)
    hold = controller.members.holds.named("s", name)
    assert hold is not None
    await controller.leave(Membership(hold.token, "s", name, Assignment(0, 0), 0))


async def state_by_rosters(plane: ControlPlane, name: str, segment_id: int, generation: int) -> str:
    found = [
        roster.state_of(name, generation, by_buckets=False)
        for (segment, _), roster in plane.disk.rosters.items()
        if segment.segment is not None and segment.segment.id == segment_id
    ]
    return found[0] if found else "unknown"


async def test_a_replaced_leader_admits_no_consumer(plane: ControlPlane) -> None:
    await plane.lead()
    held = await join(plane, "a")
    controller = await plane.controller()
    await plane.call(controller.stop())
    with pytest.raises(NotLeaderError):
        await plane.call(
            controller.admit("s", AttachRequest(segment_id=0, consumer_name="a", generation=held.generation))
        )


async def test_a_seek_of_one_segment_moves_no_other(plane: ControlPlane) -> None:
    await plane.lead()
    inbox = FakeConsumer()
    await join(plane, "a", inbox)
    controller = await plane.controller()
    before = controller.layout
    plane.publish(before, 0, 1)
    await plane.call(controller.split(0))
    await plane.call(controller.split(1))
    plane.drain(before, "s", 0, 1)
    await asyncio.sleep(1)
    assert controller.records["s"].drained == (0, 1)
    await plane.call(controller.seek_segment("s", 0, Aim(0, 0)))
    assert controller.records.existing("s").drained == (1,)
    await asyncio.sleep(0.1)
    assert 0 in inbox.ids
    assert not set(inbox.ids) & before.descendants(0)
    assert plane.disk.backlog(plane.segment(before, 1), "s") == 0
    with pytest.raises(SegmentNotFoundError):
        await plane.call(controller.seek_segment("s", 99, 0))


async def test_a_seek_of_one_segment_is_finished_by_the_next_leader(plane: ControlPlane) -> None:
    await plane.lead(1)
    await join(plane, "a")
    controller = await plane.controller()
    before = controller.layout
    plane.publish(before)
    await plane.call(controller.split(0))
    plane.drain(before, "s", 0)
    await asyncio.sleep(1)
    plane.kill()
    await plane.boot(kill_at="subscription.seek.recorded")
    with pytest.raises(DiedError):
        await plane.call((await plane.controller()).seek_segment("s", 0, Aim(0, 0)))
    await plane.boot()
    controller = await plane.controller()
    assert controller.records["s"].unfinished is None
    assert controller.records["s"].drained == ()
    assert plane.disk.backlog(plane.segment(before, 0), "s") == 1


@pytest.mark.parametrize("lives", [False, True])
async def test_a_name_is_refused_only_while_its_holder_shows_a_sign_of_life(
    plane: ControlPlane, lives: bool
) -> None:
    await plane.lead()
    held = await join(plane, "a", SilentConsumer(lives=lives))
    controller = await plane.controller()
    again = plane.process.spawn(controller.register("s", "a", FakeConsumer(), FROM_EARLIEST))
    other = await join(plane, "b")
    assert not again.done(), "others do not wait for the answer"
    if lives:
        with pytest.raises(ConsumerBusyError):
            await again
    else:
        kept = (await again).assignment
        assert {*ids_of(kept), *ids_of(other)} == {*ids_of(held)}


async def test_subscriptions_that_follow_side_by_side_are_announced_after_their_own_owners(
    plane: ControlPlane,
) -> None:
    await plane.lead()
    controller = await plane.controller()
    late: list[str] = []

    class Judge(FakeConsumer):
        def __init__(self, sub: str) -> None:
            super().__init__()
            self._sub = sub

        def __call__(self, assignment: Assignment | None) -> None:
            super().__call__(assignment)
            roster = plane.disk.rosters.get((plane.segment(controller.layout, 1), self._sub))
            if assignment is not None and (roster is None or roster.generation < assignment.generation):
                late.append(self._sub)

    for sub in ("slow", "swift"):
        for name in ("a", "b"):
            await plane.call(controller.register(sub, name, Judge(sub), FROM_EARLIEST))
    restrict = plane.segments.restrict

    async def hesitate(place: Place, sub: str, roster: Roster, term: int) -> None:
        await asyncio.sleep(1.0 if sub == "slow" else 0.5)
        await restrict(place, sub, roster, term)

    plane.segments.restrict = hesitate  # type: ignore[assignment, method-assign]
    began = plane.loop.time()
    await plane.call(controller.merge([0, 1]))
    await plane.call(controller.settled())
    assert plane.loop.time() - began < 1.3, "neither waits for the owners of the other"
    assert late == []


async def test_the_rosters_of_very_many_subscriptions_go_out_a_few_at_a_time(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plane.lead(8)
    controller = await plane.controller()
    for number in range(100):
        await plane.call(controller.ensure_subscription(f"s{number}", "STREAM", "earliest"))
    plane.kill()
    under_way: list[int] = [0]

    async def count(*arguments: object) -> None:
        under_way.append(under_way[-1] + 1)
        await asyncio.sleep(0.01)
        under_way.append(under_way[-1] - 1)

    monkeypatch.setattr(MemorySegments, "restrict", count)
    await plane.boot()
    await plane.call((await plane.controller()).settled())
    assert len(under_way) == 1 + 2 * 800
    assert max(under_way) == SENT_AT_ONCE


async def test_a_takeover_walks_the_layout_once_for_each_subscription_and_skips_drained_segments(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plane.lead(6)
    controller = await plane.controller()
    for sub in ("s", "t"):
        await plane.call(controller.ensure_subscription(sub, "STREAM", "earliest"))
    plane.publish(controller.layout, 2)
    layout = await plane.call(controller.merge([0, 1, 2]))
    plane.kill()
    plane.disk.rosters.clear()
    looked: list[Layout] = []

    def counted(record: SubscriptionRecord, layout: Layout) -> dict[int, Ranges]:
        looked.append(layout)
        return slots_of(record, layout)

    slots_of = groups.slots_of
    monkeypatch.setattr(groups, "slots_of", counted)
    await plane.boot()
    await plane.call((await plane.controller()).settled())
    assert len(looked) == 2
    told = {plane.segment(layout, id_) for id_ in (2, 3, 4, 5, 6)}
    assert plane.disk.rosters.keys() == {(name, sub) for name in told for sub in ("s", "t")}
