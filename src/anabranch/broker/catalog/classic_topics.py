"""Classic and live topics: one record per topic, and one log for the topic or for each of its partitions.

A log is created when it is first used; that of a live topic exists only in memory.
This module must not know connections, commands or layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from anabranch.aio import KeyedLocks
from anabranch.broker.catalog.quotas import QuotaBook
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.clock import Clock
from anabranch.errors import (
    ConflictError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicExistsError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from anabranch.metadata.records import ClassicTopicRecord
from anabranch.metadata.topics import ClassicDomain, TopicStore
from anabranch.model.hashing import key_hash
from anabranch.model.limits import check_properties
from anabranch.model.names import TopicName


class ClassicTopics:
    """Creates, opens, lists and describes classic topics and live ones."""

    def __init__(
        self,
        logs: ServedLogs,
        records: TopicStore,
        clock: Clock,
        stores: Callable[[], Sequence[int]],
        settings: QuotaBook,
    ) -> None:
        """`stores` returns the stores that have an owner, where new logs may go.

        `settings` says whether topics are created on first use if their namespace does not say.
        """
        self._logs = logs
        self._records = records
        self._clock = clock
        self._settings = settings
        self._stores = stores
        self._opening = KeyedLocks()

    async def may_create(self, name: TopicName) -> bool:
        """Return whether a topic is created on first use, as its namespace or this broker says."""
        return await self._records.namespaces.creates_topics(
            name.namespace_name, self._settings.config.auto_create_topics
        )

    async def is_usable(self, name: TopicName) -> bool:
        """Return whether a client that uses the topic finds it, or makes it by using it."""
        known = await self.partitions(name) is not None or await self._is_declared(name)
        return known or await self.may_create(name)

    async def open(self, name: TopicName, *, create: bool) -> ServedLog:
        """Return the log of a topic that a client attaches to, created on first use if allowed."""
        found = self._logs.get(name)
        if found is not None:
            return found
        async with self._opening.held(name):
            return await self._open(name, create=create)

    async def forget_unused(self, name: TopicName) -> None:
        """Delete the record of a live topic that is not loaded, and that no client opens just now."""
        async with self._opening.held(name):
            if self._logs.loaded(name) is None:
                await self._records.delete_classic(name)

    async def _open(self, name: TopicName, *, create: bool) -> ServedLog:
        record = await self._records.find_classic(name)
        if record is None and create and await self.partitions_for_use(name):
            record = await self._records.find_classic(name)
        if record is None:
            declared = await self._is_declared(name)
            if not declared and not (create and await self.may_create(name)):
                raise TopicNotFoundError(f"{name} does not exist")
            if not (declared and name.is_live) and not await self.is_migrated(name):
                with suppress(TopicExistsError):
                    await self._create_here(name)
        elif record.partitions:
            raise NotAllowedError(f"{name} is partitioned; attach to one of its partitions")
        store = await self.store_of(name)
        if store not in self._logs.stores.opened:
            raise ServiceNotReadyError(f"{name} is not served by this broker; look it up again")
        if await self.is_migrated(name):
            raise TopicTerminatedError(
                f"{name} became part of a scalable topic and was removed; use the scalable topic"
            )
        return await self._logs.make(name, store)

    async def store_of(self, name: TopicName) -> int:
        """Return the store of a classic log, or the store in which it will be created."""
        found = self._logs.stores.store_of(str(name))
        if found is not None:
            return found
        record = await self._records.find_classic(name)
        if record is not None:
            return record.store()
        if name.partition is not None:
            whole = await self._records.find_classic(name.partitioned_topic)
            if whole is not None:
                return whole.store(name.partition)
        return self._spread(name, 1)[0]

    def _spread(self, name: TopicName, count: int, first: int = 0) -> tuple[int, ...]:
        """Stores for `count` new logs of a topic, in turn, from a store that depends on its name."""
        stores = self._stores() or (0,)
        start = key_hash(str(name)) + first
        return tuple(stores[(start + number) % len(stores)] for number in range(count))

    async def _create_here(self, name: TopicName) -> None:
        """Record a topic in a store of this broker: some clients do not look it up again when refused."""
        opened = sorted(self._logs.stores.opened)
        if name.partition is None and opened and await self.store_of(name) not in opened:
            await self.create(name, stores=(opened[key_hash(str(name)) % len(opened)],), made_by_use=True)
        else:
            await self.create(name, made_by_use=True)

    async def create(
        self,
        name: TopicName,
        partitions: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        stores: tuple[int, ...] = (),
        made_by_use: bool = False,
    ) -> None:
        """Record a topic, but no logs yet; TopicExistsError, or ConflictError beside a scalable topic."""
        check_properties("a topic", properties or {})
        await self._records.namespaces.load_namespace(name.namespace_name)
        twin = None if name.is_live else await self._records.find(name.partitioned_topic.topic)
        if twin is not None and not twin.deleted:
            raise ConflictError(
                f"{name.partitioned_topic.topic} is a scalable topic; use it, or choose another name"
            )
        record = ClassicTopicRecord(
            partitions=partitions,
            properties=dict(properties or {}),
            created_at_ms=self._clock.wall_ms(),
            made_by_use=made_by_use,
            stores=stores or (self._spread(name, partitions) if partitions else (await self.store_of(name),)),
        )
        await self._records.create_classic(name, record)

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions; ConflictError unless the number grows."""

        def change(record: ClassicTopicRecord) -> ClassicTopicRecord:
            known = record.partitions
            if record.migrated:
                raise ConflictError(f"{name} became {name.topic}; split a segment of that topic")
            if partitions <= known or known == 0:
                raise ConflictError(f"{name} has {known} partitions; only a partitioned topic can get more")
            stores = tuple(record.store(index) for index in range(known))
            more = self._spread(name, partitions - known, known)
            return msgspec.structs.replace(record, partitions=partitions, stores=(*stores, *more))

        known = await self.partitions(name)
        async with self._records.claim(name, max(0, partitions - (known or 0)), grows=True):
            await self._records.update_classic(name, change)

    async def mark_migrated(self, name: TopicName) -> None:
        """Create no further logs for this topic; existing logs stay."""
        await self._records.update_classic(
            name, lambda record: msgspec.structs.replace(record, migrated=True)
        )

    async def partitions(self, name: TopicName) -> int | None:
        """Return how many partitions a topic has, 0 for a plain topic; None if it does not exist."""
        if self._logs.get(name) is not None:
            return 0
        record = await self._records.find_classic(name)
        return None if record is None else record.partitions

    async def partitions_for_use(self, name: TopicName) -> int | None:
        """As `partitions`; a new topic is created now if its namespace gives new topics partitions."""
        count = await self.partitions(name)
        if count is not None or name.partition is not None or not await self.may_create(name):
            return count
        partitions = await self._records.namespaces.partitions_of_new_topics(name.namespace_name)
        if not partitions:
            return None
        with suppress(TopicExistsError):
            await self.create(name, partitions, made_by_use=True)
        return await self.partitions(name)

    async def list(self, namespace: str, domain: ClassicDomain = "persistent") -> Sequence[TopicName]:
        """Return the topics of a namespace, sorted; a partitioned topic is listed as its partitions."""
        found: dict[str, TopicName] = {}
        async for name, record in self._records.walk_classic(namespace, domain):
            found.update((str(log), log) for log in log_names(name, record.partitions))
        return [found[name] for name in sorted(found)]

    async def list_partitioned(
        self, namespace: str, domain: ClassicDomain = "persistent"
    ) -> Sequence[TopicName]:
        """Return the partitioned topics of a namespace, sorted."""
        walk = self._records.walk_classic(namespace, domain)
        return sorted([name async for name, record in walk if record.partitions], key=str)

    async def is_migrated(self, name: TopicName) -> bool:
        """Return whether a classic topic, or the topic of a partition, became part of a scalable topic."""
        whole = name if name.partition is None else name.partitioned_topic
        record = await self._records.find_classic(whole)
        return record is not None and record.migrated

    async def _is_declared(self, name: TopicName) -> bool:
        """Return whether a name is a partition of a topic; TopicNotFoundError if its number is too high."""
        if name.partition is None:
            return False
        whole = await self._records.find_classic(name.partitioned_topic)
        if whole is not None and name.partition >= whole.partitions:
            raise TopicNotFoundError(f"{name.partitioned_topic} has {whole.partitions} partitions")
        return whole is not None


def log_names(name: TopicName, partitions: int) -> Sequence[TopicName]:
    """Return the names of the logs of a topic: its partitions, or its own name without partitions."""
    return [name.partition_name(index) for index in range(partitions)] or [name]
