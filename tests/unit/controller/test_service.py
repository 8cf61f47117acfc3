"""How topics come, go and are watched."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from anabranch.errors import (
    AlreadyClosedError,
    ConsumerBusyError,
    InvalidNameError,
    LayoutError,
    NotConnectedError,
    NotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.records import GarbageRecord, TopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.ranges import FULL
from tests.harness.control import TOPIC, FakeConsumer, Plant


class Epochs:
    """The epochs a watcher was told; -1 is a deletion."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def __call__(self, layout: Layout | None) -> None:
        self.told.append(-1 if layout is None else layout.epoch)


async def test_a_topic_is_created_once_and_found_by_its_properties(plant: Plant) -> None:
    service = await plant.boot()
    other = TopicName.parse("topic://public/default/a/b")
    await plant.call(service.create_topic(TOPIC, 2, {"team": "blue", "tier": "1"}))
    await plant.call(service.create_topic(other, 1, {"team": "blue"}))
    with pytest.raises(TopicExistsError):
        await plant.call(service.create_topic(TOPIC))
    assert await plant.call(service.list_topics("public/default")) == [other, TOPIC]
    filters = {"team": "blue", "tier": "1"}
    assert await plant.call(service.list_topics("public/default", filters.items())) == [TOPIC]
    assert await plant.call(service.list_topics("public/default", {("team", "red")})) == []
    assert set(service.layouts()) == {TOPIC, other}
    await plant.audit(other)


async def test_names_that_no_client_could_use_are_refused(plant: Plant) -> None:
    service = await plant.boot()
    for text, error in (
        ("persistent://public/default/x", InvalidNameError),
        ("topic://public/default/x-partition-0", InvalidNameError),
        ("topic://public/nowhere/x", NotFoundError),
    ):
        with pytest.raises(error):
            await plant.call(service.create_topic(TopicName.parse(text)))
    with pytest.raises(LayoutError):
        await plant.call(service.create_topic(TOPIC, 0))
    with pytest.raises(TopicNotFoundError):
        await plant.controller()
    await plant.call(service.create_topic(TOPIC))
    assert (await plant.audit()).epoch == 0


async def test_of_two_creators_at_once_one_wins_and_the_topic_is_whole(plant: Plant) -> None:
    service = await plant.boot()
    outcomes = await asyncio.gather(
        *(plant.call(service.create_topic(TOPIC, n)) for n in (1, 2, 3)), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, TopicExistsError) for outcome in outcomes) == 2
    await plant.audit()


async def test_every_spelling_of_a_topic_has_one_controller(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    old = TopicName.parse("persistent://public/default/orders")
    segment = TopicName.parse("segment://public/default/orders/0000-ffff-0")
    found = [await plant.controller(name) for name in (TOPIC, old, segment)]
    assert found[0] is found[1] is found[2]


async def test_concurrent_requests_for_a_topic_share_one_leader_and_one_term(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    term = (await plant.controller()).record.term
    await plant.stop()
    await plant.boot()
    found = await asyncio.gather(*(plant.controller() for _ in range(5)))
    assert len({id(controller) for controller in found}) == 1
    assert found[0].record.term == term + 1
    await plant.stop()
    with pytest.raises(AlreadyClosedError):
        await plant.controller()


async def test_a_slow_request_for_a_topic_meets_the_leader_that_was_made_meanwhile(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    plant.kill()
    service = await plant.boot()
    topics = plant.context.topics
    load, slow = topics.load, asyncio.Event()

    async def late(name: TopicName) -> TopicRecord:
        record = await load(name)
        topics.load = load  # type: ignore[method-assign]
        await slow.wait()
        return record

    topics.load = late  # type: ignore[method-assign]
    asked = plant.process.spawn(service.controller(TOPIC))
    await asyncio.sleep(0.1)
    leader = await plant.controller()
    slow.set()
    assert await asked is leader


async def test_after_a_start_every_topic_gets_a_leader_without_being_asked_for(plant: Plant) -> None:
    service = await plant.boot()
    names = [TopicName.parse(f"topic://public/default/t{n}") for n in range(5)]
    for name in names:
        await plant.call(service.create_topic(name))
    plant.kill()
    service = await plant.boot()
    await asyncio.sleep(1)
    assert sorted(map(str, service.layouts())) == sorted(map(str, names))


async def test_a_deleted_topic_is_gone_with_all_it_had_and_its_watchers_know(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC, 2))
    controller = await plant.controller()
    inbox, epochs = FakeConsumer(), Epochs()
    await plant.join("a", inbox)
    service.watch_layout(TOPIC, epochs)
    with pytest.raises(ConsumerBusyError):
        await plant.call(service.delete_topic(TOPIC))
    await plant.call(service.delete_topic(TOPIC, force=True))
    await asyncio.sleep(0)
    assert epochs.told == [0, -1]
    assert inbox.ids == []
    assert plant.world.stored == {}
    assert not [path for path in plant.tree.values if path.startswith("/topics")]
    with pytest.raises(TopicNotFoundError):
        await plant.call(controller.split(0))
    with pytest.raises(TopicNotFoundError):
        await plant.call(service.delete_topic(TOPIC))
    assert await plant.call(service.list_topics("public/default")) == []


async def test_a_recreated_topic_repeats_no_id_epoch_term_or_incarnation(plant: Plant) -> None:
    service = await plant.boot()
    epochs = Epochs()
    service.watch_layout(TOPIC, epochs)
    seen: set[int] = set()
    last = (-1, -1, -1)
    for _ in range(4):
        await plant.call(service.create_topic(TOPIC, 2))
        controller = await plant.controller()
        assert controller.layout.epoch > last[0]
        first = controller.layout.active[0].id
        await plant.call(controller.split(first))
        layout = await plant.audit()
        assert not seen & set(layout.segments)
        seen |= set(layout.segments)
        record = controller.record
        now = (record.epoch, record.term, record.incarnation)
        assert all(new > old for new, old in zip(now, last, strict=True))
        last = now
        await plant.call(service.delete_topic(TOPIC))
        await asyncio.sleep(0)
    rising = [epoch for epoch in epochs.told if epoch >= 0]
    assert rising == sorted(set(rising))
    assert epochs.told.count(-1) == 5, "the first time there was no topic yet"


async def test_a_repeated_deletion_does_not_disturb_the_topic_that_was_created_since(plant: Plant) -> None:
    controller = await plant.lead()
    incarnation = controller.record.incarnation
    with pytest.raises(TopicNotFoundError, match="deleted before"):
        await plant.call(plant.service.delete_topic(TOPIC, force=True, incarnation=incarnation - 1))
    await asyncio.sleep(1)
    assert await plant.controller() is controller


async def test_storage_listed_after_the_deletion_is_deleted_by_the_next_creation(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    await plant.call(service.delete_topic(TOPIC))
    await asyncio.sleep(1)
    topics = TopicStore(MemoryStore(plant.tree))
    left = GarbageRecord(name=str(TOPIC.segment_name(FULL, 0)), since_ms=0)

    async def listed() -> None:
        await topics.update_lineage(TOPIC, lambda found: msgspec.structs.replace(found, garbage=(left,)))

    await listed()
    await plant.call(service.create_topic(TOPIC))
    await asyncio.sleep(1)
    assert (await topics.load_lineage(TOPIC)).garbage == ()
    await listed()
    with pytest.raises(TopicExistsError):
        await plant.call(service.create_topic(TOPIC))
    await asyncio.sleep(1)
    assert (await topics.load_lineage(TOPIC)).garbage == ()


async def test_old_data_that_could_not_be_deleted_never_shows_in_the_recreated_topic(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    plant.publish((await plant.controller()).layout)
    down = True

    def fails(verb: str, name: TopicName) -> Exception | None:
        return NotConnectedError("away") if verb == "delete" and down else None

    plant.segments.fails = fails
    await plant.call(service.delete_topic(TOPIC))
    await plant.call(service.create_topic(TOPIC))
    layout = (await plant.controller()).layout
    assert plant.world.stored[plant.segment(layout, 1)].entries == []
    assert len(plant.world.stored) == 2
    plant.kill()
    plant.segments.fails = fails
    await plant.boot()
    down = False
    await asyncio.sleep(20)
    await plant.audit()


async def test_a_deletion_includes_the_children_of_an_unfinished_operation(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    controller = await plant.controller()
    away = NotConnectedError("away")
    plant.segments.fails = lambda verb, name: away if verb == "seal" else None
    with pytest.raises(NotConnectedError):
        await plant.call(controller.split(0))
    assert len(plant.world.stored) == 3
    await plant.call(service.delete_topic(TOPIC))
    assert plant.world.stored == {}


@pytest.mark.parametrize("seed", range(10))
async def test_creating_and_deleting_at_once_leaves_a_whole_topic_or_none(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    for _ in range(5):
        await asyncio.gather(
            plant.call(service.delete_topic(TOPIC)),
            plant.call(service.create_topic(TOPIC)),
            plant.call(service.create_topic(TOPIC)),
            return_exceptions=True,
        )
        await asyncio.sleep(5)
        if await plant.call(service.list_topics("public/default")):
            await plant.audit()
        else:
            assert plant.world.stored == {}
            await plant.call(service.create_topic(TOPIC))


async def test_a_watch_makes_the_topic_led_and_starts_with_its_layout(plant: Plant) -> None:
    service = await plant.boot()
    await plant.call(service.create_topic(TOPIC))
    controller = await plant.controller()
    await plant.call(controller.split(0))
    plant.kill()
    service = await plant.boot()
    epochs, missing = Epochs(), Epochs()
    undo = service.watch_layout(TOPIC, epochs)
    service.watch_layout(TopicName.parse("topic://public/default/none"), missing)
    await asyncio.sleep(1)
    assert (epochs.told, missing.told) == ([1], [-1])
    controller = await plant.controller()
    await asyncio.gather(plant.call(controller.split(1)), plant.call(controller.split(2)))
    await asyncio.sleep(0)
    assert epochs.told == [1, 2, 3]
    undo()
    await plant.call(controller.merge([3, 4]))
    await asyncio.sleep(0)
    assert epochs.told == [1, 2, 3]


@pytest.mark.parametrize("seed", range(5))
async def test_a_start_in_trouble_goes_on_in_the_background(plant: Plant) -> None:
    service = await plant.boot(kill_at="split.created")
    await plant.call(service.create_topic(TOPIC))
    controller = await plant.controller()
    plant.process.spawn(controller.split(0))
    await asyncio.sleep(1)
    assert not plant.process.alive
    # The owner of the children is away when the next process starts.
    await plant.boot(refuse=0.3)
    await asyncio.sleep(60)
    assert (await plant.audit()).epoch == 1


async def test_defaults_exist_after_the_first_start(plant: Plant) -> None:
    await plant.boot()
    topics = TopicStore(MemoryStore(plant.tree))
    assert await topics.namespaces.of_tenant("public") == ("public/default",)
