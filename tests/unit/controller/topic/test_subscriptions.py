"""Subscriptions of one topic: drains, seeks, kinds, deletion and troubles."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.errors import (
    ConflictError,
    ConsumerBusyError,
    MetadataError,
    NotAllowedError,
    NotConnectedError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.drains import Ranges
from anabranch.model.names import Place, TopicName
from tests.harness.control import (
    TOPIC,
    ControlPlane,
    FakeConsumer,
    ids_of,
    lead_on_failing_store,
    stored_assignments,
)


async def test_children_are_handed_over_when_their_parent_is_drained(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    await asyncio.sleep(5)
    assert inbox.told == [], "the sealed parent is still to be read"
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(0.05)
    assert inbox.ids == [1, 2]
    assert inbox.told[-1].epoch == 1
    await plane.audit()


async def test_a_parent_without_backlog_is_drained_as_soon_as_it_is_sealed(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    await plane.call(controller.split(0))
    await asyncio.sleep(0)
    assert inbox.ids == [1, 2]


async def test_drains_across_generations_open_one_generation_at_a_time(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    for id_ in (0, 1):
        plane.publish(controller.layout)
        await plane.call(controller.split(id_))
    layout = controller.layout
    plane.drain(layout, "s", 1)
    await asyncio.sleep(1)
    assert inbox.told == [], "1 is drained, but its parent 0 is not"
    plane.drain(layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [2, 3, 4]
    await plane.audit()


async def test_a_drain_reported_after_a_failed_change_is_not_overlooked(plane: ControlPlane) -> None:
    controller, store = await lead_on_failing_store(plane, 2)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    await plane.call(controller.split(1))
    store.down = True
    with pytest.raises(MetadataError):
        await plane.call(controller.set_properties({"a": "b"}))
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(0.01)
    store.down = False
    await asyncio.sleep(10)
    plane.drain(controller.layout, "s", 1)
    await asyncio.sleep(1)
    assert inbox.ids == [2, 3, 4, 5]
    await plane.audit()


async def test_a_segment_drained_without_a_leader_is_found_at_the_next_start(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.join("a")
    plane.publish(controller.layout)
    layout = await plane.call(controller.split(0))
    plane.kill()
    plane.drain(layout, "s", 0)
    await plane.boot()
    await plane.controller()
    assert await stored_assignments(plane) == {"a": [1, 2]}


async def test_after_a_failover_nothing_that_was_legally_owned_is_revoked(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.join("a")
    await plane.call(controller.split(0))
    before = await stored_assignments(plane)
    assert before == {"a": [1, 2]}
    record = await TopicStore(MemoryStore(plane.tree)).load_subscription(TOPIC, "s")
    plane.kill()
    await plane.boot()
    again = await plane.join("a")
    assert record is not None
    assert ids_of(again.assignment) == [1, 2]
    assert again.assignment.generation == record.consumers["a"].generation


async def test_a_message_about_draining_that_a_seek_overtook_is_not_believed(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    plane.disk.tell(plane.segment(controller.layout, 0), "s")
    await asyncio.sleep(1)
    assert inbox.told == []


async def test_a_seek_takes_the_children_back_and_the_drained_parent_gives_them_again(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    plane.publish(controller.layout)
    await asyncio.sleep(10)
    await plane.call(controller.split(0))
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    plane.publish(controller.layout)
    await plane.call(controller.seek("s", 0))
    assert inbox.ids == [0]
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    assert [plane.disk.backlog(plane.segment(controller.layout, n), "s") for n in (1, 2)] == [1, 1]
    await plane.audit()


async def test_a_seek_takes_children_back_before_it_rewinds_their_parents(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    await plane.call(controller.split(0))
    assert inbox.ids == [1, 2]
    held_when_rewound: list[list[int]] = []

    def note(verb: str, name: TopicName) -> Exception | None:
        if verb == "seek":
            held_when_rewound.append(inbox.ids)
        return None

    plane.segments.fails = note
    await plane.call(controller.seek("s", 0))
    assert held_when_rewound == [[0]] * 3


async def test_a_seek_past_a_sealed_segment_leaves_it_drained(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    plane.publish(controller.layout)
    await asyncio.sleep(10)
    await plane.call(controller.split(0))
    plane.publish(controller.layout)
    await plane.call(controller.seek("s", plane.clock.wall_ms() - 1000))
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    assert [plane.disk.backlog(plane.segment(controller.layout, n), "s") for n in (0, 1, 2)] == [0, 1, 1]


async def test_a_seek_to_before_a_subscription_began_reads_segments_sealed_before_it(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead(1)
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    inbox = FakeConsumer()
    await plane.call(controller.register("s", "a", inbox, RegistrationRequest(start="latest")))
    plane.publish(controller.layout)
    await plane.call(controller.seek("s", 0))
    assert inbox.ids == [0], "the history comes first"
    assert plane.disk.backlog(plane.segment(controller.layout, 0), "s") == 1
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2]
    await plane.audit()


async def test_skipping_all_drains_everything_sealed(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    plane.publish(controller.layout)
    await plane.call(controller.skip_all("s"))
    await asyncio.sleep(0.1)
    assert inbox.ids == [1, 2]
    assert [plane.disk.backlog(plane.segment(controller.layout, n), "s") for n in (0, 1, 2)] == [0, 0, 0]
    assert len(inbox.told) == 1, "no segment moved back and forth"


async def test_a_registration_without_a_position_waits_for_the_first_to_give_one(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    plane.publish(controller.layout)
    layout = await plane.call(controller.split(0))
    inbox = FakeConsumer()
    one = await plane.call(controller.register("s", "a", inbox))
    assert ids_of(one.assignment) == [0]
    assert plane.disk.backlog(plane.segment(layout, 0), "s") is None
    await plane.call(controller.ensure_subscription("s", "STREAM", "latest"))
    await asyncio.sleep(0.1)
    assert inbox.ids == [1, 2], "for a latest subscription sealed segments count as drained"
    assert plane.disk.backlog(plane.segment(layout, 0), "s") is None
    await plane.audit()


async def test_checkpoint_groups_register_without_cursors(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    layout = await plane.call(controller.split(0))
    inbox = FakeConsumer()
    one = await plane.call(controller.register("g", "a", inbox, RegistrationRequest(kind="CHECKPOINT")))
    assert ids_of(one.assignment) == [0, 1, 2]
    assert all(not found.cursors for found in plane.disk.stored.values())
    with pytest.raises(NotAllowedError):
        await plane.call(controller.seek("g", 0))
    with pytest.raises(ConsumerBusyError):
        await plane.call(controller.ensure_subscription("g", "STREAM", "earliest"))
    layout = await plane.call(controller.split(1))
    await asyncio.sleep(0.1)
    assert inbox.ids == sorted(layout.segments)


async def test_a_subscription_has_one_kind_at_a_time(plane: ControlPlane) -> None:
    controller = await plane.lead()
    await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    one = await plane.join("a")
    with pytest.raises(ConsumerBusyError):
        await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    await plane.call(controller.leave(one))
    await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    assert controller.records["s"].type == "QUEUE"
    with pytest.raises(ConflictError):
        await plane.call(
            controller.register("s", "a", FakeConsumer(), RegistrationRequest(kind="CHECKPOINT"))
        )
    with pytest.raises(NotAllowedError):
        await plane.call(controller.register("s", "a", FakeConsumer(), RegistrationRequest(kind="QUEUE")))


async def test_a_stream_does_not_take_a_subscription_from_attached_queue_consumers(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead()
    await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    attached = plane.disk.stored[plane.segment(controller.layout, 1)].attached
    attached["s"] = 1
    with pytest.raises(ConsumerBusyError, match="QUEUE consumers"):
        await plane.join("a")
    assert controller.records["s"].type == "QUEUE"
    attached["s"] = 0
    await plane.join("a")
    assert controller.records.existing("s").type == "STREAM"


async def test_deleting_a_subscription_with_connected_consumers_must_be_forced(plane: ControlPlane) -> None:
    controller = await plane.lead()
    inbox = FakeConsumer()
    await plane.join("a", inbox)
    with pytest.raises(ConsumerBusyError):
        await plane.call(controller.delete_subscription("s"))
    await plane.call(controller.delete_subscription("s", force=True))
    await asyncio.sleep(0)
    assert inbox.ids == []
    assert inbox.told[-1].generation > 1
    assert "s" not in controller.records
    assert all(not found.cursors for found in plane.disk.stored.values())
    await plane.audit()
    await plane.join("a")


async def test_surplus_consumers_share_and_pushes_are_coalesced(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inboxes = [FakeConsumer() for _ in range(4)]
    await asyncio.gather(*(plane.join(f"c{n}", inbox) for n, inbox in enumerate(inboxes)))
    await asyncio.sleep(0.1)
    record = controller.records["s"]
    assert all(given.shared for c in record.consumers.values() for given in c.segments)
    assert len(inboxes[0].told) <= 3
    (segment,) = inboxes[0].told[-1].segments
    assert len(segment.bucket_ranges) == 4
    await plane.audit()


async def test_why_says_that_a_subscription_is_not_moved_everywhere_yet(plane: ControlPlane) -> None:
    controller = await plane.lead()
    await plane.call(controller.ensure_subscription("s", "STREAM", "earliest"))
    down = True

    def fails(verb: str, name: TopicName) -> Exception | None:
        return NotConnectedError("owner is away") if verb == "seek" and down else None

    plane.segments.fails = fails
    with pytest.raises(NotConnectedError):
        await plane.call(controller.seek("s", 0))
    assert controller.why()["subscriptions"]["s"]["unfinished"] == "seek"  # type: ignore[index]
    down = False
    await asyncio.sleep(10)
    assert controller.why()["subscriptions"]["s"]["unfinished"] is None  # type: ignore[index]


async def test_one_subscription_in_trouble_holds_up_no_other(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    inbox = FakeConsumer()
    await plane.join("a", inbox, "good")
    await plane.join("a", FakeConsumer(), "bad")
    world_drained = plane.segments.drained

    async def drained(place: Place, subscription: str) -> Ranges | None:
        if subscription == "bad":
            raise MetadataError("owner unreachable")
        return await world_drained(place, subscription)

    plane.segments.drained = drained  # type: ignore[method-assign]
    await plane.call(controller.split(0))
    await asyncio.sleep(0.01)
    assert inbox.ids == [1, 2]
    described = controller.why()["subscriptions"]
    assert "owner unreachable" in described["bad"]["trouble"]  # type: ignore[index]
    plane.segments.drained = world_drained  # type: ignore[method-assign]
    await asyncio.sleep(10)
    assert controller.records["bad"].drained == (0,)
    await plane.audit()
