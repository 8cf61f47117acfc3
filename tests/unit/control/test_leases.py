"""A control process acts only while its session is known to live, and finishes half-made work of others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.aio import TaskRegistry
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.lease import SessionLease
from anabranch.control.leased_admin import LeasedAdmin
from anabranch.control.node import ENTER_PAUSE_S, ControlParts, enter, minutes_of
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.control.quiet_periods import LATE_S
from anabranch.control.topic_marks import NewTopics, marks_of
from anabranch.controller.ports.segments import Aim, Segments
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import (
    ConnectError,
    MetadataError,
    NotLeaderError,
    OperationTimeoutError,
    ServiceNotReadyError,
    StaleTermError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.model.names import Place, TopicName
from anabranch.model.pulsar_names import pulsar_topic
from simulation.cluster.pulsar import SimPulsar, SimTopic
from tests.harness.admin import ORDERS, Admin
from tests.harness.control_plane import ControlProcesses

PLACE = Place(TopicName.parse("segment://public/default/orders/0000-ffff-0"), 0)
TOPIC = pulsar_topic(PLACE.name)
TERM = 1


class EndingStore(MemoryStore):
    """A store whose session a test ends."""

    left_s = 10.0

    def session_left_s(self) -> float:
        return self.left_s


class Process:
    """The parts of one control process."""

    def __init__(self) -> None:
        self.pulsar = SimPulsar()
        self.store = EndingStore()
        self.lost = asyncio.Event()
        lease = SessionLease(self.store, self.lost)
        self.parts = ControlParts(self.pulsar, lease, TaskRegistry(), NewTopics("this"))

    @property
    def segments(self) -> Segments:
        return self.parts.engine.segments


CHANGES: list[Callable[[Segments], Awaitable[object]]] = [
    lambda segments: segments.create(PLACE, {}, TERM),
    lambda segments: segments.seal(PLACE, TERM),
    lambda segments: segments.delete(PLACE, TERM),
    lambda segments: segments.create_subscription(PLACE, "new", "earliest", TERM),
    lambda segments: segments.delete_subscription(PLACE, "sub", TERM),
    lambda segments: segments.seek(PLACE, "sub", 1, TERM),
    lambda segments: segments.seek_to(PLACE, "sub", Aim(0, 1), TERM),
    lambda segments: segments.skip_all(PLACE, "sub", TERM),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("lost", [False, True])
async def test_a_process_without_a_living_session_changes_nothing(
    change: Callable[[Segments], Awaitable[object]], lost: bool
) -> None:
    process = Process()
    found = process.pulsar.found[TOPIC] = SimTopic(marks_of(PLACE.name, "this"), [1, 2], {"sub": 1})
    before = repr(found)
    if lost:
        # The store has begun another session by itself.
        process.lost.set()
    else:
        process.store.left_s = 0.0
    with pytest.raises(ServiceNotReadyError):
        await change(process.segments)
    assert repr(process.pulsar.found) == repr({TOPIC: found})
    assert repr(found) == before


async def test_subscriptions_of_classic_topics_are_left_alone_without_a_session() -> None:
    process = Process()
    classic = Place(TopicName.parse("persistent://public/default/classic"), 0)
    process.pulsar.found[classic.name] = SimTopic()
    process.lost.set()
    with pytest.raises(ServiceNotReadyError):
        await process.parts.engine.classic.create_subscription(classic, "sub", "earliest")
    assert process.pulsar.found[classic.name].cursors == {}


async def test_strays_are_left_alone_without_a_session(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(PLACE.name.topic)
    stray = TopicName.parse("segment://public/default/orders/4000-ffff-0")
    control.pulsar.found[pulsar_topic(stray)] = SimTopic(marks_of(stray, "this"))
    lost = asyncio.Event()
    lease = SessionLease(EndingStore(), lost)
    parts = ControlParts(control.pulsar, lease, control.tasks, NewTopics("this"))
    sweeper = parts.sweeper(control[0].records, control[0].stores.is_open)
    lost.set()
    assert await sweeper.sweep() == []
    lost.clear()
    assert await sweeper.sweep() == [stray]


async def test_a_process_without_a_living_session_confirms_nothing_from_memory(
    control: ControlProcesses,
) -> None:
    name = PLACE.name.topic
    await control[0].controllers.create_topic(name)
    leader = await control[0].controllers.lead(name)
    await leader.ensure_subscription("sub", "QUEUE", "earliest")
    ending = Process()
    control.check_right = ending.parts.engine.check_right
    await leader.ensure_subscription("sub", "QUEUE", "earliest")
    ending.store.left_s = 0.0
    with pytest.raises(ServiceNotReadyError, match="has not confirmed the session"):
        await leader.ensure_subscription("sub", "QUEUE", "earliest")
    ending.store.left_s = 10.0
    await leader.ensure_subscription("sub", "QUEUE", "earliest")


async def test_a_process_without_a_living_session_raises_no_term(control: ControlProcesses) -> None:
    name = PLACE.name.topic
    await control[0].controllers.create_topic(name, 2)
    await control.restart(0)
    before = (await control[0].records.load(name)).term
    ending = Process()
    control.check_right = ending.parts.engine.check_right
    ending.lost.set()
    with pytest.raises(ServiceNotReadyError, match="was lost"):
        await control[0].controllers.lead(name)
    assert (await control[0].records.load(name)).term == before
    ending.lost.clear()
    await control[0].controllers.lead(name)
    assert (await control[0].records.load(name)).term == before + 1


async def test_a_call_does_not_hold_up_a_process_that_has_lost_its_session(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(PLACE.name.topic, 2)
    await control.restart(0)
    ending = Process()
    control.check_right = ending.parts.engine.check_right
    ending.lost.set()
    control.loop.call_later(1.0, control[0].failed.set)
    began_s = control.loop.time()
    answer = await Admin(control).ask("POST", f"{ORDERS}/split/0")
    assert answer.status == 503
    assert "the session of this process with the metadata store was lost" in answer.json["reason"]
    assert control.loop.time() - began_s == pytest.approx(1.0, abs=0.2)


async def test_a_process_that_finds_a_newer_leader_sends_its_callers_there(
    control: ControlProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = PLACE.name.topic
    await control[0].controllers.create_topic(name, 2)

    async def find_newer_leader(self: TopicController) -> None:
        raise StaleTermError("the subscription was changed by a newer leader")

    monkeypatch.setattr(TopicController, "start", find_newer_leader)
    await control.restart(0)
    with pytest.raises(NotLeaderError, match="has a newer leader"):
        await control[0].controllers.lead(name)


@pytest.mark.parametrize(("retention_s", "minutes"), [(-1, -1), (0, 0), (30, 1), (7 * 86_400, 10_080)])
async def test_a_segment_retains_acknowledged_messages_for_the_configured_time(
    retention_s: float, minutes: int
) -> None:
    pulsar, made = SimPulsar(), NewTopics("this", minutes_of(retention_s))
    lease = SessionLease(EndingStore(), asyncio.Event())
    parts = ControlParts(pulsar, lease, TaskRegistry(), made)
    await parts.engine.segments.create(PLACE, {}, TERM)
    assert pulsar.found[TOPIC].retention_minutes == minutes


async def test_the_session_is_asked_before_each_call_of_an_operation() -> None:
    process = Process()
    calls = 0

    async def end_after_creation() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            process.lost.set()

    process.pulsar.before = end_after_creation
    with pytest.raises(ServiceNotReadyError):
        await process.segments.create(PLACE, {"sub": "earliest"}, TERM)
    made = process.pulsar.found[TOPIC]
    assert (made.retention_minutes, made.deduplicates, made.cursors) == (0, False, {})


@pytest.mark.parametrize("done", range(1, 5))
async def test_a_creation_that_ended_half_way_is_finished(done: int) -> None:
    pulsar = SimPulsar()
    left = done

    def fail() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ServiceNotReadyError("the session ended")

    first = PulsarSegments(LeasedAdmin(pulsar, fail), DrainPolls(TaskRegistry()))
    with pytest.raises(ServiceNotReadyError):
        await first.create(PLACE, {"sub": "earliest"}, TERM)
    second = PulsarSegments(pulsar, DrainPolls(TaskRegistry()))
    assert await second.create(PLACE, {"sub": "earliest"}, TERM) == "open"
    made = pulsar.found[TOPIC]
    assert (made.retention_minutes, made.deduplicates, made.cursors) == (-1, True, {"sub": 0})


async def test_a_topic_that_is_ready_costs_two_questions() -> None:
    pulsar = SimPulsar()
    segments = PulsarSegments(pulsar, DrainPolls(TaskRegistry()))
    await segments.create(PLACE, {}, TERM)
    calls = 0

    async def count() -> None:
        nonlocal calls
        calls += 1

    pulsar.before = count
    assert await segments.create(PLACE, {}, TERM) == "open"
    assert calls == 2


@pytest.mark.parametrize("read_s", [0.0, 3.0])
async def test_a_call_without_an_answer_delays_the_next_one_of_the_topic(read_s: float) -> None:
    process, loop = Process(), asyncio.get_running_loop()
    reads = True
    process.pulsar.found[TOPIC] = SimTopic(marks_of(PLACE.name, "this"), [1, 2], {"sub": 2})

    async def lose() -> None:
        nonlocal reads
        if not reads:
            raise ConnectError("the connection was lost")
        reads = False
        await asyncio.sleep(read_s)

    process.pulsar.before = lose
    began_s = loop.time()
    with pytest.raises(ConnectError):
        await process.segments.skip_all(PLACE, "sub", TERM)
    process.pulsar.before = SimPulsar().before
    await process.segments.seek(PLACE, "sub", 0, TERM)
    assert loop.time() - began_s == pytest.approx(read_s + LATE_S)


async def test_a_call_about_a_subscription_has_a_limit() -> None:
    process = Process()
    process.pulsar.found[TOPIC] = SimTopic(cursors={"sub": 0})

    async def hang() -> None:
        await asyncio.sleep(1_000)

    process.pulsar.before = hang
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(OperationTimeoutError):
        await process.segments.delete_subscription(PLACE, "sub", TERM)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(LATE_S)


class AwayStore(MemoryStore):
    """A store that does not answer at first."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        if self.failures:
            self.failures -= 1
            raise MetadataError("it did not answer")
        return await super().put(path, value, expected=expected, ephemeral=ephemeral)


async def test_a_process_waits_for_its_metadata_store_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    began_s = asyncio.get_running_loop().time()
    entered = await enter(AwayStore(3), "pulsar://here", asyncio.Event())
    assert entered is not None
    assert entered.number == 0
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(3 * ENTER_PAUSE_S)
    assert caplog.text.count("waiting for the metadata store") == 3


async def test_a_signal_ends_the_wait_for_the_metadata_store() -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().call_later(2.5, told.set)
    assert await enter(AwayStore(10**6), "pulsar://here", told) is None
