"""The logs this broker serves: classic topics and segments, found, made and removed by name.

Classic topics have a record each. Segments have none: which of them exist is the layout's affair, and only
the controller makes and removes them. Must not know connections or commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from anabranch.broker.catalog.stores import Stores
from anabranch.broker.serving.served_log import LogContext, ServedLog
from anabranch.errors import (
    ConflictError,
    NotAllowedError,
    NotOwnerError,
    ServiceNotReadyError,
    TopicExistsError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from anabranch.ledger.storage import SegmentLog
from anabranch.metadata.records import ClassicTopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.drains import Ranges
from anabranch.model.hashing import key_hash
from anabranch.model.names import TopicName


class Topics:
    """Every log of the open stores by its name; it is served from when it is first asked for."""

    def __init__(
        self,
        stores: Stores,
        records: TopicStore,
        context: LogContext,
        *,
        auto_create: bool,
        drained: Callable[[ServedLog, str, Ranges], None],
        served: Callable[[], Sequence[int]] = lambda: (0,),
    ) -> None:
        """`served` returns the stores that have an owner, where new logs may go.

        `drained` is called when a subscription has acknowledged a sealed log, or all entries of some buckets.
        """
        self.records = records
        self._auto_create = auto_create
        self.stores = stores
        self._served_stores = served
        self._drained = drained
        self.dropped = 0
        """How many logs were removed since the start."""
        self._context = context
        self._served: dict[TopicName, ServedLog] = {}

    @property
    def served(self) -> Sequence[ServedLog]:
        """The logs that are open now."""
        return tuple(self._served.values())

    def get(self, name: TopicName) -> ServedLog | None:
        """The log of that name, None when there is none."""
        found = self._served.get(name)
        if found is None:
            log = self.stores.get(str(name))
            if log is not None:
                found = self._serve(name, log)
        return found

    def require(self, name: TopicName) -> ServedLog:
        """As `get`; TopicNotFoundError when there is none."""
        found = self.get(name)
        if found is None:
            raise TopicNotFoundError(f"{name} does not exist")
        return found

    async def make(self, name: TopicName, store: int) -> ServedLog:
        """The log of that name, made in this store if there is none; durable when it returns.

        Raises NotOwnerError when the store is not open here.
        """
        found = self.get(name)
        if found is not None:
            return found
        return self._serve(name, await self.stores.create(str(name), store))

    async def drop(self, name: TopicName) -> None:
        """Send everybody away and remove the log; an absent one is fine."""
        found = self.get(name)
        if found is not None:
            found.close()
        await self.stores.delete(str(name))
        if found is not None and self._served.get(name) is found:
            del self._served[name]
            self.dropped += 1

    def leave(self, store: int) -> None:
        """Serve no log of this store any more: everybody is sent away, to look for the next owner."""
        for segment in [segment for segment in self._served.values() if segment.store == store]:
            del self._served[segment.name]
            segment.close("moves to another broker")

    def _serve(self, name: TopicName, log: SegmentLog) -> ServedLog:
        # Two may have asked for a new log at the same time; the first one's is everybody's.
        found = self._served.get(name)
        if found is None:
            store = self.stores.store_of(str(name))
            if store is None or self.stores.get(str(name)) is not log:
                raise NotOwnerError(f"{name} is not served by this broker any more")
            found = ServedLog(name, log, self._context, self._drained, store)
            self._served[name] = found
            found.check_drained()
        return found

    async def may_create(self, name: TopicName) -> bool:
        """Whether a topic of this name is made on first use, by the namespace's policy or the broker's."""
        return await self.records.creates_topics(name.namespace_name, self._auto_create)

    # Classic topics.

    async def open(self, name: TopicName, *, create: bool) -> ServedLog:
        """A `persistent://` topic that clients attach to, made on first use where that is allowed."""
        if name.domain != "persistent":
            raise NotAllowedError(f"{name}: {name.domain}:// topics are not served")
        found = self.get(name)
        if found is not None:
            return found
        record = await self.records.find_classic(name)
        if record is None:
            if not await self._is_declared(name) and not (create and await self.may_create(name)):
                raise TopicNotFoundError(f"{name} does not exist")
            if not await self.is_migrated(name):
                with suppress(TopicExistsError):
                    await self._create_here(name)
        elif record.partitions:
            raise NotAllowedError(f"{name} is partitioned; attach to one of its partitions")
        store = await self.store_of(name)
        if store not in self.stores.opened:
            raise ServiceNotReadyError(f"{name} is not served by this broker; look it up again")
        if await self.is_migrated(name):
            raise TopicTerminatedError(f"{name} was a part of what is a scalable topic now, and is gone")
        return await self.make(name, store)

    async def store_of(self, name: TopicName) -> int:
        """The store that has a classic log, or will have it when it is made."""
        found = self.stores.store_of(str(name))
        if found is not None:
            return found
        record = await self.records.find_classic(name)
        if record is not None:
            return record.store()
        if name.partition is not None:
            whole = await self.records.find_classic(name.partitioned_topic)
            if whole is not None:
                return whole.store(name.partition)
        return self._spread(name, 1)[0]

    def _spread(self, name: TopicName, count: int, first: int = 0) -> tuple[int, ...]:
        """Stores for this many new logs of a topic, in turn from one that its name decides."""
        stores = self._served_stores() or (0,)
        start = key_hash(str(name)) + first
        return tuple(stores[(start + number) % len(stores)] for number in range(count))

    async def _create_here(self, name: TopicName) -> None:
        """Record a topic for a client that was sent here, wherever it would be sent by now.

        Some clients do not look a topic up again when they are refused.
        """
        opened = sorted(self.stores.opened)
        if name.partition is None and opened and await self.store_of(name) not in opened:
            await self.create(name, stores=(opened[key_hash(str(name)) % len(opened)],))
        else:
            await self.create(name)

    async def create(
        self,
        name: TopicName,
        partitions: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        stores: tuple[int, ...] = (),
    ) -> None:
        """Record a topic; its logs are made when they are first used. Raises TopicExistsError.

        ConflictError when a scalable topic has the name: clients that know both would never see this one.
        """
        await self.records.load_namespace(name.namespace_name)
        twin = await self.records.find(name.partitioned_topic.topic)
        if twin is not None and not twin.deleted:
            raise ConflictError(f"{name.partitioned_topic.topic} is a scalable topic of that name; use it")
        record = ClassicTopicRecord(
            partitions=partitions,
            properties=dict(properties or {}),
            created_at_ms=self._context.clock.wall_ms(),
            stores=stores or (self._spread(name, partitions) if partitions else (await self.store_of(name),)),
        )
        await self.records.create_classic(name, record)

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Give a topic more partitions; ConflictError if it has so many, or none, already."""

        def change(record: ClassicTopicRecord) -> ClassicTopicRecord:
            known = record.partitions
            if partitions <= known or known == 0:
                raise ConflictError(f"{name} has {known} partitions, and may only get more if it has any")
            stores = tuple(record.store(index) for index in range(known))
            more = self._spread(name, partitions - known, known)
            return msgspec.structs.replace(record, partitions=partitions, stores=(*stores, *more))

        await self.records.update_classic(name, change)

    async def mark_migrated(self, name: TopicName) -> None:
        """Make no log of this topic any more; those that are there stay."""
        await self.records.update_classic(name, lambda record: msgspec.structs.replace(record, migrated=True))

    async def partitions(self, name: TopicName) -> int | None:
        """How many partitions a classic topic has, 0 for none; None when there is no such topic."""
        if self.get(name) is not None:
            return 0
        record = await self.records.find_classic(name)
        return None if record is None else record.partitions

    async def list(self, namespace: str) -> Sequence[TopicName]:
        """The topics of a namespace that hold messages, partitions one by one, sorted."""
        names: dict[TopicName, None] = {}
        for name in await self.records.list_classic(namespace):
            record = await self.records.find_classic(name)
            count = 0 if record is None else record.partitions
            names.update(dict.fromkeys(name.partition_name(index) for index in range(count)))
            if not count:
                names[name] = None
        return sorted(names, key=str)

    async def list_partitioned(self, namespace: str) -> Sequence[TopicName]:
        """The classic topics of a namespace that have partitions, sorted."""
        found = []
        for name in await self.records.list_classic(namespace):
            record = await self.records.find_classic(name)
            if record is not None and record.partitions:
                found.append(name)
        return sorted(found, key=str)

    async def is_migrated(self, name: TopicName) -> bool:
        """Whether a classic topic, or one of its partitions, is a part of a scalable topic now."""
        whole = name if name.partition is None else name.partitioned_topic
        record = await self.records.find_classic(whole)
        return record is not None and record.migrated

    async def _is_declared(self, name: TopicName) -> bool:
        """Whether the name is a partition of a topic that somebody created with so many.

        One beyond the count must not come to be by a slip of the keyboard: TopicNotFoundError.
        """
        if name.partition is None:
            return False
        whole = await self.records.find_classic(name.partitioned_topic)
        if whole is not None and name.partition >= whole.partitions:
            raise TopicNotFoundError(f"{name.partitioned_topic} has {whole.partitions} partitions")
        return whole is not None
