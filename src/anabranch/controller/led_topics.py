"""The topics whose home store this broker owns, one controller each. Does not know leaders elsewhere."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from anabranch.aio import AttemptCancelled, SharedAttempts, TaskRegistry, together
from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.leadership import ControllerContext, Leadership
from anabranch.controller.topic.scaling import Tally
from anabranch.errors import AlreadyClosedError, NotLeaderError, StaleTermError, TopicNotFoundError
from anabranch.metadata.records import TopicRecord
from anabranch.model.names import TopicName


class RestedLook(NamedTuple):
    """An auto-scaling decision in little memory: resting topics share equal texts."""

    first_ms: int
    last_ms: int
    count: int  # type: ignore[assignment]  # how often it was decided, not a tuple's method
    text: str
    """All other fields, as JSON."""

    @staticmethod
    def of(look: dict[str, Any]) -> RestedLook:
        rest = dict(look)
        times = rest.pop("firstMs"), rest.pop("lastMs"), rest.pop("count")
        return RestedLook(*times, sys.intern(msgspec.json.encode(rest).decode()))

    def unpacked(self) -> dict[str, Any]:
        times = {"firstMs": self.first_ms, "lastMs": self.last_ms, "count": self.count}
        rest: dict[str, Any] = msgspec.json.decode(self.text)
        return times | rest


class RestingTopic(NamedTuple):
    """A topic without a controller, because it has no clients and one segment. Its next use creates one."""

    store: int
    epoch: int
    segment: int
    buckets: int
    tally: Tally = Tally()
    looks: tuple[RestedLook, ...] = ()
    """The last decisions of auto-scaling."""

    @staticmethod
    def of(record: TopicRecord) -> RestingTopic:
        (segment,) = record.segments.values()
        buckets = len(segment.entry_bucket_splits) + 1
        return RestingTopic(record.store, record.epoch, segment.segment_id, buckets)


class LedTopics:
    """The controllers of one process. `lost` is called with each controller whose leadership ended."""

    def __init__(
        self,
        context: ControllerContext,
        owns: Callable[[int], bool],
        watches: LayoutWatches,
        lost: Callable[[TopicController], None],
    ) -> None:
        self._context = context
        self._owns = owns
        self._watches = watches
        self._notify_lost = lost
        self._closing: set[int] = set()
        self._controllers: dict[TopicName, TopicController] = {}
        self.resting: dict[TopicName, RestingTopic] = {}
        self._tasks = TaskRegistry()
        self._loading: SharedAttempts[tuple[TopicName, int], TopicController] = SharedAttempts()
        """Keyed by topic and home store."""
        self._tokens = itertools.count(1)
        self._stopped = False

    def __contains__(self, name: TopicName) -> bool:
        return name in self._controllers

    def __iter__(self) -> Iterator[TopicController]:
        return iter(list(self._controllers.values()))

    def find(self, name: TopicName) -> TopicController | None:
        return self._controllers.get(name)

    def home(self, name: TopicName) -> int | None:
        """Return the home store of a topic that is led here, or soon will be."""
        if name in self._controllers:
            return self._controllers[name].record.store
        if name in self.resting:
            return self.resting[name].store
        return next((home for loading, home in self._loading if loading == name), None)

    def owns(self, store: int) -> bool:
        """Return whether this broker owns the store and is not giving it up."""
        return self._owns(store) and store not in self._closing

    async def lead(self, name: TopicName) -> TopicController:
        """Return the topic's controller.

        NotLeaderError if this broker does not own the topic's home store.
        """
        found = self._controllers.get(name)
        if found is not None:
            return found
        try:
            home = (await self._context.topics.load(name)).store
        except TopicNotFoundError:
            self.resting.pop(name, None)
            raise
        if not self.owns(home):
            raise NotLeaderError(f"{name} is not led here: its home is store {home}")
        return await self.lead_at(name, home)

    async def lead_at(self, name: TopicName, home: int) -> TopicController:
        """Return the controller of a topic whose home store this broker owns, taking over if needed."""
        self.check_running()
        if name in self._controllers:
            # A second controller would depose the first without telling the consumers of the first.
            return self._controllers[name]
        key = next((key for key in self._loading if key[0] == name), (name, home))
        try:
            return await self._loading.join(key, lambda: self._take_over(name))
        except AttemptCancelled:
            self.check_running()
            raise NotLeaderError(f"{name} is not led here any more") from None
        except StaleTermError as error:
            raise NotLeaderError(f"{name} has a newer leader") from error

    def check_running(self) -> None:
        if self._stopped:
            raise AlreadyClosedError("the broker is stopping")

    async def _take_over(self, name: TopicName) -> TopicController:
        try:
            lead = await Leadership.take_over(self._context, name)
        except TopicNotFoundError:
            self.resting.pop(name, None)
            raise
        controller = TopicController(lead, self._watches, self._tokens, self._lost, self._unused)
        await controller.start()
        if controller.changes.queue.closed or not self.owns(controller.record.store):
            await controller.stop()
            raise NotLeaderError(f"{name} is not led here any more")
        self._controllers[name] = controller
        rested = self.resting.pop(name, None)
        if rested is not None:
            controller.scaling.remember(replace(rested.tally), (look.unpacked() for look in rested.looks))
        return controller

    def rest(self, name: TopicName, topic: RestingTopic) -> None:
        """Lead a topic only when it is used."""
        if name not in self._controllers and not any(loading == name for loading, _ in self._loading):
            self.resting[name] = topic

    def _unused(self, controller: TopicController) -> None:
        if self._controllers.get(controller.name) is controller and not self._stopped:
            del self._controllers[controller.name]
            scaling, topic = controller.scaling, RestingTopic.of(controller.record)
            self.resting[controller.name] = topic._replace(
                tally=scaling.tally, looks=tuple(map(RestedLook.of, scaling.looks))
            )
            controller.retire()
            self._tasks.spawn(controller.stop())

    def _lost(self, controller: TopicController) -> None:
        if self._controllers.get(controller.name) is controller:
            del self._controllers[controller.name]
        self._notify_lost(controller)

    def store_opened(self, store: int) -> None:
        """Allow leading topics of this store again, in case it was given up before."""
        self._closing.discard(store)

    async def store_closing(self, store: int) -> list[TopicName]:
        """Stop leading the topics of this store and return their names. Their consumers register again."""
        self._closing.add(store)
        await self._loading.stop(key for key in self._loading if key[1] == store)
        self.resting = {name: topic for name, topic in self.resting.items() if topic.store != store}
        leaving = [c for c in self._controllers.values() if c.record.store == store]
        for controller in leaving:
            del self._controllers[controller.name]
        await together(controller.stop() for controller in leaving)
        return [controller.name for controller in leaving]

    def close(self) -> None:
        self._stopped = True

    async def stop(self) -> None:
        """Stop leading all topics at once. The next leaders finish what is unfinished."""
        self.close()
        await self._loading.stop()
        await self._tasks.stop()
        controllers, self._controllers = list(self._controllers.values()), {}
        await together(controller.stop() for controller in controllers)
