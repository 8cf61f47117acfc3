"""Finishes the work that earlier processes left, retrying until it is done. Does not know its requesters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from anabranch.aio import KeyedLocks, TaskRegistry
from anabranch.controller import lifecycle
from anabranch.controller.decide.operation import segment_name
from anabranch.controller.decide.resting import may_rest
from anabranch.controller.led_topics import LedTopics, RestingTopic
from anabranch.controller.topic.leadership import ControllerContext
from anabranch.errors import AlreadyClosedError, MetadataError, NotLeaderError, TopicNotFoundError
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import TopicRecord
from anabranch.model.names import Place, TopicName

log = logging.getLogger(__name__)

T = TypeVar("T")

Work = Callable[[TopicName], Awaitable[bool]]
"""One attempt. Returns False if it has to be repeated."""

READ_ATTEMPTS = 8

TAKEN_OVER_AT_ONCE = 8


@dataclass(slots=True)
class _Survey:
    """The topics of one namespace, grouped by the work that they need."""

    deleted: list[TopicName] = field(default_factory=list)
    unfinished: list[TopicName] = field(default_factory=list)
    waiting: list[TopicName] = field(default_factory=list)
    resting: dict[TopicName, RestingTopic] = field(default_factory=dict)


@dataclass(slots=True)
class _Notices:
    """Notices of changes since a survey began. The survey may have read older records."""

    records: set[TopicName] = field(default_factory=set)
    policies: set[str | None] = field(default_factory=set)
    """Namespaces, or None for all."""


class TopicRecovery:
    """The unfinished work of the topics that `led` may lead."""

    def __init__(self, context: ControllerContext, led: LedTopics, tasks: TaskRegistry) -> None:
        self._context = context
        self._led = led
        self._tasks = tasks
        self._delete_storage = partial(lifecycle.delete_storage, context)
        self._locks = KeyedLocks()
        self._unwatch: Callable[[], None] | None = None
        self._undo_policies: Callable[[], None] = lambda: None
        self._closed = False
        self._changed: set[TopicName] = set()
        """Topics whose record changed, and whose creation is checked after a pause."""
        self._notices: list[_Notices] = []
        """One for each survey whose topics do not rest yet."""

    async def ensure_defaults(self) -> None:
        """Create the default namespace if the metadata store is new."""
        await self._read(self._context.topics.namespaces.ensure_defaults)

    async def recover(self, at_home: Callable[[int], bool]) -> None:
        """Lead the topics of these home stores.

        Topics with unfinished work are led now, idle ones on their next use, and all others soon.
        """
        topics = self._context.topics
        if self._unwatch is None and not self._closed:
            self._unwatch = topics.watch_all(self._record_changed)
            self._undo_policies = topics.namespaces.watch(self._policies_changed)
        waiting: list[TopicName] = []
        for namespace in await self._read(topics.namespaces_with_topics):
            with self._noticing() as notices:
                found = await self._read(partial(self._survey, namespace, at_home))
                for name in found.deleted:
                    await self.finish_deletion(name)
                for name in found.unfinished:
                    await self._try_then_retry(self._resume, name)
                for name, topic in found.resting.items():
                    if notices.policies & {None, namespace} or name in notices.records:
                        found.waiting.append(name)
                    else:
                        self._led.rest(name, topic)
            waiting += found.waiting
            for name, lineage in await self._read(partial(topics.load_lineages, namespace)):
                if lineage.garbage and at_home(lineage.store):
                    await self._try_then_retry(self._delete_storage, name)
        self._take_over_soon(waiting)

    @contextmanager
    def _noticing(self) -> Iterator[_Notices]:
        notices = _Notices()
        self._notices.append(notices)
        try:
            yield notices
        finally:
            self._notices = [kept for kept in self._notices if kept is not notices]

    async def _survey(self, namespace: str, at_home: Callable[[int], bool]) -> _Survey:
        topics, settings, found = self._context.topics, self._context.settings, _Survey()
        policies = partial(topics.namespaces.policies, namespace, settings.auto_scale, settings.retention_s)
        policy, limits = await self._read(policies)
        used: set[TopicName] = set()
        async for name, record in topics.walk_topics(namespace, used.add):
            if not at_home(record.store):
                continue
            if record.deleted:
                found.deleted.append(name)
            elif record.intent is not None or record.garbage:
                found.unfinished.append(name)
            elif (
                policy is not None and may_rest(record, policy, limits(name)) and self._is_sound(name, record)
            ):
                found.resting[name] = RestingTopic.of(record)
            else:
                found.waiting.append(name)
        # A topic with members or unfinished subscriptions is led, so that its leader takes care of them.
        found.waiting += [name for name in found.resting if name in used]
        for name in found.waiting:
            found.resting.pop(name, None)
        return found

    def _is_sound(self, name: TopicName, record: TopicRecord) -> bool:
        layout = layout_of(record)
        places = [Place(segment_name(name, segment), segment.store) for segment in layout.active]
        return all(map(self._context.is_sound, places))

    def _take_over_soon(self, names: list[TopicName]) -> None:
        for first in range(min(TAKEN_OVER_AT_ONCE, len(names))):
            self._tasks.spawn(self._take_over(names[first::TAKEN_OVER_AT_ONCE]), "take over")

    def _policies_changed(self, namespace: str | None) -> None:
        """Lead the resting topics of a namespace, or of all, because other limits may apply to them."""
        for notices in self._notices:
            notices.policies.add(namespace)
        for controller in self._led:
            if namespace in (None, controller.name.namespace_name):
                controller.upkeep.policies_changed()
        names = list(self._led.resting)
        self._take_over_soon([name for name in names if namespace in (None, name.namespace_name)])

    def close(self) -> None:
        self._closed = True
        if self._unwatch is not None:
            self._unwatch()
            self._undo_policies()

    @asynccontextmanager
    async def creating(self, name: TopicName) -> AsyncIterator[None]:
        """Hold the lock of a name while a topic is recorded, then delete what its predecessors left."""
        try:
            async with self._locks.held(name):
                yield
        finally:
            # The deletion of a predecessor may have listed storage after its last attempt to delete it.
            self._tasks.spawn(self._retry(self._delete_storage, name), f"delete storage {name}")

    async def finish_deletion(self, name: TopicName) -> None:
        """Remove the records and storage of a deleted topic, in the background if the first attempt fails."""
        await self._try_then_retry(self._finish_deletion, name)

    async def await_deletion(self, name: TopicName) -> None:
        """Return once a deleted topic has no records and no storage left."""
        await self._retry(self._finish_deletion, name)

    async def _take_over(self, names: list[TopicName]) -> None:
        for name in names:
            await self._try_then_retry(self._resume, name)

    async def _resume(self, name: TopicName) -> bool:
        try:
            controller = await self._led.lead(name)
        except (TopicNotFoundError, AlreadyClosedError, NotLeaderError):
            return True
        try:
            await controller.settled()
            await controller.upkeep.collect_garbage()
        except Exception as error:
            log.warning("%s is led, but an earlier change is not finished yet: %s", name, error)
        return True

    async def _finish_deletion(self, name: TopicName) -> bool:
        async with self._locks.held(name):
            await lifecycle.forget_topic(self._context, name)
        return await self._delete_storage(name)

    def _record_changed(self, name: TopicName) -> None:
        for notices in self._notices:
            notices.records.add(name)
        if name not in self._led and name not in self._changed:
            self._changed.add(name)
            self._tasks.spawn(self._check_creation(name), f"check creation {name}")

    async def _check_creation(self, name: TopicName) -> None:
        """Finish the creation of a topic whose creator died, or got no answer to its write."""
        await asyncio.sleep(self._context.settings.retry_max_s)
        self._changed.discard(name)
        await self._retry(self._finish_creation, name)

    async def _finish_creation(self, name: TopicName) -> bool:
        record = None if name in self._led else await self._context.topics.find(name)
        rested = self._led.resting.get(name)
        if rested is not None and (record is None or record.deleted or record.store != rested.store):
            del self._led.resting[name]
        if record is None or record.deleted or record.intent is None:
            return True
        return await self._resume(name)

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read from the metadata store, trying a few times if it does not answer."""
        delays_s = self._context.delays_s()
        for _ in range(READ_ATTEMPTS - 1):
            try:
                return await read()
            except MetadataError as error:
                log.warning("the metadata store does not answer yet: %s", error)
            await asyncio.sleep(next(delays_s))
        return await read()

    async def _try_then_retry(self, work: Work, name: TopicName) -> None:
        """Await one attempt; if it fails, retry in the background."""
        if not await self._try(work, name):
            self._tasks.spawn(self._retry(work, name), f"finish {name}")

    async def _retry(self, work: Work, name: TopicName) -> None:
        delays_s = self._context.delays_s()
        while True:
            if await self._try(work, name):
                return
            await asyncio.sleep(next(delays_s))

    async def _try(self, work: Work, name: TopicName) -> bool:
        try:
            return await work(name)
        except Exception as error:
            log.warning("%s is not finished yet: %s: %s", name, type(error).__name__, error)
            return False
