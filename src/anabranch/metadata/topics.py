"""Typed reads and compare-and-set updates over the metadata port.

Knows which record is where and how to change it safely; not what a change means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from anabranch.errors import (
    ConflictError,
    MetadataError,
    NotFoundError,
    StaleTermError,
    TopicExistsError,
    TopicNotFoundError,
    VersionConflictError,
)
from anabranch.metadata import records
from anabranch.metadata.records import (
    ClassicTopicRecord,
    LineageRecord,
    NamespaceRecord,
    RangeRecord,
    Record,
    Retention,
    SegmentRecord,
    SubscriptionRecord,
    TenantRecord,
    TopicRecord,
)
from anabranch.metadata.store import ABSENT, Change, MetadataStore
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import TopicName, decode_part, parse_namespace
from anabranch.model.ranges import HashRange

R = TypeVar("R", bound=Record)

DECODED_MAX = 64
"""Topic records that are kept decoded, those used last."""

ATTEMPTS = 64
"""Most tries of one update; each lost race means that somebody else got on."""

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "public/default"


class TopicStore:
    """The records of topics, subscriptions, tenants and namespaces."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self._decoded: dict[str, tuple[bytes, TopicRecord]] = {}

    # Scalable topics.

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
        # Every client asks for it once per segment; one of a thousand segments takes a millisecond to decode.
        value, record = self._decoded.pop(path, (b"", None))
        if record is None or value != stored.value:
            record = records.decode(TopicRecord, stored.value)
        self._decoded[path] = stored.value, record
        if len(self._decoded) > DECODED_MAX:
            del self._decoded[next(iter(self._decoded))]
        return record

    async def create(self, name: TopicName, record: TopicRecord) -> None:
        try:
            await self.store.put(records.topic_path(name), records.encode(record), expected=ABSENT)
        except VersionConflictError:
            raise TopicExistsError(f"{name.topic} exists already") from None

    async def update(self, name: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """Replace the record by what `change` makes of the newest one; it may be called several times.

        What `change` raises ends the update. Returning the same record writes nothing.
        """

        def existing(record: TopicRecord | None) -> TopicRecord:
            if record is None or record.deleted:
                raise TopicNotFoundError(f"{name.topic} does not exist")
            return change(record)

        record = await self._update(TopicRecord, records.topic_path(name), existing)
        assert record is not None
        return record

    async def delete(self, name: TopicName, incarnation: int) -> None:
        """Remove all records of the topic, its own last; another incarnation is left alone.

        Several processes may do so at once, and one of them make the topic anew before the last is done: what
        has a later term is the successor's.
        """
        record = await self.find(name)
        if record is None or record.incarnation != incarnation:
            return

        def check(found: SubscriptionRecord) -> None:
            if found.term > record.term:
                raise StaleTermError(f"{name.topic} was made anew")

        for sub in await self.load_subscriptions(name):
            with suppress(StaleTermError):
                await self.delete_subscription(name, sub, check)
        stored = await self.store.get(records.topic_path(name))
        if stored is not None and records.decode(TopicRecord, stored.value).incarnation == incarnation:
            await self._delete(records.topic_path(name), stored.version)

    async def list(self, namespace: str) -> tuple[TopicName, ...]:
        """The topics of a namespace, sorted by name."""
        found = await self.load_all(namespace)
        return tuple(name for name, record in found if not record.deleted)

    async def load_all(self, namespace: str) -> tuple[tuple[TopicName, TopicRecord], ...]:
        """The records of a namespace, also of topics whose deletion has begun."""
        tenant, local = parse_namespace(namespace)
        path = records.namespace_path(records.TOPICS, namespace)
        names = [
            TopicName("topic", tenant, local, decode_part(part)) for part in await self.store.children(path)
        ]
        loaded = await asyncio.gather(*(self.find(name) for name in names))
        return tuple((name, record) for name, record in zip(names, loaded, strict=True) if record)

    async def namespaces_with_topics(self) -> tuple[str, ...]:
        """The namespaces that hold topics or what is left of them."""
        found: dict[str, None] = {}
        for root in (records.TOPICS, records.LINEAGES):
            for tenant in await self.store.children(root):
                for local in await self.store.children(f"{root}/{tenant}"):
                    found[f"{decode_part(tenant)}/{decode_part(local)}"] = None
        return tuple(sorted(found))

    def watch(self, name: TopicName, changed: Callable[[Change], None]) -> Callable[[], None]:
        """Tell of changes of the topic and its subscriptions, wherever they were made."""
        return self.store.watch(records.topic_path(name), changed)

    def watch_all(self, changed: Callable[[TopicName], None]) -> Callable[[], None]:
        """Tell of each topic whose own record changes, comes or goes."""

        def told(change: Change) -> None:
            parts = change.path.removeprefix(f"{records.TOPICS}/").split("/")
            if len(parts) == 3:  # Subscriptions lie deeper.
                tenant, namespace, local = map(decode_part, parts)
                changed(TopicName("topic", tenant, namespace, local))

        return self.store.watch(records.TOPICS, told)

    # Subscriptions of a scalable topic.

    async def load_subscriptions(self, name: TopicName) -> dict[str, SubscriptionRecord]:
        parts = await self.store.children(records.subscriptions_path(name))
        subscriptions = [decode_part(part) for part in parts]
        loaded = await asyncio.gather(*(self.load_subscription(name, sub) for sub in subscriptions))
        return {sub: record for sub, record in zip(subscriptions, loaded, strict=True) if record}

    async def load_subscription(self, name: TopicName, subscription: str) -> SubscriptionRecord | None:
        return await self._read(SubscriptionRecord, records.subscription_path(name, subscription))

    async def update_subscription(
        self,
        name: TopicName,
        subscription: str,
        change: Callable[[SubscriptionRecord | None], SubscriptionRecord],
    ) -> SubscriptionRecord:
        """As `update`; `change` gets None while the subscription is not registered."""
        path = records.subscription_path(name, subscription)
        return await self._update(SubscriptionRecord, path, change)

    async def delete_subscription(
        self, name: TopicName, subscription: str, check: Callable[[SubscriptionRecord], None]
    ) -> None:
        """Forget the subscription unless `check` raises; an absent one is fine."""
        path = records.subscription_path(name, subscription)
        stored = await self.store.get(path)
        if stored is not None:
            check(records.decode(SubscriptionRecord, stored.value))
            await self._delete(path, stored.version)

    # What outlives a topic.

    async def load_lineage(self, name: TopicName) -> LineageRecord:
        return await self._read(LineageRecord, records.lineage_path(name)) or LineageRecord()

    async def load_lineages(self, namespace: str) -> tuple[tuple[TopicName, LineageRecord], ...]:
        tenant, local = parse_namespace(namespace)
        path = records.namespace_path(records.LINEAGES, namespace)
        names = [
            TopicName("topic", tenant, local, decode_part(part)) for part in await self.store.children(path)
        ]
        loaded = await asyncio.gather(*(self.load_lineage(name) for name in names))
        return tuple(zip(names, loaded, strict=True))

    async def update_lineage(
        self, name: TopicName, change: Callable[[LineageRecord], LineageRecord]
    ) -> LineageRecord:
        def known(record: LineageRecord | None) -> LineageRecord:
            return change(record or LineageRecord())

        return await self._update(LineageRecord, records.lineage_path(name), known)

    async def next_incarnation(self) -> int:
        """A number no topic had before."""
        return await self.store.increment(records.INCARNATIONS)

    # Classic topics.

    async def find_classic(self, name: TopicName) -> ClassicTopicRecord | None:
        return await self._read(ClassicTopicRecord, records.classic_path(name))

    async def create_classic(self, name: TopicName, record: ClassicTopicRecord) -> None:
        try:
            await self.store.put(records.classic_path(name), records.encode(record), expected=ABSENT)
        except VersionConflictError:
            raise TopicExistsError(f"{name} exists already") from None

    async def update_classic(
        self, name: TopicName, change: Callable[[ClassicTopicRecord], ClassicTopicRecord]
    ) -> ClassicTopicRecord:
        missing = TopicNotFoundError(f"{name} does not exist")
        return await self._change(ClassicTopicRecord, records.classic_path(name), change, missing)

    async def delete_classic(self, name: TopicName) -> None:
        """Forget the topic; an absent one is fine."""
        await self._delete(records.classic_path(name))

    async def list_classic(self, namespace: str) -> tuple[TopicName, ...]:
        tenant, local = parse_namespace(namespace)
        parts = await self.store.children(records.namespace_path(records.CLASSIC_TOPICS, namespace))
        return tuple(TopicName("persistent", tenant, local, decode_part(part)) for part in parts)

    # Tenants and namespaces.

    async def ensure_defaults(self, cluster: str = "standalone") -> None:
        """Make the tenant and namespace that a newcomer uses, unless they are there."""
        with suppress(ConflictError):
            await self.create_tenant(DEFAULT_TENANT, TenantRecord(allowed_clusters=(cluster,)))
        with suppress(ConflictError):
            await self.create_namespace(DEFAULT_NAMESPACE, NamespaceRecord())

    async def tenants(self) -> tuple[str, ...]:
        return tuple(decode_part(part) for part in await self.store.children(records.TENANTS))

    async def load_tenant(self, tenant: str) -> TenantRecord:
        record = await self._read(TenantRecord, records.tenant_path(tenant))
        if record is None:
            raise NotFoundError(f"tenant {tenant} does not exist")
        return record

    async def create_tenant(self, tenant: str, record: TenantRecord) -> None:
        await self._create(records.tenant_path(tenant), record, f"tenant {tenant}")

    async def update_tenant(
        self, tenant: str, change: Callable[[TenantRecord], TenantRecord]
    ) -> TenantRecord:
        missing = NotFoundError(f"tenant {tenant} does not exist")
        return await self._change(TenantRecord, records.tenant_path(tenant), change, missing)

    async def delete_tenant(self, tenant: str) -> None:
        """Forget a tenant; ConflictError while it has namespaces."""
        await self.load_tenant(tenant)
        if await self.namespaces(tenant):
            raise ConflictError(f"tenant {tenant} still has namespaces; delete them first")
        await self._delete(records.tenant_path(tenant))

    async def namespaces(self, tenant: str) -> tuple[str, ...]:
        """The namespaces of a tenant as `tenant/namespace`."""
        parts = await self.store.children(_namespaces_path(tenant))
        return tuple(f"{tenant}/{decode_part(part)}" for part in parts)

    async def load_namespace(self, namespace: str) -> NamespaceRecord:
        record = await self._read(NamespaceRecord, records.namespace_path(records.NAMESPACES, namespace))
        if record is None:
            raise NotFoundError(f"namespace {namespace} does not exist")
        return record

    async def retention(self, namespace: str, default_s: float | None) -> Retention:
        """What acknowledged messages of the namespace stay, for this time unless it says otherwise."""
        try:
            record = await self.load_namespace(namespace)
        except NotFoundError:
            return Retention(default_s)
        return records.retention(record, default_s)

    async def creates_topics(self, namespace: str, default: bool) -> bool:
        """Whether topics of the namespace are made on first use."""
        try:
            record = await self.load_namespace(namespace)
        except NotFoundError:
            return default
        return records.creates_topics(record, default)

    async def create_namespace(self, namespace: str, record: NamespaceRecord) -> None:
        """NotFoundError without its tenant, ConflictError if it is there already."""
        await self.load_tenant(parse_namespace(namespace)[0])
        path = records.namespace_path(records.NAMESPACES, namespace)
        await self._create(path, record, f"namespace {namespace}")

    async def update_namespace(
        self, namespace: str, change: Callable[[NamespaceRecord], NamespaceRecord]
    ) -> NamespaceRecord:
        missing = NotFoundError(f"namespace {namespace} does not exist")
        path = records.namespace_path(records.NAMESPACES, namespace)
        return await self._change(NamespaceRecord, path, change, missing)

    async def delete_namespace(self, namespace: str) -> None:
        """Forget a namespace; ConflictError while it has topics."""
        await self.load_namespace(namespace)
        if await self.list(namespace) or await self.list_classic(namespace):
            raise ConflictError(f"namespace {namespace} still has topics; delete them first")
        await self._delete(records.namespace_path(records.NAMESPACES, namespace))

    # The verbs all of them share.

    async def _read(self, kind: type[R], path: str) -> R | None:
        stored = await self.store.get(path)
        return None if stored is None else records.decode(kind, stored.value)

    async def _create(self, path: str, record: Record, what: str) -> None:
        try:
            await self.store.put(path, records.encode(record), expected=ABSENT)
        except VersionConflictError:
            raise ConflictError(f"{what} exists already") from None

    async def _update(self, kind: type[R], path: str, change: Callable[[R | None], R]) -> R:
        for _ in range(ATTEMPTS):
            stored = await self.store.get(path)
            before = None if stored is None else records.decode(kind, stored.value)
            after = change(before)
            if after is before:
                return after
            version = ABSENT if stored is None else stored.version
            try:
                await self.store.put(path, records.encode(after), expected=version)
            except VersionConflictError:
                continue
            return after
        raise MetadataError(f"{path} was changed by others {ATTEMPTS} times in a row")

    async def _change(self, kind: type[R], path: str, change: Callable[[R], R], missing: Exception) -> R:
        """Change a record that has to be there."""

        def existing(record: R | None) -> R:
            if record is None:
                raise missing
            return change(record)

        return await self._update(kind, path, existing)

    async def _delete(self, path: str, version: int | None = None) -> None:
        with suppress(NotFoundError):
            await self.store.delete(path, expected=version)


def _namespaces_path(tenant: str) -> str:
    return f"{records.NAMESPACES}/{records.tenant_path(tenant).rsplit('/', 1)[1]}"


def layout_of(record: TopicRecord) -> Layout:
    """The DAG of a record."""
    return Layout(
        record.epoch,
        record.next_segment_id,
        {segment.segment_id: _segment(segment) for segment in record.segments.values()},
    )


def with_layout(record: TopicRecord, layout: Layout) -> TopicRecord:
    """The record with another DAG and everything else as it was."""
    return msgspec.structs.replace(
        record,
        epoch=layout.epoch,
        next_segment_id=layout.next_id,
        segments={id_: _segment_record(layout.segments[id_]) for id_ in sorted(layout.segments)},
    )


def with_properties(record: TopicRecord, changes: Mapping[str, str | None]) -> TopicRecord:
    """The record with these properties changed; None removes one."""
    after = {**record.properties, **changes}
    return msgspec.structs.replace(record, properties={k: v for k, v in after.items() if v is not None})


def _segment(record: SegmentRecord) -> Segment:
    return Segment(
        id=record.segment_id,
        range=HashRange(record.hash_range.start, record.hash_range.end),
        state=SegmentState(record.state),
        parents=record.parent_ids,
        children=record.child_ids,
        created_epoch=record.created_at_epoch,
        sealed_epoch=record.sealed_at_epoch,
        created_ms=record.created_at_ms,
        sealed_ms=record.sealed_at_ms,
        bucket_splits=record.entry_bucket_splits,
        legacy_topic=record.legacy_topic_name,
        store=record.store,
    )


def _segment_record(segment: Segment) -> SegmentRecord:
    return SegmentRecord(
        segment_id=segment.id,
        hash_range=RangeRecord(start=segment.range.start, end=segment.range.end),
        state="ACTIVE" if segment.active else "SEALED",
        parent_ids=segment.parents,
        child_ids=segment.children,
        created_at_epoch=segment.created_epoch,
        sealed_at_epoch=segment.sealed_epoch,
        created_at_ms=segment.created_ms,
        sealed_at_ms=segment.sealed_ms,
        entry_bucket_splits=segment.bucket_splits,
        legacy_topic_name=segment.legacy_topic,
        store=segment.store,
    )
