"""Owners of segments get rosters before their readers get assignments."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.decide import groups
from anabranch.controller.decide.admission import AttachRequest, ReaderState, Roster
from anabranch.controller.decide.places import Place
from anabranch.controller.ports.leader import Membership
from anabranch.controller.ports.segments import Aim
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.rosters import SENT_AT_ONCE
from anabranch.errors import ConsumerBusyError, NotConnectedError, NotLeaderError, SegmentNotFoundError
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.assignment import Assignment
from anabranch.model.drains import Ranges
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from tests.fakes.segments import MemorySegments
from tests.harness.control import FROM_EARLIEST, TOPIC, DiedError, FakeConsumer, Plant, SilentConsumer, ids_of


async def join(plant: Plant, name: str, inbox: FakeConsumer | None = None) -> Assignment:
    return (await plant.join(name, inbox)).assignment


async def attach(plant: Plant, name: str, segment_id: int, generation: int) -> None:
    controller = await plant.controller()
    await plant.call(
        controller.admit("s", AttachRequest(segment_id=segment_id, consumer_name=name, generation=generation))
    )


async def state_of(plant: Plant, name: str, segment_id: int, generation: int) -> ReaderState | None:
    """The state of a consumer in the owner's roster; None if the owner has no roster."""
    controller = await plant.controller()
    roster = plant.world.rosters.get((plant.segment(controller.layout, segment_id), "s"))
    return None if roster is None else roster.state_of(name, generation, by_buckets=False)


class RosterWitness(FakeConsumer):
    """Notes what owners had been told of another consumer when this one was told what it reads."""

    def __init__(self, plant: Plant, other: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._plant = plant
        self._other = other

    def __call__(self, assignment: Assignment | None) -> None:
        super().__call__(assignment)
        for segment in assignment.segments if assignment is not None else ():
            roster = self._plant.world.rosters[TopicName.parse(segment.topic), "s"]
            self.seen.append(roster.state_of(self._other, 1, by_buckets=False))


async def test_owners_hear_of_an_eviction_before_the_next_reader_does(plant: Plant) -> None:
    await plant.lead()
    witness = RosterWitness(plant, "a")
    held = await join(plant, "a")
    for segment_id in (0, 1):
        await attach(plant, "a", segment_id, held.generation)
    await join(plant, "b", witness)
    assert await state_of(plant, "a", 1, 1) == "finishes", "the half that went to b"
    controller = await plant.controller()
    await evict(plant, "a")
    assert ids_of(witness.told[-1]) == [0, 1]
    assert witness.seen[-2:] == ["gone", "gone"]
    assert controller.why()["troubles"] == {}


async def registrations(plant: Plant) -> list[str]:
    controller = await plant.controller()
    return sorted(controller.subscriptions()["s"].consumers)


async def evict(plant: Plant, name: str) -> None:
    """Let the connection of a member be lost for longer than its grace."""
    controller = await plant.controller()
    hold = controller.members.named("s", name)
    assert hold is not None
    controller.members.lost("s", hold.token)
    await asyncio.sleep(61)


async def test_an_evicted_consumer_is_gone_also_where_it_only_finished(plant: Plant) -> None:
    await plant.lead()
    held = await join(plant, "a")
    await attach(plant, "a", 1, held.generation)
    await join(plant, "b")
    assert await state_of(plant, "a", 1, held.generation) == "finishes"
    await evict(plant, "a")
    assert await state_of(plant, "a", 1, held.generation) == "gone"
    with pytest.raises(ConsumerBusyError):
        await attach(plant, "a", 1, held.generation)


@pytest.mark.parametrize("silent", [False, True])
async def test_an_owner_that_does_not_answer_delays_no_change_and_gets_the_roster_later(
    plant: Plant, silent: bool
) -> None:
    await plant.lead()
    inbox = FakeConsumer()
    await join(plant, "a")
    await join(plant, "b", inbox)
    controller = await plant.controller()
    restrict, answers = plant.segments.restrict, asyncio.Event()

    async def unreachable(*arguments: object) -> None:
        if not answers.is_set():
            if silent:
                await answers.wait()
            raise NotConnectedError("the owner is away")
        await restrict(*arguments)  # type: ignore[arg-type]

    plant.segments.restrict = unreachable  # type: ignore[assignment, method-assign]
    began = plant.loop.time()
    await evict(plant, "a")
    await plant.call(controller.settled())
    assert plant.loop.time() - began < 66
    assert inbox.ids == [0, 1], (
        "the next reader gets its assignment; no consumer attaches before the roster is there"
    )
    assert await state_of(plant, "a", 0, 1) != "gone"

    def unreached() -> list[str]:
        return list(controller.why()["subscriptions"]["s"]["unreached"])  # type: ignore[index]

    assert unreached() == ["0", "1"], "it may be attached wherever it was given a segment"
    answers.set()
    await asyncio.sleep(5)
    assert await state_of(plant, "a", 0, 1) == "gone"
    assert unreached() == []


async def test_a_leader_that_dies_before_owners_hear_is_made_good_by_the_next(plant: Plant) -> None:
    await plant.lead()
    await join(plant, "a")
    await join(plant, "b")
    controller = await plant.controller()
    generation = controller.subscriptions()["s"].consumers["a"].generation

    def die(verb: str, name: TopicName) -> Exception | None:
        if verb == "restrict":
            plant.kill()
            return NotConnectedError("killed")
        return None

    plant.segments.fails = die
    with pytest.raises(DiedError):
        await plant.call(leave(plant, "a"))
    assert await state_by_rosters(plant, "a", 0, generation) != "gone"
    await plant.boot()
    assert await registrations(plant) == ["b"]
    assert await state_of(plant, "a", 0, generation) == "gone"


async def leave(plant: Plant, name: str) -> None:
    controller = await plant.service.controller(TOPIC)
    assert isinstance(controller, TopicController)
    hold = controller.members.named("s", name)
    assert hold is not None
    await controller.leave(Membership(hold.token, "s", name, Assignment(0, 0), 0))


async def state_by_rosters(plant: Plant, name: str, segment_id: int, generation: int) -> str:
    found = [
        roster.state_of(name, generation, by_buckets=False)
        for (segment, _), roster in plant.world.rosters.items()
        if segment.segment is not None and segment.segment.id == segment_id
    ]
    return found[0] if found else "unknown"


async def test_a_replaced_leader_admits_no_consumer(plant: Plant) -> None:
    await plant.lead()
    held = await join(plant, "a")
    controller = await plant.controller()
    await plant.call(controller.stop())
    with pytest.raises(NotLeaderError):
        await plant.call(
            controller.admit("s", AttachRequest(segment_id=0, consumer_name="a", generation=held.generation))
        )


async def test_a_seek_of_one_segment_moves_no_other(plant: Plant) -> None:
    await plant.lead()
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    controller = await plant.controller()
    before = controller.layout
    plant.publish(before, 0, 1)
    await plant.call(controller.split(0))
    await plant.call(controller.split(1))
    plant.drain(before, "s", 0, 1)
    await asyncio.sleep(1)
    assert controller.subscriptions()["s"].drained == (0, 1)
    await plant.call(controller.seek_segment("s", 0, Aim(0, 0)))
    assert controller.subscriptions()["s"].drained == (1,)
    await asyncio.sleep(0.1)
    assert 0 in inbox.ids
    assert not set(inbox.ids) & before.descendants(0)
    assert plant.world.backlog(plant.segment(before, 1), "s") == 0
    with pytest.raises(SegmentNotFoundError):
        await plant.call(controller.seek_segment("s", 99, 0))


async def test_a_seek_of_one_segment_is_finished_by_the_next_leader(plant: Plant) -> None:
    await plant.lead(1)
    await join(plant, "a")
    controller = await plant.controller()
    before = controller.layout
    plant.publish(before)
    await plant.call(controller.split(0))
    plant.drain(before, "s", 0)
    await asyncio.sleep(1)
    plant.kill()
    await plant.boot(kill_at="subscription.seek.recorded")
    with pytest.raises(DiedError):
        await plant.call((await plant.controller()).seek_segment("s", 0, Aim(0, 0)))
    await plant.boot()
    controller = await plant.controller()
    assert controller.subscriptions()["s"].unfinished is None
    assert controller.subscriptions()["s"].drained == ()
    assert plant.world.backlog(plant.segment(before, 0), "s") == 1


@pytest.mark.parametrize("lives", [False, True])
async def test_a_name_is_refused_only_while_its_holder_shows_a_sign_of_life(
    plant: Plant, lives: bool
) -> None:
    await plant.lead()
    held = await join(plant, "a", SilentConsumer(lives=lives))
    controller = await plant.controller()
    again = plant.process.spawn(controller.register("s", "a", FakeConsumer(), FROM_EARLIEST))
    other = await join(plant, "b")
    assert not again.done(), "others do not wait for the answer"
    if lives:
        with pytest.raises(ConsumerBusyError):
            await again
    else:
        kept = (await again).assignment
        assert {*ids_of(kept), *ids_of(other)} == {*ids_of(held)}


async def test_subscriptions_that_follow_side_by_side_are_announced_after_their_own_owners(
    plant: Plant,
) -> None:
    await plant.lead()
    controller = await plant.controller()
    late: list[str] = []

    class Judge(FakeConsumer):
        def __init__(self, sub: str) -> None:
            super().__init__()
            self._sub = sub

        def __call__(self, assignment: Assignment | None) -> None:
            super().__call__(assignment)
            roster = plant.world.rosters.get((plant.segment(controller.layout, 1), self._sub))
            if assignment is not None and (roster is None or roster.generation < assignment.generation):
                late.append(self._sub)

    for sub in ("slow", "swift"):
        for name in ("a", "b"):
            await plant.call(controller.register(sub, name, Judge(sub), FROM_EARLIEST))
    restrict = plant.segments.restrict

    async def hesitate(place: Place, sub: str, roster: Roster, term: int) -> None:
        await asyncio.sleep(1.0 if sub == "slow" else 0.5)
        await restrict(place, sub, roster, term)

    plant.segments.restrict = hesitate  # type: ignore[assignment, method-assign]
    began = plant.loop.time()
    await plant.call(controller.merge([0, 1]))
    await plant.call(controller.settled())
    assert plant.loop.time() - began < 1.3, "neither waits for the owners of the other"
    assert late == []


async def test_the_rosters_of_very_many_subscriptions_go_out_a_few_at_a_time(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plant.lead(8)
    controller = await plant.controller()
    for number in range(100):
        await plant.call(controller.ensure_subscription(f"s{number}", "STREAM", "earliest"))
    plant.kill()
    under_way: list[int] = [0]

    async def count(*arguments: object) -> None:
        under_way.append(under_way[-1] + 1)
        await asyncio.sleep(0.01)
        under_way.append(under_way[-1] - 1)

    monkeypatch.setattr(MemorySegments, "restrict", count)
    await plant.boot()
    await plant.call((await plant.controller()).settled())
    assert len(under_way) == 1 + 2 * 800
    assert max(under_way) == SENT_AT_ONCE


async def test_a_takeover_walks_the_layout_once_for_each_subscription_and_skips_drained_segments(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plant.lead(6)
    controller = await plant.controller()
    for sub in ("s", "t"):
        await plant.call(controller.ensure_subscription(sub, "STREAM", "earliest"))
    plant.publish(controller.layout, 2)
    layout = await plant.call(controller.merge([0, 1, 2]))
    plant.kill()
    plant.world.rosters.clear()
    looked: list[Layout] = []

    def counted(record: SubscriptionRecord, layout: Layout) -> dict[int, Ranges]:
        looked.append(layout)
        return slots_of(record, layout)

    slots_of = groups.slots_of
    monkeypatch.setattr(groups, "slots_of", counted)
    await plant.boot()
    await plant.call((await plant.controller()).settled())
    assert len(looked) == 2
    told = {plant.segment(layout, id_) for id_ in (2, 3, 4, 5, 6)}
    assert plant.world.rosters.keys() == {(name, sub) for name in told for sub in ("s", "t")}
