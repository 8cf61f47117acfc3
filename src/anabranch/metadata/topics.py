"""Records of scalable topics, their subscriptions, their lineage, and classic topics.

This module knows the path of each record and how to change it safely, not what a change means.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Literal

from anabranch.errors import (
    ConflictError,
    StaleTermError,
    TopicExistsError,
    TopicNotFoundError,
)
from anabranch.metadata import records
from anabranch.metadata.namespaces import NamespaceStore
from anabranch.metadata.producer_epochs import TopicEpochs
from anabranch.metadata.record_store import RecordStore
from anabranch.metadata.records import (
    ClassicTopicRecord,
    LineageRecord,
    SubscriptionRecord,
    TopicRecord,
)
from anabranch.metadata.schemas import SchemaStore
from anabranch.metadata.store import MetadataStore
from anabranch.metadata.topic_room import TopicRoom
from anabranch.model.names import Domain, TopicName, decode_part, parse_namespace

ClassicDomain = Literal["persistent", "non-persistent"]

DECODED_MAX = 64
"""Number of topic records kept decoded, the most recently used."""


class TopicStore(RecordStore):
    """The records of topics and their subscriptions; `namespaces` has those of tenants and namespaces."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.namespaces = NamespaceStore(store)
        self.schemas = SchemaStore(store)
        self.producer_epochs = TopicEpochs(store)
        self.room: TopicRoom | None = None
        """Limits the number of topics; set by a broker."""
        self._decoded: dict[str, tuple[bytes, TopicRecord]] = {}

    async def load(self, name: TopicName) -> TopicRecord:
        """The record of a topic; TopicNotFoundError also once its deletion has begun."""
        record = await self.find(name)
        if record is None or record.deleted:
            raise TopicNotFoundError(f"{name.topic} does not exist")
        return record

    async def find(self, name: TopicName) -> TopicRecord | None:
        """The record as it is stored, also of a topic whose deletion has begun."""
        path = records.topic_path(name)
        stored = await self.store.get(path)
        if stored is None:
            self._decoded.pop(path, None)
            return None
        # Clients ask once per segment, and a record of a thousand segments takes a millisecond to decode.
        value, record = self._decoded.pop(path, (b"", None))
        if record is None or value != stored.value:
            record = records.decode(TopicRecord, stored.value)
        self._decoded[path] = stored.value, record
        if len(self._decoded) > DECODED_MAX:
            del self._decoded[next(iter(self._decoded))]
        return record

    async def create(self, name: TopicName, record: TopicRecord) -> None:
        exists = TopicExistsError(f"{name.topic} exists already")
        async with self.claim(name, 1):
            await self.create_record(records.topic_path(name), record, exists)

    def claim(self, name: TopicName, count: int, *, grows: bool = False) -> AbstractAsyncContextManager[None]:
        """As `TopicRoom.claim`; without limits, nothing is claimed."""
        return nullcontext() if self.room is None else self.room.claim(name, count, grows=grows)

    async def update(self, name: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """As `update_record`; raises TopicNotFoundError also once the deletion has begun."""

        def existing(record: TopicRecord | None) -> TopicRecord:
            if record is None or record.deleted:
                raise TopicNotFoundError(f"{name.topic} does not exist")
            return change(record)

        return await self.update_record(TopicRecord, records.topic_path(name), existing)

    async def delete(self, name: TopicName, incarnation: int) -> None:
        """Delete all records of the topic, its own last; records of another incarnation stay.

        Several processes may delete the topic at once, and one of them may create it again before the last is
        done. So a subscription with a later term belongs to the new topic and stays.
        """
        record = await self.find(name)
        if record is None or record.incarnation != incarnation:
            return

        def check(found: SubscriptionRecord) -> None:
            if found.term > record.term:
                raise StaleTermError(f"{name.topic} was created again")

        for sub in await self.load_subscriptions(name):
            with suppress(StaleTermError):
                await self.delete_subscription(name, sub, check)
        classic = await self.find_classic(name)
        if classic is None or classic.migrated:
            await self.schemas.delete(name)
        if classic is not None and classic.migrated:
            # The logs that this record named were segments of the topic, and are gone with it.
            for part in range(classic.partitions):
                await self.delete_record(records.classic_path(name.partition_name(part)))
            await self.delete_record(records.classic_path(name))
        stored = await self.store.get(records.topic_path(name))
        if stored is not None and records.decode(TopicRecord, stored.value).incarnation == incarnation:
            await self.delete_record(records.topic_path(name), stored.version)

    async def list(self, namespace: str) -> tuple[TopicName, ...]:
        """The topics of a namespace, sorted by name."""
        found = await self.load_all(namespace)
        return tuple(name for name, record in found if not record.deleted)

    async def load_all(self, namespace: str) -> tuple[tuple[TopicName, TopicRecord], ...]:
        """The records of a namespace, also of topics whose deletion has begun."""
        return tuple([found async for found in self.walk_topics(namespace)])

    async def walk_topics(
        self, namespace: str, used: Callable[[TopicName], None] = lambda name: None
    ) -> AsyncIterator[tuple[TopicName, TopicRecord]]:
        """As `load_all`, one by one; `used` gets topics with members or unfinished subscriptions."""
        tenant, local = parse_namespace(namespace)
        async for parts, value in self.walk(records.namespace_path(records.TOPICS, namespace)):
            name = TopicName("topic", tenant, local, parts[0])
            if len(parts) == 1:
                yield name, records.decode(TopicRecord, value)
            else:
                subscription = records.decode(SubscriptionRecord, value)
                if subscription.consumers or subscription.unfinished is not None:
                    used(name)

    async def namespaces_with_topics(self) -> tuple[str, ...]:
        """The namespaces that have topics or lineages."""
        return await self._namespaces_below(records.TOPICS, records.LINEAGES)

    async def _namespaces_below(self, *roots: str) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for root in roots:
            for tenant in await self.store.children(root):
                for local in await self.store.children(f"{root}/{tenant}"):
                    found[f"{decode_part(tenant)}/{decode_part(local)}"] = None
        return tuple(sorted(found))

    def watch(self, name: TopicName, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed` for changes of the topic and its subscriptions by any process; returns the undo."""
        return self.store.watch(records.topic_path(name), changed)

    def watch_all(self, changed: Callable[[TopicName], None]) -> Callable[[], None]:
        """Call `changed` with each topic whose record was created, changed or deleted; returns the undo."""

        def topic_changed(path: str) -> None:
            parts = path.removeprefix(f"{records.TOPICS}/").split("/")
            if len(parts) == 3:  # Subscriptions lie deeper.
                tenant, namespace, local = map(decode_part, parts)
                changed(TopicName("topic", tenant, namespace, local))

        return self.store.watch(records.TOPICS, topic_changed)

    async def load_subscriptions(self, name: TopicName) -> dict[str, SubscriptionRecord]:
        parts = await self.store.children(records.subscriptions_path(name))
        subscriptions = [decode_part(part) for part in parts]
        loaded = await asyncio.gather(*(self.load_subscription(name, sub) for sub in subscriptions))
        return {sub: record for sub, record in zip(subscriptions, loaded, strict=True) if record}

    async def load_subscription(self, name: TopicName, subscription: str) -> SubscriptionRecord | None:
        return await self.read(SubscriptionRecord, records.subscription_path(name, subscription))

    async def update_subscription(
        self,
        name: TopicName,
        subscription: str,
        change: Callable[[SubscriptionRecord | None], SubscriptionRecord],
    ) -> SubscriptionRecord:
        """As `update_record`; `change` gets None if the subscription does not exist."""
        path = records.subscription_path(name, subscription)
        return await self.update_record(SubscriptionRecord, path, change)

    async def delete_subscription(
        self, name: TopicName, subscription: str, check: Callable[[SubscriptionRecord], None]
    ) -> None:
        """Delete the subscription unless `check` raises; a missing subscription is skipped."""
        path = records.subscription_path(name, subscription)
        stored = await self.store.get(path)
        if stored is not None:
            check(records.decode(SubscriptionRecord, stored.value))
            await self.delete_record(path, stored.version)

    async def load_lineage(self, name: TopicName) -> LineageRecord:
        return await self.read(LineageRecord, records.lineage_path(name)) or LineageRecord()

    async def load_lineages(self, namespace: str) -> tuple[tuple[TopicName, LineageRecord], ...]:
        names = await self._names(records.LINEAGES, "topic", namespace)
        loaded = await asyncio.gather(*(self.load_lineage(name) for name in names))
        return tuple(zip(names, loaded, strict=True))

    async def update_lineage(
        self, name: TopicName, change: Callable[[LineageRecord], LineageRecord]
    ) -> LineageRecord:
        def known(record: LineageRecord | None) -> LineageRecord:
            return change(record or LineageRecord())

        return await self.update_record(LineageRecord, records.lineage_path(name), known)

    async def next_incarnation(self) -> int:
        """A number that no topic had before."""
        return await self.store.increment(records.INCARNATIONS)

    async def find_classic(self, name: TopicName) -> ClassicTopicRecord | None:
        return await self.read(ClassicTopicRecord, records.classic_path(name))

    async def create_classic(self, name: TopicName, record: ClassicTopicRecord) -> None:
        exists = TopicExistsError(f"{name} exists already")
        async with self.claim(name, record.partitions or 1):
            await self.create_record(records.classic_path(name), record, exists)

    async def update_classic(
        self, name: TopicName, change: Callable[[ClassicTopicRecord], ClassicTopicRecord]
    ) -> ClassicTopicRecord:
        missing = TopicNotFoundError(f"{name} does not exist")
        return await self.change_record(ClassicTopicRecord, records.classic_path(name), change, missing)

    async def delete_classic(self, name: TopicName) -> None:
        """Delete the record of a topic if it exists, and its schemas if no other scheme has the name."""
        twin = replace(name, domain="persistent" if name.is_live else "non-persistent")
        others = await self.find(name.topic), await self.find_classic(twin)
        if name.partition is None and others == (None, None):
            await self.schemas.delete(name)
        await self.delete_record(records.classic_path(name))

    async def list_classic(
        self, namespace: str, domain: ClassicDomain = "persistent"
    ) -> tuple[TopicName, ...]:
        return tuple([name async for name, _ in self.walk_classic(namespace, domain)])

    async def walk_classic(
        self, namespace: str, domain: ClassicDomain = "persistent"
    ) -> AsyncIterator[tuple[TopicName, ClassicTopicRecord]]:
        """The classic topics of a namespace with their records, or its live topics."""
        tenant, local = parse_namespace(namespace)
        root = records.LIVE_TOPICS if domain == "non-persistent" else records.CLASSIC_TOPICS
        async for parts, value in self.walk(records.namespace_path(root, namespace)):
            yield TopicName(domain, tenant, local, parts[0]), records.decode(ClassicTopicRecord, value)

    async def namespaces_with_live_topics(self) -> tuple[str, ...]:
        return await self._namespaces_below(records.LIVE_TOPICS)

    async def _names(self, root: str, domain: Domain, namespace: str) -> tuple[TopicName, ...]:
        tenant, local = parse_namespace(namespace)
        parts = await self.store.children(records.namespace_path(root, namespace))
        return tuple(TopicName(domain, tenant, local, decode_part(part)) for part in parts)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace; raises ConflictError while it has topics."""
        await self.namespaces.load_namespace(namespace)
        for root in (records.CLASSIC_TOPICS, records.LIVE_TOPICS):
            others = await self.store.children(records.namespace_path(root, namespace))
            if others or await self.list(namespace):
                raise ConflictError(f"namespace {namespace} still has topics; delete them first")
        await self.delete_record(records.namespace_path(records.NAMESPACES, namespace))
