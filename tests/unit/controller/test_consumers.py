"""Registration, grace, drain and push, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.controller.decide.places import Place
from anabranch.controller.ports.leader import Membership
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import (
    ConflictError,
    ConsumerBusyError,
    MetadataError,
    NotAllowedError,
    NotConnectedError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.store import MetadataStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.drains import Ranges
from anabranch.model.names import TopicName
from tests.fakes.metadata import FailingStore
from tests.harness.control import TOPIC, FakeConsumer, Plant, ids_of


async def lead(plant: Plant, segments: int = 2) -> TopicController:
    await plant.boot()
    await plant.call(plant.service.create_topic(TOPIC, segments))
    return await plant.controller()


async def lead_on_failing_store(plant: Plant, segments: int) -> tuple[TopicController, FailingStore]:
    stores: list[FailingStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(FailingStore(store))
        return stores[-1]

    await plant.boot(wrap=wrap)
    await plant.call(plant.service.create_topic(TOPIC, segments))
    return await plant.controller(), stores[-1]


async def join(plant: Plant, name: str, inbox: FakeConsumer | None = None, sub: str = "s") -> Membership:
    controller = await plant.controller()
    return await plant.call(
        controller.register(sub, name, "STREAM", "earliest", inbox if inbox is not None else FakeConsumer())
    )


async def stored(plant: Plant, sub: str = "s") -> dict[str, list[int]]:
    record = await TopicStore(MemoryStore(plant.tree)).load_subscription(TOPIC, sub)
    assert record is not None
    return {n: [given.segment_id for given in c.segments] for n, c in record.consumers.items()}


async def test_registration_assignment_and_generation_are_durable(plant: Plant) -> None:
    await lead(plant)
    first, second = FakeConsumer(), FakeConsumer()
    one = await join(plant, "a", first)
    assert ids_of(one.assignment) == [0, 1]
    two = await join(plant, "b", second)
    await asyncio.sleep(0.1)
    assert sorted(ids_of(two.assignment) + first.ids) == [0, 1]
    assert first.told[-1].generation == two.assignment.generation == 2
    assert second.told == [], "what registration returned is not pushed again"
    assert await stored(plant) == {"a": first.ids, "b": ids_of(two.assignment)}
    await plant.audit()
    await plant.stop()


async def test_reconnecting_within_the_grace_period_gives_the_same_and_disturbs_nobody(plant: Plant) -> None:
    controller = await lead(plant)
    other = FakeConsumer()
    one, _ = await join(plant, "a"), await join(plant, "b", other)
    before = await stored(plant)
    told = len(other.told)
    controller.connection_lost(one)
    await asyncio.sleep(59)
    again = await join(plant, "a")
    assert again.token != one.token
    assert ids_of(again.assignment) == before["a"]
    await asyncio.sleep(300)
    assert await stored(plant) == before
    assert len(other.told) == told
    await plant.stop()


async def test_eviction_comes_after_the_full_grace_period_and_moves_the_share(plant: Plant) -> None:
    controller = await lead(plant)
    inbox = FakeConsumer()
    one, _ = await join(plant, "a"), await join(plant, "b", inbox)
    controller.connection_lost(one)
    await asyncio.sleep(59.9)
    assert sorted(await stored(plant)) == ["a", "b"]
    members: Any = controller.why()["subscriptions"]["s"]["consumers"]  # type: ignore[index]
    assert members["a"]["evictedInSeconds"] == pytest.approx(0.1, abs=0.01)
    assert members["b"]["evictedInSeconds"] is None
    await asyncio.sleep(0.2)
    assert await stored(plant) == {"b": [0, 1]}
    assert inbox.ids == [0, 1]
    await plant.stop()


async def test_a_late_loss_of_an_old_connection_is_ignored(plant: Plant) -> None:
    controller = await lead(plant)
    inbox = FakeConsumer()
    old = await join(plant, "a")
    controller.connection_lost(old)
    await join(plant, "a", inbox)
    controller.connection_lost(old)
    await plant.call(controller.leave(old))
    await asyncio.sleep(200)
    assert list(await stored(plant)) == ["a"]
    await join(plant, "b")
    await asyncio.sleep(0.1)
    assert len(inbox.ids) == 1, "the living connection is still told"
    await plant.stop()


async def test_the_same_name_twice_has_one_owner(plant: Plant) -> None:
    await lead(plant)
    await join(plant, "a")
    before = await stored(plant)
    with pytest.raises(ConsumerBusyError):
        await join(plant, "a")
    assert await stored(plant) == before
    await plant.stop()


async def test_leaving_frees_at_once(plant: Plant) -> None:
    controller = await lead(plant)
    inbox = FakeConsumer()
    one, _ = await join(plant, "a"), await join(plant, "b", inbox)
    await plant.call(controller.leave(one))
    await plant.call(controller.leave(one))
    assert inbox.ids == [0, 1]
    assert await stored(plant) == {"b": [0, 1]}
    await join(plant, "a")
    await plant.stop()


async def test_members_survive_a_crash_and_get_a_full_grace_period(plant: Plant) -> None:
    await lead(plant)
    await join(plant, "a")
    await join(plant, "b")
    before = await stored(plant)
    plant.kill()
    await asyncio.sleep(100)
    await plant.boot()
    await plant.controller()
    again = await join(plant, "a")
    assert ids_of(again.assignment) == before["a"]
    await asyncio.sleep(59)
    assert await stored(plant) == before
    await asyncio.sleep(2)
    assert await stored(plant) == {"a": [0, 1]}
    await plant.stop()


@pytest.mark.parametrize("delay_s", [0.001, 0.002, 0.003, 0.004])
async def test_a_caller_that_dies_while_it_registers_is_not_a_member_for_ever(
    plant: Plant, delay_s: float
) -> None:
    controller = await lead(plant)
    task = plant.process.spawn(controller.register("s", "a", "STREAM", "earliest", FakeConsumer()))
    await asyncio.sleep(delay_s)
    assert not task.done()
    task.cancel()
    await asyncio.sleep(0.1)
    assert list(await stored(plant)) == ["a"], "its job had begun and went on without it"
    await asyncio.sleep(70)
    assert await stored(plant) == {}
    await plant.stop()


async def test_a_consumer_that_could_not_leave_is_evicted_as_soon_as_that_can_be_stored(plant: Plant) -> None:
    controller, store = await lead_on_failing_store(plant, 1)
    inbox = FakeConsumer()
    one, _ = await join(plant, "a"), await join(plant, "b", inbox)
    store.fails = lambda path: "subscriptions" in path
    with pytest.raises(MetadataError):
        await plant.call(controller.leave(one))
    await asyncio.sleep(1)
    store.fails = lambda path: False
    await asyncio.sleep(10)
    assert list(await stored(plant)) == ["b"]
    assert inbox.ids == [0]
    await join(plant, "a")
    await asyncio.sleep(100)
    assert sorted(await stored(plant)) == ["a", "b"]
    await plant.stop()


async def test_a_name_whose_owner_could_not_leave_is_free(plant: Plant) -> None:
    controller, store = await lead_on_failing_store(plant, 1)
    one = await join(plant, "a")
    store.fails = lambda path: "subscriptions" in path
    with pytest.raises(MetadataError):
        await plant.call(controller.leave(one))
    store.fails = lambda path: False
    await join(plant, "a")
    await asyncio.sleep(100)
    assert list(await stored(plant)) == ["a"]
    await plant.stop()


async def test_an_eviction_that_cannot_be_stored_is_tried_again(plant: Plant) -> None:
    controller, store = await lead_on_failing_store(plant, 1)
    one = await join(plant, "a")
    controller.connection_lost(one)
    store.fails = lambda path: "subscriptions" in path
    await asyncio.sleep(61)
    assert list(await stored(plant)) == ["a"]
    store.fails = lambda path: False
    await asyncio.sleep(10)
    assert await stored(plant) == {}
    assert controller.why()["troubles"] == {}
    await plant.stop()


async def test_an_eviction_whose_turn_ends_before_it_is_tried_again(plant: Plant) -> None:
    controller, store = await lead_on_failing_store(plant, 1)
    one = await join(plant, "a")
    controller.connection_lost(one)
    await asyncio.sleep(59)
    # What failed half-way must be read again before anything else is done, and cannot be.
    store.down = True
    with pytest.raises(MetadataError):
        await plant.call(controller.ensure_subscription("t", "QUEUE", "earliest"))
    await asyncio.sleep(2)
    store.down = False
    await asyncio.sleep(10)
    assert await stored(plant) == {}
    await plant.stop()


async def test_children_are_handed_over_when_their_parent_is_drained(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    plant.publish(controller.layout)
    await plant.call(controller.split(0))
    await asyncio.sleep(5)
    assert inbox.told == [], "the sealed parent is still to be read"
    plant.drain(controller.layout, "s", 0)
    await asyncio.sleep(0.05)
    assert inbox.ids == [1, 2]
    assert inbox.told[-1].epoch == 1
    await plant.audit()
    await plant.stop()


async def test_a_parent_without_backlog_is_drained_as_soon_as_it_is_sealed(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    await plant.call(controller.split(0))
    await asyncio.sleep(0)
    assert inbox.ids == [1, 2]
    await plant.stop()


async def test_drains_across_generations_open_one_generation_at_a_time(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    for id_ in (0, 1):
        plant.publish(controller.layout)
        await plant.call(controller.split(id_))
    layout = controller.layout
    plant.drain(layout, "s", 1)
    await asyncio.sleep(1)
    assert inbox.told == [], "1 is drained, but its parent 0 is not"
    plant.drain(layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [2, 3, 4]
    await plant.audit()
    await plant.stop()


async def test_a_drain_told_after_a_turn_that_failed_is_not_overlooked(plant: Plant) -> None:
    controller, store = await lead_on_failing_store(plant, 2)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    plant.publish(controller.layout)
    await plant.call(controller.split(0))
    await plant.call(controller.split(1))
    store.down = True
    with pytest.raises(MetadataError):
        await plant.call(controller.set_properties({"a": "b"}))
    plant.drain(controller.layout, "s", 0)
    await asyncio.sleep(0.01)
    store.down = False
    await asyncio.sleep(10)
    plant.drain(controller.layout, "s", 1)
    await asyncio.sleep(1)
    assert inbox.ids == [2, 3, 4, 5]
    await plant.audit()
    await plant.stop()


async def test_what_was_drained_while_nobody_led_is_found_at_the_next_start(plant: Plant) -> None:
    controller = await lead(plant, 1)
    await join(plant, "a")
    plant.publish(controller.layout)
    layout = await plant.call(controller.split(0))
    plant.kill()
    plant.drain(layout, "s", 0)
    await plant.boot()
    await plant.controller()
    assert await stored(plant) == {"a": [1, 2]}
    await plant.stop()


async def test_after_a_failover_nothing_that_was_legally_owned_is_revoked(plant: Plant) -> None:
    controller = await lead(plant, 1)
    await join(plant, "a")
    await plant.call(controller.split(0))
    before = await stored(plant)
    assert before == {"a": [1, 2]}
    record = await TopicStore(MemoryStore(plant.tree)).load_subscription(TOPIC, "s")
    plant.kill()
    await plant.boot()
    again = await join(plant, "a")
    assert record is not None
    assert ids_of(again.assignment) == [1, 2]
    assert again.assignment.generation == record.consumers["a"].generation
    await plant.stop()


async def test_a_message_about_draining_that_a_seek_overtook_is_not_believed(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    plant.publish(controller.layout)
    await plant.call(controller.split(0))
    plant.world.tell(plant.segment(controller.layout, 0), "s")
    await asyncio.sleep(1)
    assert inbox.told == []
    await plant.stop()


async def test_a_seek_takes_the_children_back_and_the_drained_parent_gives_them_again(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    plant.publish(controller.layout)
    await asyncio.sleep(10)
    await plant.call(controller.split(0))
    plant.drain(controller.layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    plant.publish(controller.layout)
    await plant.call(controller.seek("s", 0))
    assert inbox.ids == [0]
    plant.drain(controller.layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    assert [plant.world.backlog(plant.segment(controller.layout, n), "s") for n in (1, 2)] == [1, 1]
    await plant.audit()
    await plant.stop()


async def test_a_seek_takes_children_back_before_it_rewinds_their_parents(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    await plant.call(controller.split(0))
    assert inbox.ids == [1, 2]
    held_when_rewound: list[list[int]] = []

    def note(verb: str, name: TopicName) -> Exception | None:
        if verb == "seek":
            held_when_rewound.append(inbox.ids)
        return None

    plant.segments.fails = note
    await plant.call(controller.seek("s", 0))
    assert held_when_rewound == [[0]] * 3
    await plant.stop()


async def test_a_seek_past_a_sealed_segment_leaves_it_drained(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    plant.publish(controller.layout)
    await asyncio.sleep(10)
    await plant.call(controller.split(0))
    plant.publish(controller.layout)
    await plant.call(controller.seek("s", plant.clock.wall_ms() - 1000))
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    assert [plant.world.backlog(plant.segment(controller.layout, n), "s") for n in (0, 1, 2)] == [0, 1, 1]
    await plant.stop()


async def test_a_seek_to_before_a_subscription_began_reads_what_was_sealed_by_then(plant: Plant) -> None:
    controller = await lead(plant, 1)
    plant.publish(controller.layout)
    await plant.call(controller.split(0))
    inbox = FakeConsumer()
    await plant.call(controller.register("s", "a", "STREAM", "latest", inbox))
    plant.publish(controller.layout)
    await plant.call(controller.seek("s", 0))
    assert inbox.ids == [0], "the history comes first"
    assert plant.world.backlog(plant.segment(controller.layout, 0), "s") == 1
    plant.drain(controller.layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    await plant.audit()
    await plant.stop()


async def test_skipping_all_drains_everything_sealed(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    plant.publish(controller.layout)
    await plant.call(controller.split(0))
    plant.publish(controller.layout)
    await plant.call(controller.skip_all("s"))
    await asyncio.sleep(0.1)
    assert inbox.ids == [1, 2]
    assert [plant.world.backlog(plant.segment(controller.layout, n), "s") for n in (0, 1, 2)] == [0, 0, 0]
    assert len(inbox.told) == 1, "nobody was sent back and forth"
    await plant.stop()


async def test_a_registration_without_a_position_waits_for_the_first_to_give_one(plant: Plant) -> None:
    controller = await lead(plant, 1)
    plant.publish(controller.layout)
    layout = await plant.call(controller.split(0))
    inbox = FakeConsumer()
    one = await plant.call(controller.register("s", "a", "STREAM", None, inbox))
    assert ids_of(one.assignment) == [0]
    assert plant.world.backlog(plant.segment(layout, 0), "s") is None
    await plant.call(controller.ensure_subscription("s", "STREAM", "latest"))
    await asyncio.sleep(0.1)
    assert inbox.ids == [1, 2], "for a latest subscription sealed segments count as drained"
    assert plant.world.backlog(plant.segment(layout, 0), "s") is None
    await plant.audit()
    await plant.stop()


async def test_checkpoint_groups_register_without_cursors(plant: Plant) -> None:
    controller = await lead(plant, 1)
    layout = await plant.call(controller.split(0))
    inbox = FakeConsumer()
    one = await plant.call(controller.register("g", "a", "CHECKPOINT", None, inbox))
    assert ids_of(one.assignment) == [0, 1, 2]
    assert all(not found.cursors for found in plant.world.stored.values())
    with pytest.raises(NotAllowedError):
        await plant.call(controller.seek("g", 0))
    with pytest.raises(ConsumerBusyError):
        await plant.call(controller.ensure_subscription("g", "STREAM", "earliest"))
    layout = await plant.call(controller.split(1))
    await asyncio.sleep(0.1)
    assert inbox.ids == sorted(layout.segments)
    await plant.stop()


async def test_a_subscription_has_one_kind_at_a_time(plant: Plant) -> None:
    controller = await lead(plant)
    await plant.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    one = await join(plant, "a")
    with pytest.raises(ConsumerBusyError):
        await plant.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    await plant.call(controller.leave(one))
    await plant.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    assert controller.subscriptions()["s"].type == "QUEUE"
    with pytest.raises(ConflictError):
        await plant.call(controller.register("s", "a", "CHECKPOINT", None, FakeConsumer()))
    with pytest.raises(NotAllowedError):
        await plant.call(controller.register("s", "a", "QUEUE", None, FakeConsumer()))
    await plant.stop()


async def test_a_stream_does_not_take_a_subscription_from_attached_queue_consumers(plant: Plant) -> None:
    controller = await lead(plant)
    await plant.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    attached = plant.world.stored[plant.segment(controller.layout, 1)].attached
    attached["s"] = 1
    with pytest.raises(ConsumerBusyError, match="QUEUE consumers"):
        await join(plant, "a")
    assert controller.subscriptions()["s"].type == "QUEUE"
    attached["s"] = 0
    await join(plant, "a")
    assert controller.subscriptions()["s"].type == "STREAM"
    await plant.stop()


async def test_deleting_a_subscription_with_connected_consumers_must_be_forced(plant: Plant) -> None:
    controller = await lead(plant)
    inbox = FakeConsumer()
    await join(plant, "a", inbox)
    with pytest.raises(ConsumerBusyError):
        await plant.call(controller.delete_subscription("s"))
    await plant.call(controller.delete_subscription("s", force=True))
    await asyncio.sleep(0)
    assert inbox.ids == []
    assert inbox.told[-1].generation > 1
    assert "s" not in controller.subscriptions()
    assert all(not found.cursors for found in plant.world.stored.values())
    await plant.audit()
    await join(plant, "a")
    await plant.stop()


async def test_surplus_consumers_share_and_pushes_are_coalesced(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inboxes = [FakeConsumer() for _ in range(4)]
    await asyncio.gather(*(join(plant, f"c{n}", inbox) for n, inbox in enumerate(inboxes)))
    await asyncio.sleep(0.1)
    record = controller.subscriptions()["s"]
    assert all(given.shared for c in record.consumers.values() for given in c.segments)
    assert len(inboxes[0].told) <= 3
    (segment,) = inboxes[0].told[-1].segments
    assert len(segment.bucket_ranges) == 4
    await plant.audit()
    await plant.stop()


async def test_why_says_that_a_subscription_is_not_moved_everywhere_yet(plant: Plant) -> None:
    controller = await lead(plant)
    await plant.call(controller.ensure_subscription("s", "STREAM", "earliest"))
    down = True

    def fails(verb: str, name: TopicName) -> Exception | None:
        return NotConnectedError("owner is away") if verb == "seek" and down else None

    plant.segments.fails = fails
    with pytest.raises(NotConnectedError):
        await plant.call(controller.seek("s", 0))
    assert controller.why()["subscriptions"]["s"]["unfinished"] == "seek"  # type: ignore[index]
    down = False
    await asyncio.sleep(10)
    assert controller.why()["subscriptions"]["s"]["unfinished"] is None  # type: ignore[index]
    await plant.stop()


async def test_one_subscription_in_trouble_holds_up_no_other(plant: Plant) -> None:
    controller = await lead(plant, 1)
    inbox = FakeConsumer()
    await join(plant, "a", inbox, "good")
    await join(plant, "a", FakeConsumer(), "bad")
    world_drained = plant.segments.drained

    async def drained(place: Place, subscription: str) -> Ranges | None:
        if subscription == "bad":
            raise MetadataError("owner unreachable")
        return await world_drained(place, subscription)

    plant.segments.drained = drained  # type: ignore[method-assign]
    await plant.call(controller.split(0))
    await asyncio.sleep(0.01)
    assert inbox.ids == [1, 2]
    described = controller.why()["subscriptions"]
    assert "owner unreachable" in described["bad"]["trouble"]  # type: ignore[index]
    plant.segments.drained = world_drained  # type: ignore[method-assign]
    await asyncio.sleep(10)
    assert controller.subscriptions()["bad"].drained == (0,)
    await plant.audit()
    await plant.stop()
