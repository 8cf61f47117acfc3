"""A controller killed at each step of each operation: the next controller finishes it."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.topic.layout_changes import STEPS
from anabranch.errors import ConnectError, MetadataError, TopicExistsError, TopicNotFoundError
from anabranch.failpoints import FailpointReachedError
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.store import MetadataStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.layout import Layout
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import FULL
from tests.fakes.metadata import FailingStore
from tests.fakes.segments import StoredSegment
from tests.harness.control import TOPIC, ControlPlane, DiedError, FakeConsumer

KINDS = ["split", "merge", "rebucket"]


async def set_up(plane: ControlPlane) -> Layout:
    """Three segments; subscriptions of all kinds; one message on each segment."""
    await plane.boot()
    await plane.call(plane.service.create_topic(TOPIC, 3))
    controller = await plane.controller()
    await plane.call(controller.ensure_subscription("stream", "STREAM", "earliest"))
    await plane.call(controller.ensure_subscription("late", "STREAM", "latest"))
    await plane.call(controller.ensure_subscription("queue", "QUEUE", "earliest"))
    plane.publish(controller.layout)
    await plane.stop()
    return controller.layout


async def operate(plane: ControlPlane, kind: str) -> None:
    controller = await plane.controller()
    if kind == "split":
        await plane.call(controller.split(1, [25000, 30000]))
    elif kind == "merge":
        await plane.call(controller.merge([1, 2]))
    else:
        await plane.call(controller.rebucket(1, [100, 200]))


def check_outcome(kind: str, layout: Layout) -> None:
    assert layout.epoch == 1
    sealed = [segment.id for segment in layout.sealed]
    active = [segment.id for segment in layout.active]
    if kind == "split":
        assert (sealed, active) == ([1], [0, 3, 4, 5, 2])
    elif kind == "merge":
        assert (sealed, active) == ([1, 2], [0, 3])
    else:
        assert (sealed, active) == ([1], [0, 3, 2])
        assert layout.segment(3).bucket_splits == (100, 200)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_operation_killed_at_a_step_is_finished_by_the_next_start(
    plane: ControlPlane, kind: str, step: str
) -> None:
    await set_up(plane)
    await plane.boot(kill_at=f"{kind}.{step}")
    with pytest.raises(DiedError):
        await operate(plane, kind)
    await plane.boot()
    # Not even a request for the topic was needed.
    check_outcome(kind, await plane.audit())
    controller = await plane.controller()
    plane.publish(controller.layout)
    for id_ in controller.layout.segments:
        for sub in ("stream", "late", "queue"):
            assert plane.disk.backlog(plane.segment(controller.layout, id_), sub) is not None


@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize("first", STEPS)
async def test_a_second_kill_while_finishing_does_no_harm(
    plane: ControlPlane, first: str, second: str
) -> None:
    await set_up(plane)
    await plane.boot(kill_at=f"split.{first}")
    with pytest.raises(DiedError):
        await operate(plane, "split")
    if first == "committed" or second == "planned":
        await plane.boot(kill_at=f"split.{second}")
        plane.kill()
    else:
        with pytest.raises(DiedError):
            await plane.boot(kill_at=f"split.{second}")
    await plane.boot()
    check_outcome("split", await plane.audit())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_operation_that_fails_at_a_step_is_finished_by_the_same_process(
    plane: ControlPlane, kind: str, step: str
) -> None:
    await set_up(plane)
    await plane.boot(failpoints=FailOnce(f"{kind}.{step}"))
    with pytest.raises(FailpointReachedError):
        await operate(plane, kind)
    await asyncio.sleep(1)
    check_outcome(kind, await plane.audit())


@pytest.mark.parametrize("step", ["planned", "created.first", "created", "sealed", "committed"])
async def test_a_creation_killed_at_a_step_is_finished(plane: ControlPlane, step: str) -> None:
    await plane.boot(kill_at=f"create.{step}")
    with pytest.raises(DiedError):
        await plane.call(plane.service.create_topic(TOPIC, 3, {"team": "blue"}))
    await plane.boot()
    assert len((await plane.audit()).active) == 3
    assert await plane.call(plane.service.list_topics("public/default", {("team", "blue")})) == [TOPIC]


@pytest.mark.parametrize(
    "step",
    ["recorded", "created.first", "created", "sealed.first", "sealed", "inherited", "committed"],
)
async def test_a_migration_killed_at_a_step_is_finished(plane: ControlPlane, step: str) -> None:
    whole = TopicName.parse("persistent://public/default/orders")
    classic = [Place(whole.partition_name(index), 0) for index in range(3)]
    for place in classic:
        plane.disk.stored[place.name] = StoredSegment(cursors={"s": 0, "q": 0})
        plane.disk.publish(place.name)
    await plane.boot(kill_at=f"migrate.{step}")
    with pytest.raises(DiedError):
        await plane.migrate(classic, s="STREAM", q="QUEUE")
    await plane.boot()
    layout = await plane.audit()
    assert [segment.legacy_topic for segment in layout.sealed] == [str(place.name) for place in classic]
    assert all(segment.range == FULL for segment in layout.sealed)
    assert [segment.parents for segment in layout.active] == [(0, 1, 2)] * 3
    controller = await plane.controller()
    assert sorted(controller.records) == ["q", "s"]
    inbox = FakeConsumer()
    told = await plane.call(controller.register("s", "a", inbox))
    assert [part.segment_id for part in told.assignment.segments] == [0, 1, 2]
    assert [part.topic for part in told.assignment.segments] == [str(place.name) for place in classic]
    for place in classic:
        plane.disk.acknowledge(place.name, "s")
    await asyncio.sleep(1)
    assert inbox.ids == [3, 4, 5]
    with pytest.raises(TopicExistsError):
        await plane.migrate(classic)


@pytest.mark.parametrize("step", ["marked", "listed", "forgotten", "swept"])
async def test_a_deletion_killed_at_a_step_is_finished(plane: ControlPlane, step: str) -> None:
    before = await set_up(plane)
    await plane.boot(kill_at=f"delete.{step}")
    with pytest.raises(DiedError):
        await plane.call(plane.service.delete_topic(TOPIC))
    await plane.boot()
    assert plane.disk.stored == {}
    with pytest.raises(TopicNotFoundError):
        await plane.controller()
    assert not [path for path in plane.tree.values if path.startswith("/topics")]
    await plane.call(plane.service.create_topic(TOPIC, 1))
    after = await plane.audit()
    assert min(after.segments) >= before.next_id
    assert after.epoch > before.epoch


@pytest.mark.parametrize("step", ["recorded", "applied"])
@pytest.mark.parametrize("change", ["create", "delete", "seek", "skip"])
async def test_a_change_of_a_subscription_killed_at_a_step_is_finished(
    plane: ControlPlane, change: str, step: str
) -> None:
    await set_up(plane)
    await plane.boot(kill_at=f"subscription.{change}.{step}")
    controller = await plane.controller()
    calls = {
        "create": lambda: controller.ensure_subscription("new", "STREAM", "earliest"),
        "delete": lambda: controller.delete_subscription("stream"),
        "seek": lambda: controller.seek("late", 0),
        "skip": lambda: controller.skip_all("stream"),
    }
    with pytest.raises(DiedError):
        await plane.call(calls[change]())
    await plane.boot()
    controller = await plane.controller()
    layout = await plane.audit()
    sub = {"create": "new", "seek": "late"}.get(change, "stream")
    backlog = [plane.disk.backlog(plane.segment(layout, id_), sub) for id_ in layout.segments]
    assert backlog == [{"create": 1, "delete": None, "seek": 1, "skip": 0}[change]] * 3
    assert ("stream" in controller.records) == (change != "delete")


@pytest.mark.plane(retention_s=0.5)
async def test_pruning_killed_after_its_commit_leaves_no_storage_behind(plane: ControlPlane) -> None:
    await plane.boot(kill_at="prune.committed")
    await plane.call(plane.service.create_topic(TOPIC, 1))
    controller = await plane.controller()
    await plane.call(controller.split(0))
    await asyncio.sleep(1)
    with pytest.raises(DiedError):
        await plane.call(controller.upkeep.prune())
    assert len(plane.disk.stored) == 3
    await plane.boot()
    layout = await plane.audit()
    assert sorted(layout.segments) == [1, 2]


async def test_a_topic_is_finished_although_its_creator_got_no_answer(plane: ControlPlane) -> None:
    faulty = FailNth(0, applied=True, below="/topics/")
    service = await plane.boot(wrap=faulty.wrap)
    faulty.armed = True
    with pytest.raises(MetadataError):
        await plane.call(service.create_topic(TOPIC, 2))
    assert faulty.failed
    assert service.layouts() == {}
    await asyncio.sleep(10)
    assert len((await plane.audit()).active) == 2


@pytest.mark.plane(retention_s=0.5)
async def test_pruning_whose_answer_was_lost_leaves_no_storage_behind(plane: ControlPlane) -> None:
    faulty = FailNth(0, applied=True)
    await plane.boot(wrap=faulty.wrap)
    await plane.call(plane.service.create_topic(TOPIC, 1))
    controller = await plane.controller()
    await plane.call(controller.split(0))
    await asyncio.sleep(1)
    faulty.armed = True
    with pytest.raises(MetadataError):
        await plane.call(controller.upkeep.prune())
    assert faulty.failed
    await asyncio.sleep(2)
    layout = await plane.audit()
    assert sorted(layout.segments) == [1, 2]


@pytest.mark.parametrize("applied", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("number", range(3), ids=["intent", "commit", "assignment"])
async def test_a_write_that_fails_anywhere_in_a_split_is_made_good(
    plane: ControlPlane, number: int, applied: bool
) -> None:
    before = await set_up(plane)
    faulty = FailNth(number, applied)
    await plane.boot(wrap=faulty.wrap)
    controller = await plane.controller()
    inbox = FakeConsumer()
    await plane.call(controller.register("stream", "a", inbox))
    plane.drain(before, "stream", 1)
    await asyncio.sleep(1)
    faulty.armed = True
    try:
        await plane.call(controller.split(1, [25000, 30000]))
        assert number == 2, "a failure after the commit does not fail the call"
    except MetadataError:
        assert number < 2
    assert faulty.failed
    await asyncio.sleep(2)
    layout = await plane.audit()
    assert controller.layout == layout
    if number == 0 and not applied:
        assert layout.epoch == 0
    else:
        check_outcome("split", layout)
        assert inbox.ids == [0, 2, 3, 4, 5]


async def test_a_subscription_whose_confirmation_was_lost_is_on_the_children_all_the_same(
    plane: ControlPlane,
) -> None:
    faulty = FailNth(0, applied=True, below="subscriptions")
    await plane.boot(wrap=faulty.wrap, failpoints=FailOnce("split.committed"))
    await plane.call(plane.service.create_topic(TOPIC, 1))
    controller = await plane.controller()
    down = ConnectError("owner is away")
    plane.segments.fails = lambda verb, name: down if verb == "create_subscription" else None
    with pytest.raises(ConnectError):
        await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    plane.segments.fails = lambda verb, name: None
    faulty.armed = True
    with pytest.raises(FailpointReachedError):
        await plane.call(controller.split(0))
    assert faulty.failed
    await asyncio.sleep(2)
    await plane.audit()


async def test_a_latest_subscription_made_across_a_split_waits_for_nothing_before_it(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead(1)
    plane.publish(controller.layout)
    down = True

    def fails(verb: str, name: TopicName) -> Exception | None:
        return ConnectError("owner is away") if verb == "create_subscription" and down else None

    plane.segments.fails = fails
    inbox = FakeConsumer()
    await plane.call(controller.register("s", "a", inbox))
    with pytest.raises(ConnectError):
        await plane.call(controller.ensure_subscription("s", "STREAM", "latest"))
    await plane.call(controller.split(0))
    down = False
    await asyncio.sleep(10)
    await plane.audit()
    assert inbox.ids == [1, 2]


class FailOnce:
    """Fails one step, once."""

    def __init__(self, step: str) -> None:
        self.step: str | None = step

    async def reach(self, name: str) -> None:
        if name == self.step:
            self.step = None
            raise FailpointReachedError(name)


class FailNth:
    """Fails one put after it is armed."""

    def __init__(self, number: int, applied: bool, below: str = "") -> None:
        self.number = number
        self.below = below
        self.applied = applied
        self.armed = False
        self.failed = False

    def wrap(self, store: MetadataStore) -> MetadataStore:
        failing = FailingStore(store)
        failing.applied = self.applied

        def fails(path: str) -> bool:
            if not self.armed or self.failed or self.below not in path:
                return False
            self.number -= 1
            self.failed = self.number < 0
            return self.failed

        failing.fails = fails
        return failing


async def test_the_records_are_there_before_the_storage_and_gone_after_it(plane: ControlPlane) -> None:
    await set_up(plane)
    topics = TopicStore(MemoryStore(plane.tree))
    record = await topics.load(TOPIC)
    assert sorted(record.segments) == [0, 1, 2]
    assert sorted(await topics.load_subscriptions(TOPIC)) == ["late", "queue", "stream"]
