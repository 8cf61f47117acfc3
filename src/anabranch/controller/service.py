"""All controllers of one process: who leads which topic, and how topics come and go.

A broker leads the topics whose home store it serves, and passes requests about others on to their leaders.
Owns every task it starts. Must not know what a controller does with its topic, nor how to reach others.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from anabranch.aio import AttemptCancelled, KeyedLocks, SharedAttempts, TaskRegistry, together
from anabranch.controller import lifecycle
from anabranch.controller.decide.places import Place
from anabranch.controller.followed_layouts import FollowedLayouts
from anabranch.controller.layout_watches import LayoutChanged, LayoutWatches
from anabranch.controller.ports.leader import Alone, Leaders, TopicLeader
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.leadership import ControllerContext
from anabranch.controller.topic.scaling import Tally
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConflictError,
    InvalidNameError,
    MetadataError,
    NotLeaderError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from anabranch.metadata.records import SubscriptionKind, TopicRecord
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

T = TypeVar("T")

Work = Callable[[TopicName], Awaitable[bool]]

NO_PROPERTIES: Mapping[str, str] = {}

START_ATTEMPTS = 8

OWNER_WAIT_S = 10.0
"""How long a request waits for somebody to lead its topic; the client asks again then."""

OWNER_LOOK_S = 0.2

TAKEN_OVER_AT_ONCE = 8


class ControllerService:
    """Leads topics on request, and all of them sooner or later."""

    def __init__(self, context: ControllerContext, leaders: Leaders | None = None) -> None:
        self.context = context
        self._leaders: Leaders = leaders or Alone()
        self._tasks = TaskRegistry()
        self._closing: set[int] = set()
        self._controllers: dict[TopicName, TopicController] = {}
        self._loading: SharedAttempts[tuple[TopicName, int], TopicController] = SharedAttempts()
        """By topic and home store."""
        self._watches = LayoutWatches()
        self._following = FollowedLayouts(
            self.context, self._watches, lambda name: name in self._controllers, self._tasks.spawn
        )
        self._tokens = itertools.count(1)
        self._turns = KeyedLocks()
        self._unwatch: Callable[[], None] | None = None
        self._suspects: set[TopicName] = set()
        """Topics that changed a short while ago, and are to be looked at."""
        self._stopped = False

    async def start(self) -> None:
        """Lead what belongs to the stores that are open already."""
        await self._patiently(self.context.topics.ensure_defaults)
        await self._adopt(self._owns)

    async def store_opened(self, store: int) -> None:
        """This broker serves the store from now on: lead the topics that are at home there."""
        self._closing.discard(store)
        await self._adopt(lambda home: home == store)

    async def store_closing(self, store: int) -> None:
        """This broker gives the store up: stop leading its topics where they stand.

        Their registered consumers are told to come back.
        """
        self._closing.add(store)
        await self._loading.stop(key for key in self._loading if key[1] == store)
        leaving = [c for c in self._controllers.values() if c.record.store == store]
        for controller in leaving:
            del self._controllers[controller.name]
        await together(controller.stop() for controller in leaving)
        for controller in leaving:
            self._following.look_soon(controller.name)

    async def _adopt(self, mine: Callable[[int], bool]) -> None:
        """Finish every operation and deletion that was begun, and delete what garbage is listed.

        What fails is tried again in the background. The other topics are taken over there too: a topic needs
        a leader for its scaling and pruning also when nobody asks for one.
        """
        topics = self.context.topics
        if self._unwatch is None and not self._stopped:
            self._unwatch = topics.watch_all(self._changed)
        waiting: list[TopicName] = []
        for namespace in await self._patiently(topics.namespaces_with_topics):
            for name, record in await self._patiently(partial(topics.load_all, namespace)):
                if not mine(record.store):
                    continue
                if record.deleted:
                    await self._first_try(self._bury, name)
                elif record.intent is not None or record.garbage:
                    await self._first_try(self._resume, name)
                else:
                    waiting.append(name)
            for name, lineage in await self._patiently(partial(topics.load_lineages, namespace)):
                if lineage.garbage and mine(lineage.store):
                    await self._first_try(self._sweep, name)
        for first in range(min(TAKEN_OVER_AT_ONCE, len(waiting))):
            self._tasks.spawn(self._take_over(waiting[first::TAKEN_OVER_AT_ONCE]), "take over")

    async def stop(self) -> None:
        """Leave everything where it stands; no task and no timer stays."""
        self._stopped = True
        await asyncio.gather(self._tasks.stop(), self._loading.stop())
        self._following.close()
        if self._unwatch is not None:
            self._unwatch()
        controllers, self._controllers = list(self._controllers.values()), {}
        await together(controller.stop() for controller in controllers)

    async def create_topic(
        self, name: TopicName, segments: int = 1, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> None:
        """Make a topic with this many segments; TopicExistsError, NotFoundError without its namespace.

        ConflictError when a classic topic has the name: this one would hide its messages.
        """
        _check_name(name)
        await self.context.topics.load_namespace(name.namespace_name)
        classic = await self.context.topics.find_classic(name)
        if classic is not None and not classic.migrated:
            raise ConflictError(f"a classic topic {name.local} exists; migrate it, or choose another name")
        async with self._making(name):
            await lifecycle.record_topic(self.context, name, segments, properties)
        await self._begin(name)

    async def migrate_topic(
        self,
        name: TopicName,
        classic: Sequence[Place],
        subscriptions: Mapping[str, SubscriptionKind],
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> None:
        """Make a scalable topic that goes on where these classic logs end; TopicExistsError.

        The logs exist, and each has all of these subscriptions.
        """
        _check_name(name)
        async with self._making(name):
            await lifecycle.record_migration(self.context, name, classic, subscriptions, properties)
        await self._begin(name)

    @asynccontextmanager
    async def _making(self, name: TopicName) -> AsyncIterator[None]:
        """Take turns, and sweep in the end, whoever made the topic.

        What its predecessor left may have been listed here after the one that deleted that had swept.
        """
        try:
            async with self._turns.held(name):
                yield
        finally:
            self._tasks.spawn(self._until_done(self._sweep, name), f"sweep {name}")

    async def _begin(self, name: TopicName) -> None:
        try:
            controller = await self.controller(name)
        except TopicNotFoundError:
            # An attempt to lead it that began before the record was there.
            controller = await self.controller(name)
        await controller.settled()

    async def delete_topic(self, name: TopicName, force: bool = False) -> None:
        """Make the topic vanish at once and remove its storage; TopicNotFoundError if there is none."""
        name = name.topic
        controller = await self.controller(name)
        await controller.delete(force=force)
        if isinstance(controller, TopicController):
            await controller.stop()
            await self._first_try(self._bury, name)

    async def controller(self, name: TopicName) -> TopicLeader:
        """The leader of the topic, here or at another broker; TopicNotFoundError if there is no such topic.

        ServiceNotReadyError when nobody serves its home store for some time.
        """
        name = name.topic
        loop = asyncio.get_running_loop()
        until_s = loop.time() + OWNER_WAIT_S
        while True:
            found = self._controllers.get(name)
            if found is not None:
                return found
            if self._stopped:
                raise AlreadyClosedError("the broker is stopping")
            home = (await self.context.topics.load(name)).store
            if self._owns(home):
                try:
                    return await self._lead(name, home)
                except NotLeaderError:
                    if loop.time() >= until_s:
                        raise
            remote = self._leaders.remote(home, name)
            if remote is not None:
                return remote
            if loop.time() >= until_s:
                raise ServiceNotReadyError(f"nobody leads {name}: its home, store {home}, has no owner now")
            await self._owner_change()

    async def lead(self, name: TopicName) -> TopicController:
        """The leader of the topic, which must be here: NotLeaderError if it is not, for other brokers."""
        name = name.topic
        found = self._controllers.get(name)
        if found is not None:
            return found
        home = (await self.context.topics.load(name)).store
        if not self._owns(home):
            raise NotLeaderError(f"{name} is not led here: its home is store {home}")
        return await self._lead(name, home)

    def _owns(self, store: int) -> bool:
        return self._leaders.owns(store) and store not in self._closing

    async def _owner_change(self) -> None:
        changed = asyncio.Event()
        undo = self._leaders.watch(changed.set)
        try:
            async with asyncio.timeout(OWNER_LOOK_S):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            undo()

    async def _lead(self, name: TopicName, home: int) -> TopicController:
        if self._stopped:
            raise AlreadyClosedError("the broker is stopping")
        if name in self._controllers:
            # Since the caller looked. A second one would depose it, and nobody would tell its consumers.
            return self._controllers[name]
        key = next((key for key in self._loading if key[0] == name), (name, home))
        try:
            return await self._loading.join(key, lambda: self._load(name))
        except AttemptCancelled:
            if self._stopped:
                raise AlreadyClosedError("the broker is stopping") from None
            raise NotLeaderError(f"{name} is not led here any more") from None

    async def list_topics(
        self, namespace: str, filters: Set[tuple[str, str]] = frozenset()
    ) -> list[TopicName]:
        """The topics of a namespace that have all these properties, sorted by name."""

        def fits(record: TopicRecord) -> bool:
            return not record.deleted and filters <= record.properties.items()

        found = await self.context.topics.load_all(namespace)
        return sorted((name for name, record in found if fits(record)), key=str)

    def watch_layout(self, name: TopicName, changed: LayoutChanged) -> Callable[[], None]:
        """Tell of the newest layout now and after each commit, of None when there is no such topic any more.

        Layouts that are overtaken before they can be told are left out; epochs never go back.
        """
        name = name.topic
        loaded = self._controllers.get(name)
        undo = self._watches.add(name, changed, None if loaded is None else loaded.layout)
        if not self._stopped:
            self._following.follow(name)
        if loaded is None:
            self._tasks.spawn(self._introduce(name), f"watch {name}")

        def stop() -> None:
            undo()
            if not self._watches.watched(name):
                self._following.leave(name)

        return stop

    def home(self, name: TopicName) -> int | None:
        """The home store of a topic that is watched or led here; None while it is not known."""
        name = name.topic
        if name in self._controllers:
            return self._controllers[name].record.store
        loading = (home for loaded, home in self._loading if loaded == name)
        return next(loading, self._following.homes.get(name))

    def layouts(self) -> Mapping[TopicName, Layout]:
        """The layouts of all topics that are led here at the moment."""
        return {name: controller.layout for name, controller in self._controllers.items()}

    def tallies(self) -> Mapping[TopicName, Tally]:
        """What was done to each topic since it is led here."""
        return {name: controller.tally for name, controller in self._controllers.items()}

    # Leading.

    async def _load(self, name: TopicName) -> TopicController:
        controller = await TopicController.lead(self.context, name, self._watches, self._tokens, self._lost)
        if not self._owns(controller.record.store):
            await controller.stop()
            raise NotLeaderError(f"{name} is not led here any more")
        self._controllers[name] = controller
        return controller

    async def _introduce(self, name: TopicName) -> None:
        """Find the newest layout for those who watch, and see to it that somebody leads the topic."""
        delays_s = self.context.delays_s()
        while self._watches.watched(name):
            try:
                await self._following.look(name)
                controller = await self.controller(name)
                if not isinstance(controller, TopicController):
                    await controller.settled()
                return
            except TopicNotFoundError:
                self._watches.offer(name, None)
                return
            except Exception as error:
                if isinstance(error, AnabranchError) and not error.retryable:
                    return
                await asyncio.sleep(next(delays_s))

    async def _take_over(self, names: list[TopicName]) -> None:
        for name in names:
            await self._first_try(self._resume, name)

    def _lost(self, controller: TopicController) -> None:
        """The topic is led elsewhere, or gone: the next request finds out which."""
        if self._controllers.get(controller.name) is controller:
            del self._controllers[controller.name]
        self._tasks.spawn(self._succeed(controller), f"after {controller.name}")

    async def _succeed(self, controller: TopicController) -> None:
        await controller.stop()
        await self._until_done(self._bury, controller.name)
        if self._watches.watched(controller.name):
            await self._introduce(controller.name)

    # What a start and a deletion must bring to an end.

    def _changed(self, name: TopicName) -> None:
        if name not in self._controllers and name not in self._suspects:
            self._suspects.add(name)
            self._tasks.spawn(self._look_after(name), f"look after {name}")

    async def _look_after(self, name: TopicName) -> None:
        """Whoever began to make a topic may be gone, or not know that it did: its home makes it whole."""
        await asyncio.sleep(self.context.settings.retry_max_s)
        self._suspects.discard(name)
        await self._until_done(self._finish_making, name)

    async def _finish_making(self, name: TopicName) -> bool:
        record = None if name in self._controllers else await self.context.topics.find(name)
        if record is None or record.deleted or record.intent is None:
            return True
        return await self._resume(name)

    async def _resume(self, name: TopicName) -> bool:
        try:
            controller = await self.lead(name)
        except (TopicNotFoundError, AlreadyClosedError, NotLeaderError):
            return True
        try:
            await controller.settled()
            await controller.upkeep.collect_garbage()
        except Exception as error:
            log.warning("%s is led, but not all is well yet: %s", name, error)
        return True

    async def _bury(self, name: TopicName) -> bool:
        async with self._turns.held(name):
            await lifecycle.forget_topic(self.context, name)
        return await self._sweep(name)

    async def _sweep(self, name: TopicName) -> bool:
        return await lifecycle.sweep(self.context, name)

    async def _patiently(self, read: Callable[[], Awaitable[T]]) -> T:
        """Ask the store a few times: a start should not fail because of one answer that was lost."""
        delays_s = self.context.delays_s()
        for _ in range(START_ATTEMPTS - 1):
            try:
                return await read()
            except MetadataError as error:
                log.warning("the metadata store does not answer yet: %s", error)
            await asyncio.sleep(next(delays_s))
        return await read()

    async def _first_try(self, work: Work, name: TopicName) -> None:
        """Try once here; what is not done then goes on in the background."""
        if not await self._try(work, name):
            self._tasks.spawn(self._until_done(work, name), f"finish {name}")

    async def _until_done(self, work: Work, name: TopicName) -> None:
        delays_s = self.context.delays_s()
        while True:
            if await self._try(work, name):
                return
            await asyncio.sleep(next(delays_s))

    async def _try(self, work: Work, name: TopicName) -> bool:
        try:
            return await work(name)
        except Exception as error:
            log.warning("%s is not done yet: %s: %s", name, type(error).__name__, error)
            return False


def _check_name(name: TopicName) -> None:
    if not name.is_scalable:
        raise InvalidNameError(
            f"{name} is no scalable topic; write topic://{name.namespace_name}/{name.local}"
        )
    if name.partition is not None:
        raise InvalidNameError(f"{name} is the name of a partition, which no client can open as a topic")
