"""All topics as one broker serves them: finds their leaders, creates and deletes topics, watches layouts.

This module does not know how a controller changes its topic, nor how to reach other brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from anabranch.aio import TaskRegistry
from anabranch.controller import lifecycle
from anabranch.controller.followed_layouts import FollowedLayouts
from anabranch.controller.layout_watches import LayoutChanged, LayoutWatches
from anabranch.controller.led_topics import LedTopics
from anabranch.controller.ports.leader import Leaders, TopicLeader
from anabranch.controller.recovery import TopicRecovery
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.leadership import ControllerContext
from anabranch.controller.topic.scaling import Tally
from anabranch.errors import (
    AnabranchError,
    ConflictError,
    InvalidNameError,
    NotLeaderError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from anabranch.metadata.records import TopicRecord
from anabranch.model.layout import Layout
from anabranch.model.limits import check_properties
from anabranch.model.names import TopicName

NO_PROPERTIES: Mapping[str, str] = {}

LEADER_WAIT_S = 10.0
"""How long a request waits for its topic to have a leader. After that the client repeats the request."""

LEADER_LOOK_S = 0.2


class TopicSummary(NamedTuple):
    """A topic that is led here, for metrics."""

    name: TopicName
    epoch: int
    active: int
    """The active segments. All others in `buckets` are sealed."""
    buckets: Mapping[int, int]
    """The number of buckets of each segment."""
    tally: Tally


class ControllerService:
    """The topics of one process."""

    def __init__(self, context: ControllerContext, leaders: Leaders) -> None:
        self.context = context
        self._leaders = leaders
        self._tasks = TaskRegistry()
        self.watches = LayoutWatches()
        self._led = LedTopics(context, self._leaders.owns, self.watches, self._lost)
        self._recovery = TopicRecovery(context, self._led, self._tasks)
        self._followed = FollowedLayouts(context, self.watches, self._led.__contains__, self._tasks.spawn)
        self._stopped = False

    async def start(self) -> None:
        """Lead the topics of the stores that are already open."""
        await self._recovery.ensure_defaults()
        await self._recovery.recover(self._led.owns)

    async def store_opened(self, store: int) -> None:
        """Lead the topics of a store that this broker owns from now on."""
        self._led.store_opened(store)
        await self._recovery.recover(lambda home: home == store)

    async def store_closing(self, store: int) -> None:
        """Stop leading the topics of a store that this broker gives up. Their consumers register again."""
        for name in await self._led.store_closing(store):
            self._followed.look_soon(name)

    async def stop(self) -> None:
        """Stop leading at once. No task or timer is left."""
        self._stopped = True
        self._led.close()
        await self._tasks.stop()
        self._followed.close()
        self._recovery.close()
        await self._led.stop()

    async def create_topic(
        self, name: TopicName, segments: int = 1, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> None:
        """Record a topic as `record_topic` does, and return once its segments exist."""
        await self.record_topic(name, segments, properties)
        await self.lead_new(name)

    async def record_topic(self, name: TopicName, segments: int, properties: Mapping[str, str]) -> None:
        """Record a topic.

        Raises TopicExistsError, NotFoundError without a namespace, or ConflictError if a classic topic
        exists.
        """
        _check_name(name)
        check_properties("a topic", properties)
        await self.context.topics.namespaces.load_namespace(name.namespace_name)
        classic = await self.context.topics.find_classic(name)
        # The new topic would hide the messages of the classic one.
        if classic is not None and not classic.migrated:
            known = replace(name, domain="persistent")
            raise ConflictError(f"{known} exists; use that name, migrate the topic, or choose another name")
        async with self._recovery.creating(name):
            await lifecycle.record_topic(self.context, name, segments, properties)

    async def record_migration(self, name: TopicName, migration: lifecycle.Migration) -> None:
        """Record a scalable topic that continues classic logs. Raises TopicExistsError."""
        _check_name(name)
        async with self._recovery.creating(name):
            await lifecycle.record_migration(self.context, name, migration)

    async def lead_new(self, name: TopicName) -> None:
        """Wait until the leader of a newly recorded topic has created its segments."""
        try:
            controller = await self.controller(name)
        except TopicNotFoundError:
            # This call joined an attempt to lead the topic that began before its record was written.
            controller = await self.controller(name)
        await controller.settled()

    async def delete_topic(
        self, name: TopicName, force: bool = False, incarnation: int | None = None
    ) -> None:
        """Make the topic, or only this incarnation of it, vanish at once.

        Raises TopicNotFoundError if there is none.
        """
        name = name.topic
        controller = await self.controller(name)
        await controller.delete(force=force, incarnation=incarnation)
        if isinstance(controller, TopicController):
            await controller.stop()
            await self._recovery.finish_deletion(name)

    async def controller(self, name: TopicName) -> TopicLeader:
        """Return the topic's leader, here or on another broker; TopicNotFoundError if there is no such topic.

        Raises ServiceNotReadyError if the topic's home store has no owner for `LEADER_WAIT_S`.
        """
        name = name.topic
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LEADER_WAIT_S
        while True:
            found = self._led.find(name)
            if found is not None:
                return found
            self._led.check_running()
            home = (await self.context.topics.load(name)).store
            if self._led.owns(home):
                try:
                    return await self._led.lead_at(name, home)
                except NotLeaderError:
                    if loop.time() >= until_s:
                        raise
            remote = self._leaders.remote(home, name)
            if remote is not None:
                return remote
            if loop.time() >= until_s:
                raise ServiceNotReadyError(f"{name} has no leader: its home, store {home}, has no owner now")
            await self._await_owner_change()

    async def ensure_led(self, name: TopicName) -> None:
        """Let the owner of the topic's home store lead the topic, in case it rests."""
        controller = await self.controller(name)
        if not isinstance(controller, TopicController):
            await controller.settled()

    def look_soon(self, name: TopicName) -> None:
        """Soon examine a topic that is led here: it may rest, because its clients are gone."""
        found = self._led.find(name.topic)
        if found is not None:
            found.upkeep.look_soon()

    async def lead(self, name: TopicName) -> TopicController:
        """Return the controller of a topic that this broker leads; NotLeaderError if another broker does."""
        return await self._led.lead(name.topic)

    async def _await_owner_change(self) -> None:
        changed = asyncio.Event()
        undo = self._leaders.watch(changed.set)
        try:
            async with asyncio.timeout(LEADER_LOOK_S):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            undo()

    async def list_topics(
        self, namespace: str, filters: Set[tuple[str, str]] = frozenset()
    ) -> list[TopicName]:
        """Return the topics of a namespace that have all these properties, sorted by name."""

        def fits(record: TopicRecord) -> bool:
            return not record.deleted and filters <= record.properties.items()

        records = self.context.topics.walk_topics(namespace)
        found = {str(name): name async for name, record in records if fits(record)}
        return [found[name] for name in sorted(found)]

    def watch_layout(self, name: TopicName, changed: LayoutChanged) -> Callable[[], None]:
        """Call `changed` with each newest layout, or None if there is no topic. Returns an undo function."""
        name = name.topic
        led = self._led.find(name)
        undo = self.watches.add(name, changed, None if led is None else led.layout)
        if not self._stopped:
            self._followed.follow(name)
        if led is None:
            self._tasks.spawn(self._find_layout(name), f"watch {name}")

        def stop() -> None:
            undo()
            if not self.watches.watched(name):
                self._followed.leave(name)

        return stop

    def home(self, name: TopicName) -> int | None:
        """Return the home store of a topic that is watched or led here, or None if it is not known yet."""
        home = self._led.home(name.topic)
        return self._followed.homes.get(name.topic) if home is None else home

    def layouts(self) -> Mapping[TopicName, Layout]:
        return {controller.name: controller.layout for controller in self._led}

    def summaries(self) -> Iterator[TopicSummary]:
        """Yield the topics that are led here or rest. Topics that come or go meanwhile may be left out."""
        for name, topic in list(self._led.resting.items()):
            yield TopicSummary(name, topic.epoch, 1, {topic.segment: topic.buckets}, topic.tally)
        for controller in self._led:
            layout = controller.layout
            buckets = {id_: segment.bucket_count for id_, segment in layout.segments.items()}
            yield TopicSummary(
                controller.name, layout.epoch, len(layout.active), buckets, controller.scaling.tally
            )

    async def _find_layout(self, name: TopicName) -> None:
        """Offer the newest layout to a topic's watchers, and make sure that the topic has a leader."""
        delays_s = self.context.delays_s()
        while self.watches.watched(name):
            try:
                await self._followed.look(name)
                await self.ensure_led(name)
                return
            except TopicNotFoundError:
                self.watches.offer(name, None)
                return
            except Exception as error:
                if isinstance(error, AnabranchError) and not error.retryable:
                    return
                await asyncio.sleep(next(delays_s))

    def _lost(self, controller: TopicController) -> None:
        self._tasks.spawn(self._after_loss(controller), f"after {controller.name}")

    async def _after_loss(self, controller: TopicController) -> None:
        await controller.stop()
        await self._recovery.await_deletion(controller.name)
        if self.watches.watched(controller.name):
            await self._find_layout(controller.name)


def _check_name(name: TopicName) -> None:
    if not name.is_scalable:
        raise InvalidNameError(
            f"{name} is not a scalable topic; write topic://{name.namespace_name}/{name.local}"
        )
    if name.partition is not None:
        raise InvalidNameError(f"{name} is the name of a partition, which no client can open as a topic")
