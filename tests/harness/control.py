"""A control plane on virtual time: controllers that can be killed, on storage that survives them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from anabranch.controller.decide import groups
from anabranch.controller.decide.groups import has_cursors, open_for
from anabranch.controller.decide.operation import segment_name
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.lifecycle import Migration
from anabranch.controller.ports.leader import Membership, TopicLeader
from anabranch.controller.service import NO_PROPERTIES, ControllerService
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.leadership import ControllerContext, ControllerSettings
from anabranch.errors import NotConnectedError
from anabranch.failpoints import Failpoints
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.metadata.records import SubscriptionKind, SubscriptionRecord
from anabranch.metadata.store import MetadataStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.assignment import Assignment
from anabranch.model.layout import Layout
from anabranch.model.names import Place, TopicName
from anabranch.model.policy import AutoScalePolicy
from simulation.judges.layout_checks import check
from simulation.world.faults import SimClock, SimFailpoints, SimStore, StoreTrouble
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess
from tests.fakes.metadata import FailingStore
from tests.fakes.segments import MemorySegments, SegmentDisk

T = TypeVar("T")

TOPIC = TopicName.parse("topic://public/default/orders")

TWO = Layout.initial(2, now_ms=0)

FROM_EARLIEST = RegistrationRequest(start="earliest")

MANUAL = ControllerSettings(auto_scale=AutoScalePolicy(enabled=False), retention_s=None)
"""Nothing happens that a test does not ask for."""


class Alone:
    """The only broker: it owns all stores."""

    def owns(self, store: int) -> bool:
        return True

    def remote(self, store: int, name: TopicName) -> TopicLeader | None:
        return None

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class DiedError(Exception):
    """The process was killed before the call returned."""


class ControlPlane:
    """One durable disk, and the process that runs on it at the moment."""

    def __init__(self, loop: SimLoop, settings: ControllerSettings) -> None:
        self.loop = loop
        self.settings = settings
        self.tree = MemoryTree()
        self.disk = SegmentDisk()
        self.clock = SimClock(loop)
        self.reached: Counter[str] = Counter()
        self.boots = 0
        self.process: SimProcess
        self.context: ControllerContext
        self.service: ControllerService
        self.segments: MemorySegments

    async def boot(
        self,
        *,
        kill_at: str | None = None,
        failpoints: Failpoints | None = None,
        wrap: Callable[[MetadataStore], MetadataStore] = lambda store: store,
        refuse: float = 0.0,
        lose_reply: float = 0.0,
    ) -> ControllerService:
        """Start a process; DiedError if it is killed while it starts."""
        self.boots += 1
        process = SimProcess(self.loop, f"broker-{self.boots}")
        self.process = process
        process.on_death.append(self.disk.listeners.clear)
        self.segments = MemorySegments(self.disk)
        trouble = StoreTrouble(refuse=refuse, lose_reply=lose_reply)
        store = wrap(SimStore(self.tree, process, trouble=trouble))
        self.context = ControllerContext(
            topics=TopicStore(store),
            segments=self.segments,
            clock=self.clock,
            rng=random.Random(self.boots),
            settings=self.settings,
            failpoints=failpoints or SimFailpoints(process, kill_at, self.reached),
        )
        self.service = ControllerService(self.context, Alone())
        await self.call(self.service.start())
        return self.service

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the running process."""
        process = self.process
        died = self.loop.create_future()
        process.on_death.append(lambda: None if died.done() else died.set_result(None))
        task = process.spawn(work)
        await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            died.cancel()
            return task.result()
        raise DiedError(process.name)

    async def controller(self, name: TopicName = TOPIC) -> TopicController:
        return await self.call(self.service.lead(name))

    async def lead(self, segments: int = 2, properties: Mapping[str, str] = NO_PROPERTIES) -> TopicController:
        """Start a process that leads a new topic."""
        await self.boot()
        await self.call(self.service.create_topic(TOPIC, segments, properties))
        return await self.controller()

    async def migrate(self, classic: Sequence[Place], **subscriptions: SubscriptionKind) -> None:
        """Continue classic logs as the topic."""
        await self.call(self.service.record_migration(TOPIC, Migration(classic, subscriptions, {})))
        await self.call(self.service.lead_new(TOPIC))

    async def join(
        self,
        name: str,
        inbox: FakeConsumer | None = None,
        sub: str = "s",
        request: RegistrationRequest = FROM_EARLIEST,
    ) -> Membership:
        """Register a consumer, of a stream from the earliest message by default."""
        push = FakeConsumer() if inbox is None else inbox
        controller = await self.controller()
        return await self.call(controller.register(sub, name, push, request))

    async def stored(self, sub: str = "s") -> SubscriptionRecord:
        """The record of a subscription."""
        record = await TopicStore(MemoryStore(self.tree)).load_subscription(TOPIC, sub)
        assert record is not None
        return record

    def kill(self) -> None:
        self.process.kill()

    async def stop(self) -> None:
        """Stop the process if one runs; nothing may be left running."""
        if not self.boots or not self.process.alive:
            return
        await self.call(self.service.stop())
        await asyncio.sleep(0)
        assert self.process.unfinished() == []
        assert not self.disk.listeners, "listeners left"

    def segment(self, layout: Layout, id_: int, name: TopicName = TOPIC) -> TopicName:
        return segment_name(name, layout.segment(id_))

    def publish(self, layout: Layout, *ids: int) -> None:
        """One message on each of these segments, or on all active ones."""
        for id_ in ids or [segment.id for segment in layout.active]:
            self.disk.publish(self.segment(layout, id_), self.clock.wall_ms())

    def drain(self, layout: Layout, sub: str, *ids: int) -> None:
        for id_ in ids:
            self.disk.acknowledge(self.segment(layout, id_), sub)

    async def audit(self, name: TopicName = TOPIC) -> Layout:
        """Check a topic with no operation under way; return its layout."""
        topics = TopicStore(SimStore(self.tree, SimProcess(self.loop, "auditor")))
        record = await topics.load(name)
        layout = layout_of(record)
        assert check(layout) == ()
        assert record.intent is None
        assert not record.garbage
        expected = {self.segment(layout, id_, name) for id_ in layout.segments}
        stored = {found for found in self.disk.stored if found.partitioned_topic.topic == name}
        assert stored == expected, "storage and layout list the same segments"
        for segment in layout.segments.values():
            sealed = self.disk.stored[self.segment(layout, segment.id, name)].sealed
            assert sealed != segment.active, f"segment {segment.id} is writable exactly if it is active"
        for sub, subscription in (await topics.load_subscriptions(name)).items():
            assert subscription.unfinished is None
            for segment in layout.segments.values() if has_cursors(subscription) else ():
                cursors = self.disk.stored[self.segment(layout, segment.id, name)].cursors
                assert sub in cursors or segment.id in subscription.drained, f"{sub} lacks {segment.id}"
            _audit_assignment(layout, subscription)
        known = set(await topics.load_subscriptions(name))
        for found in sorted(stored, key=str):
            assert set(self.disk.stored[found].cursors) <= known, "no cursor without a subscription"
        return layout


def _audit_assignment(layout: Layout, record: SubscriptionRecord) -> None:
    """W1 and O3: one owner each unless by buckets, and no bucket before all ancestors drained it."""
    held: Counter[int] = Counter()
    for consumer in record.consumers.values():
        held.update(given.segment_id for given in consumer.segments)
    for consumer in record.consumers.values():
        for given in consumer.segments if record.type == "STREAM" else ():
            readable = open_for(record, layout, given.segment_id)
            assert readable != ()
            assert given.shared or (held[given.segment_id] == 1 and readable is None)


def group(
    *names: str, layout: Layout = TWO, kind: str = "STREAM", drained: tuple[int, ...] = ()
) -> SubscriptionRecord:
    """The record of a group with these members."""
    record = SubscriptionRecord(type=kind, initial_position="earliest", drained=drained)  # type: ignore[arg-type]
    for name in names:
        record = groups.join(record, layout, name, {})
    return record


class FakeConsumer:
    """Keeps the assignments that the leader pushes to one consumer."""

    def __init__(self) -> None:
        self.told: list[Assignment] = []

    def __call__(self, assignment: Assignment | None) -> None:
        if assignment is not None:
            self.told.append(assignment)

    @property
    def ids(self) -> list[int]:
        """The segments of the newest assignment."""
        return ids_of(self.told[-1])


class SilentConsumer(FakeConsumer):
    """A consumer whose connection answers late whether it is alive."""

    def __init__(self, *, lives: bool = False) -> None:
        super().__init__()
        self._lives = lives

    async def alive(self) -> bool:
        await asyncio.sleep(5)
        return self._lives


async def lead_on_failing_store(plane: ControlPlane, segments: int) -> tuple[TopicController, FailingStore]:
    """Lead a new topic on a metadata store that a test can make fail."""
    stores: list[FailingStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(FailingStore(store))
        return stores[-1]

    await plane.boot(wrap=wrap)
    await plane.call(plane.service.create_topic(TOPIC, segments))
    return await plane.controller(), stores[-1]


async def stored_assignments(plane: ControlPlane, sub: str = "s") -> dict[str, list[int]]:
    """Return the stored segments of each consumer of a subscription."""
    record = await plane.stored(sub)
    return {n: [given.segment_id for given in c.segments] for n, c in record.consumers.items()}


def no_seal(verb: str, name: TopicName) -> Exception | None:
    """A fault of the segments port: owners cannot be reached to seal."""
    return NotConnectedError("owner is away") if verb == "seal" else None


def ids_of(assignment: Assignment) -> list[int]:
    return sorted(segment.segment_id for segment in assignment.segments)
