"""How topics come, go and are watched."""

from __future__ import annotations

import asyncio
import gc
import weakref

import msgspec
import pytest

from anabranch.errors import (
    AlreadyClosedError,
    ConsumerBusyError,
    InvalidNameError,
    LayoutError,
    NotConnectedError,
    NotFoundError,
    NotLeaderError,
    TopicExistsError,
    TopicNotFoundError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.records import GarbageRecord, TopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.ranges import FULL
from tests.harness.control import TOPIC, ControlPlane, FakeConsumer


class Epochs:
    """The epochs that a watcher received; -1 is a deletion."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def __call__(self, layout: Layout | None) -> None:
        self.told.append(-1 if layout is None else layout.epoch)


async def test_a_topic_is_created_once_and_found_by_its_properties(plane: ControlPlane) -> None:
    service = await plane.boot()
    other = TopicName.parse("topic://public/default/a/b")
    await plane.call(service.create_topic(TOPIC, 2, {"team": "blue", "tier": "1"}))
    await plane.call(service.create_topic(other, 1, {"team": "blue"}))
    with pytest.raises(TopicExistsError):
        await plane.call(service.create_topic(TOPIC))
    assert await plane.call(service.list_topics("public/default")) == [other, TOPIC]
    filters = {"team": "blue", "tier": "1"}
    assert await plane.call(service.list_topics("public/default", filters.items())) == [TOPIC]
    assert await plane.call(service.list_topics("public/default", {("team", "red")})) == []
    assert set(service.layouts()) == {TOPIC, other}
    await plane.audit(other)


async def test_names_that_no_client_could_use_are_refused(plane: ControlPlane) -> None:
    service = await plane.boot()
    for text, error in (
        ("persistent://public/default/x", InvalidNameError),
        ("topic://public/default/x-partition-0", InvalidNameError),
        ("topic://public/nowhere/x", NotFoundError),
    ):
        with pytest.raises(error):
            await plane.call(service.create_topic(TopicName.parse(text)))
    with pytest.raises(LayoutError):
        await plane.call(service.create_topic(TOPIC, 0))
    with pytest.raises(TopicNotFoundError):
        await plane.controller()
    await plane.call(service.create_topic(TOPIC))
    assert (await plane.audit()).epoch == 0


async def test_of_two_creators_at_once_one_wins_and_the_topic_is_whole(plane: ControlPlane) -> None:
    service = await plane.boot()
    outcomes = await asyncio.gather(
        *(plane.call(service.create_topic(TOPIC, n)) for n in (1, 2, 3)), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, TopicExistsError) for outcome in outcomes) == 2
    await plane.audit()


async def test_every_spelling_of_a_topic_has_one_controller(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    old = TopicName.parse("persistent://public/default/orders")
    segment = TopicName.parse("segment://public/default/orders/0000-ffff-0")
    found = [await plane.controller(name) for name in (TOPIC, old, segment)]
    assert found[0] is found[1] is found[2]


async def test_concurrent_requests_for_a_topic_share_one_leader_and_one_term(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    term = (await plane.controller()).record.term
    await plane.stop()
    await plane.boot()
    found = await asyncio.gather(*(plane.controller() for _ in range(5)))
    assert len({id(controller) for controller in found}) == 1
    assert found[0].record.term == term + 1
    await plane.stop()
    with pytest.raises(AlreadyClosedError):
        await plane.controller()


async def test_a_slow_request_for_a_topic_meets_the_leader_that_was_made_meanwhile(
    plane: ControlPlane,
) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    plane.kill()
    service = await plane.boot()
    topics = plane.context.topics
    load, slow = topics.load, asyncio.Event()

    async def late(name: TopicName) -> TopicRecord:
        record = await load(name)
        topics.load = load  # type: ignore[method-assign]
        await slow.wait()
        return record

    topics.load = late  # type: ignore[method-assign]
    asked = plane.process.spawn(service.controller(TOPIC))
    await asyncio.sleep(0.1)
    leader = await plane.controller()
    slow.set()
    assert await asked is leader


async def test_after_a_start_topics_with_several_segments_are_led_and_others_when_used(
    plane: ControlPlane,
) -> None:
    service = await plane.boot()
    names = [TopicName.parse(f"topic://public/default/t{n}") for n in range(5)]
    for number, name in enumerate(names):
        await plane.call(service.create_topic(name, segments=1 + number % 2))
    plane.kill()
    service = await plane.boot()
    await asyncio.sleep(1)
    assert sorted(map(str, service.layouts())) == sorted(map(str, names[1::2]))
    assert sorted(str(topic.name) for topic in service.summaries()) == sorted(map(str, names))
    await plane.call(service.controller(names[0]))
    assert names[0] in service.layouts()


async def test_a_topic_rests_once_it_is_unused_and_keeps_its_decisions(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    heard: list[Layout | None] = []
    undo = plane.process.context.run(service.watch_layout, TOPIC, heard.append)
    await asyncio.sleep(200)
    assert TOPIC in service.layouts(), "a client watches it"
    undo()
    await asyncio.sleep(200)
    assert TOPIC not in service.layouts()
    assert service.home(TOPIC) == 0
    (topic,) = service.summaries()
    assert (topic.active, topic.buckets) == (1, {0: 4})
    leader = await plane.call(service.controller(TOPIC))
    looks = (await plane.call(leader.explain()))["decisions"]
    assert isinstance(looks, list)
    assert looks[0]["count"] >= 2, "it continues the decisions of the leader before"
    layout = await plane.call(leader.split(0))
    assert len(layout.active) == 2
    await asyncio.sleep(200)
    assert TOPIC in service.layouts(), "its segments may have to be merged"


async def test_a_change_of_policies_wakes_the_topics_of_the_namespace(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    await asyncio.sleep(200)
    assert TOPIC not in service.layouts()
    await plane.call(
        plane.context.topics.namespaces.update_namespace(
            "public/default",
            lambda found: msgspec.structs.replace(
                found, scalable_topic_auto_scale_policy={"enabled": True, "minSegments": 3}
            ),
        )
    )
    await asyncio.sleep(200)
    assert len(service.layouts()[TOPIC].active) == 3


async def test_a_controller_of_a_topic_that_rests_refuses_changes(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    controller = await plane.call(service.controller(TOPIC))
    await asyncio.sleep(200)
    with pytest.raises(NotLeaderError):
        await plane.call(controller.split(0))


async def test_a_deleted_topic_is_gone_with_all_it_had_and_its_watchers_know(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC, 2))
    controller = await plane.controller()
    inbox, epochs = FakeConsumer(), Epochs()
    await plane.join("a", inbox)
    service.watch_layout(TOPIC, epochs)
    with pytest.raises(ConsumerBusyError):
        await plane.call(service.delete_topic(TOPIC))
    await plane.call(service.delete_topic(TOPIC, force=True))
    await asyncio.sleep(0)
    assert epochs.told == [0, -1]
    assert inbox.ids == []
    assert plane.disk.stored == {}
    assert not [path for path in plane.tree.values if path.startswith("/topics")]
    with pytest.raises(TopicNotFoundError):
        await plane.call(controller.split(0))
    with pytest.raises(TopicNotFoundError):
        await plane.call(service.delete_topic(TOPIC))
    assert await plane.call(service.list_topics("public/default")) == []


async def test_a_recreated_topic_repeats_no_id_epoch_term_or_incarnation(plane: ControlPlane) -> None:
    service = await plane.boot()
    epochs = Epochs()
    service.watch_layout(TOPIC, epochs)
    seen: set[int] = set()
    last = (-1, -1, -1)
    for _ in range(4):
        await plane.call(service.create_topic(TOPIC, 2))
        controller = await plane.controller()
        assert controller.layout.epoch > last[0]
        first = controller.layout.active[0].id
        await plane.call(controller.split(first))
        layout = await plane.audit()
        assert not seen & set(layout.segments)
        seen |= set(layout.segments)
        record = controller.record
        now = (record.epoch, record.term, record.incarnation)
        assert all(new > old for new, old in zip(now, last, strict=True))
        last = now
        await plane.call(service.delete_topic(TOPIC))
        await asyncio.sleep(0)
    rising = [epoch for epoch in epochs.told if epoch >= 0]
    assert rising == sorted(set(rising))
    assert epochs.told.count(-1) == 5, "the first time there was no topic yet"


async def test_a_repeated_deletion_does_not_disturb_the_topic_that_was_created_since(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead()
    incarnation = controller.record.incarnation
    with pytest.raises(TopicNotFoundError, match="deleted before"):
        await plane.call(plane.service.delete_topic(TOPIC, force=True, incarnation=incarnation - 1))
    await asyncio.sleep(1)
    assert await plane.controller() is controller


async def test_storage_listed_after_the_deletion_is_deleted_by_the_next_creation(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    await plane.call(service.delete_topic(TOPIC))
    await asyncio.sleep(1)
    topics = TopicStore(MemoryStore(plane.tree))
    left = GarbageRecord(name=str(TOPIC.segment_name(FULL, 0)), since_ms=0)

    async def listed() -> None:
        await topics.update_lineage(TOPIC, lambda found: msgspec.structs.replace(found, garbage=(left,)))

    await listed()
    await plane.call(service.create_topic(TOPIC))
    await asyncio.sleep(1)
    assert (await topics.load_lineage(TOPIC)).garbage == ()
    await listed()
    with pytest.raises(TopicExistsError):
        await plane.call(service.create_topic(TOPIC))
    await asyncio.sleep(1)
    assert (await topics.load_lineage(TOPIC)).garbage == ()


async def test_old_data_that_could_not_be_deleted_never_shows_in_the_recreated_topic(
    plane: ControlPlane,
) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    plane.publish((await plane.controller()).layout)
    down = True

    def fails(verb: str, name: TopicName) -> Exception | None:
        return NotConnectedError("away") if verb == "delete" and down else None

    plane.segments.fails = fails
    await plane.call(service.delete_topic(TOPIC))
    await plane.call(service.create_topic(TOPIC))
    layout = (await plane.controller()).layout
    assert plane.disk.stored[plane.segment(layout, 1)].entries == []
    assert len(plane.disk.stored) == 2
    plane.kill()
    plane.segments.fails = fails
    await plane.boot()
    down = False
    await asyncio.sleep(20)
    await plane.audit()


async def test_a_deletion_includes_the_children_of_an_unfinished_operation(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    controller = await plane.controller()
    away = NotConnectedError("away")
    plane.segments.fails = lambda verb, name: away if verb == "seal" else None
    with pytest.raises(NotConnectedError):
        await plane.call(controller.split(0))
    assert len(plane.disk.stored) == 3
    await plane.call(service.delete_topic(TOPIC))
    assert plane.disk.stored == {}


@pytest.mark.parametrize("seed", range(10))
async def test_creating_and_deleting_at_once_leaves_a_whole_topic_or_none(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    for _ in range(5):
        await asyncio.gather(
            plane.call(service.delete_topic(TOPIC)),
            plane.call(service.create_topic(TOPIC)),
            plane.call(service.create_topic(TOPIC)),
            return_exceptions=True,
        )
        await asyncio.sleep(5)
        if await plane.call(service.list_topics("public/default")):
            await plane.audit()
        else:
            assert plane.disk.stored == {}
            await plane.call(service.create_topic(TOPIC))


async def test_a_watch_makes_the_topic_led_and_starts_with_its_layout(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    controller = await plane.controller()
    await plane.call(controller.split(0))
    plane.kill()
    service = await plane.boot()
    epochs, missing = Epochs(), Epochs()
    undo = service.watch_layout(TOPIC, epochs)
    service.watch_layout(TopicName.parse("topic://public/default/none"), missing)
    await asyncio.sleep(1)
    assert (epochs.told, missing.told) == ([1], [-1])
    controller = await plane.controller()
    await asyncio.gather(plane.call(controller.split(1)), plane.call(controller.split(2)))
    await asyncio.sleep(0)
    assert epochs.told == [1, 2, 3]
    undo()
    await plane.call(controller.merge([3, 4]))
    await asyncio.sleep(0)
    assert epochs.told == [1, 2, 3]


@pytest.mark.parametrize("seed", range(5))
async def test_a_start_in_trouble_goes_on_in_the_background(plane: ControlPlane) -> None:
    service = await plane.boot(kill_at="split.created")
    await plane.call(service.create_topic(TOPIC))
    controller = await plane.controller()
    plane.process.spawn(controller.split(0))
    await asyncio.sleep(1)
    assert not plane.process.alive
    # The owner of the children is away when the next process starts.
    await plane.boot(refuse=0.3)
    await asyncio.sleep(60)
    assert (await plane.audit()).epoch == 1


async def test_defaults_exist_after_the_first_start(plane: ControlPlane) -> None:
    await plane.boot()
    topics = TopicStore(MemoryStore(plane.tree))
    assert await topics.namespaces.of_tenant("public") == ("public/default",)


async def test_the_memory_of_a_topic_that_rests_is_free_without_garbage_collection(
    plane: ControlPlane,
) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    leader = weakref.ref(await plane.call(service.controller(TOPIC)))
    gc.collect()
    gc.disable()
    try:
        assert leader() is not None
        await asyncio.sleep(200)
        assert leader() is None
    finally:
        gc.enable()
