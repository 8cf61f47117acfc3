"""All controllers of one process: who leads which topic, and how topics come and go.

Owns every task it starts. Must not know what a controller does with its topic.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from anabranch.clock import Clock
from anabranch.controller import lifecycle
from anabranch.controller.controller import TopicController
from anabranch.controller.jobs import KeyedLocks, together
from anabranch.controller.leading import ControllerSettings, World
from anabranch.controller.segments import Segments
from anabranch.controller.watches import LayoutChanged, LayoutWatches
from anabranch.errors import AlreadyClosedError, InvalidNameError, MetadataError, TopicNotFoundError
from anabranch.failpoints import Failpoints, NoFailpoints
from anabranch.metadata.records import TopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

T = TypeVar("T")

Work = Callable[[TopicName], Awaitable[bool]]

NO_PROPERTIES: Mapping[str, str] = {}

START_ATTEMPTS = 8


class ControllerService:
    """Leads topics on request, and all of them sooner or later."""

    def __init__(
        self,
        topics: TopicStore,
        segments: Segments,
        clock: Clock,
        *,
        rng: random.Random,
        settings: ControllerSettings | None = None,
        failpoints: Failpoints | None = None,
        stores: Callable[[], tuple[int, ...]] = lambda: (0,),
    ) -> None:
        self._world = World(
            topics,
            segments,
            clock,
            settings or ControllerSettings(),
            failpoints or NoFailpoints(),
            rng,
            stores,
        )
        self._controllers: dict[TopicName, TopicController] = {}
        self._loading: dict[TopicName, asyncio.Task[TopicController]] = {}
        self._watches = LayoutWatches()
        self._tokens = itertools.count(1)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._turns = KeyedLocks()
        self._stopped = False

    async def start(self) -> None:
        """Finish every operation and deletion that was begun, and delete what garbage is listed.

        What fails is tried again in the background. The other topics are taken over there too: a topic needs
        a leader for its scaling and pruning also when nobody asks for one.
        """
        topics = self._world.topics
        await self._patiently(topics.ensure_defaults)
        waiting: list[TopicName] = []
        for namespace in await self._patiently(topics.namespaces_with_topics):
            for name, record in await self._patiently(partial(topics.load_all, namespace)):
                if record.deleted:
                    await self._first_try(self._bury, name)
                elif record.intent is not None or record.garbage:
                    await self._first_try(self._resume, name)
                else:
                    waiting.append(name)
            for name, lineage in await self._patiently(partial(topics.load_lineages, namespace)):
                if lineage.garbage:
                    await self._first_try(self._sweep, name)
        self._spawn(self._take_over(waiting), "take over")

    async def stop(self) -> None:
        """Leave everything where it stands; no task and no timer stays."""
        self._stopped = True
        tasks = [*self._tasks, *self._loading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        controllers, self._controllers = list(self._controllers.values()), {}
        await together(controller.stop() for controller in controllers)

    async def create_topic(
        self, name: TopicName, segments: int = 1, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> None:
        """Make a topic with this many segments; TopicExistsError, NotFoundError without its namespace."""
        _check_name(name)
        await self._world.topics.load_namespace(name.namespace_name)
        async with self._turns.held(name):
            await lifecycle.record_topic(self._world, name, segments, properties)
        try:
            controller = await self.controller(name)
        except TopicNotFoundError:
            # An attempt to lead it that began before the record was there.
            controller = await self.controller(name)
        await controller.settled()

    async def delete_topic(self, name: TopicName, force: bool = False) -> None:
        """Make the topic vanish at once and remove its storage; TopicNotFoundError if there is none."""
        name = name.topic
        await (await self.controller(name)).delete(force=force)
        await self._drop(name)
        await self._first_try(self._bury, name)

    async def controller(self, name: TopicName) -> TopicController:
        """The leader of the topic; TopicNotFoundError if there is none."""
        name = name.topic
        found = self._controllers.get(name)
        if found is not None:
            return found
        if self._stopped:
            raise AlreadyClosedError("the broker is stopping")
        task = self._loading.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(name), name=f"load {name}")
            task.add_done_callback(_retrieve)
            self._loading[name] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise AlreadyClosedError("the broker is stopping") from None
            raise

    async def list_topics(
        self, namespace: str, filters: Mapping[str, str] = NO_PROPERTIES
    ) -> list[TopicName]:
        """The topics of a namespace that have all these properties, sorted by name."""

        def fits(record: TopicRecord) -> bool:
            return not record.deleted and filters.items() <= record.properties.items()

        found = await self._world.topics.load_all(namespace)
        return sorted((name for name, record in found if fits(record)), key=str)

    def watch_layout(self, name: TopicName, changed: LayoutChanged) -> Callable[[], None]:
        """Tell of the newest layout now and after each commit, of None when there is no such topic any more.

        Layouts that are overtaken before they can be told are left out; epochs never go back.
        """
        name = name.topic
        loaded = self._controllers.get(name)
        undo = self._watches.add(name, changed, None if loaded is None else loaded.layout)
        if loaded is None:
            self._spawn(self._introduce(name), f"watch {name}")
        return undo

    def layouts(self) -> Mapping[TopicName, Layout]:
        """The layouts of all topics that are led here at the moment."""
        return {name: controller.layout for name, controller in self._controllers.items()}

    # Leading.

    async def _load(self, name: TopicName) -> TopicController:
        try:
            controller = await TopicController.lead(
                self._world, name, self._watches, self._tokens, self._lost
            )
            self._controllers[name] = controller
            return controller
        finally:
            del self._loading[name]

    async def _introduce(self, name: TopicName) -> None:
        """Lead a topic because somebody watches it; a leader tells the watchers by itself."""
        delay_s = self._world.settings.retry_first_s
        while self._watches.watched(name):
            try:
                await self.controller(name)
                return
            except TopicNotFoundError:
                self._watches.offer(name, None)
                return
            except Exception:
                await asyncio.sleep(self._world.jitter_s(delay_s))
                delay_s = min(2 * delay_s, self._world.settings.retry_max_s)

    async def _take_over(self, names: list[TopicName]) -> None:
        for name in names:
            await self._first_try(self._resume, name)

    def _lost(self, controller: TopicController) -> None:
        """The topic is led elsewhere, or gone: the next request finds out which."""
        if self._controllers.get(controller.name) is controller:
            del self._controllers[controller.name]
        self._spawn(self._succeed(controller), f"after {controller.name}")

    async def _succeed(self, controller: TopicController) -> None:
        await controller.stop()
        await self._until_done(self._bury, controller.name)
        if self._watches.watched(controller.name):
            await self._introduce(controller.name)

    async def _drop(self, name: TopicName) -> None:
        controller = self._controllers.pop(name, None)
        if controller is not None:
            await controller.stop()

    # What a start and a deletion must bring to an end.

    async def _resume(self, name: TopicName) -> bool:
        try:
            controller = await self.controller(name)
        except (TopicNotFoundError, AlreadyClosedError):
            return True
        try:
            await controller.settled()
            await controller.collect_garbage()
        except Exception as error:
            log.warning("%s is led, but not all is well yet: %s", name, error)
        return True

    async def _bury(self, name: TopicName) -> bool:
        async with self._turns.held(name):
            await lifecycle.forget_topic(self._world, name)
        return await self._sweep(name)

    async def _sweep(self, name: TopicName) -> bool:
        return await lifecycle.sweep(self._world, name)

    async def _patiently(self, read: Callable[[], Awaitable[T]]) -> T:
        """Ask the store a few times: a start should not fail because of one answer that was lost."""
        delay_s = self._world.settings.retry_first_s
        for _ in range(START_ATTEMPTS - 1):
            try:
                return await read()
            except MetadataError as error:
                log.warning("the metadata store does not answer yet: %s", error)
            await asyncio.sleep(self._world.jitter_s(delay_s))
            delay_s = min(2 * delay_s, self._world.settings.retry_max_s)
        return await read()

    async def _first_try(self, work: Work, name: TopicName) -> None:
        """Try once here; what is not done then goes on in the background."""
        if not await self._try(work, name):
            self._spawn(self._until_done(work, name), f"finish {name}")

    async def _until_done(self, work: Work, name: TopicName) -> None:
        delay_s = self._world.settings.retry_first_s
        while not await self._try(work, name):
            await asyncio.sleep(self._world.jitter_s(delay_s))
            delay_s = min(2 * delay_s, self._world.settings.retry_max_s)

    async def _try(self, work: Work, name: TopicName) -> bool:
        try:
            return await work(name)
        except Exception as error:
            log.warning("%s is not done yet: %s: %s", name, type(error).__name__, error)
            return False

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


def _check_name(name: TopicName) -> None:
    if not name.is_scalable:
        raise InvalidNameError(
            f"{name} is no scalable topic; write topic://{name.namespace_name}/{name.local}"
        )
    if name.partition is not None:
        raise InvalidNameError(f"{name} is the name of a partition, which no client can open as a topic")


def _retrieve(task: asyncio.Task[TopicController]) -> None:
    """Whoever asked got the error; if nobody waits any more, it is nobody's."""
    if not task.cancelled():
        task.exception()
