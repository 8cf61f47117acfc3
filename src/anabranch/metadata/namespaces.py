"""Records of tenants and namespaces, and the policies in them that brokers follow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from anabranch.errors import ConflictError, InvalidConfigurationError, NotFoundError
from anabranch.metadata import records
from anabranch.metadata.record_store import RecordStore
from anabranch.metadata.records import NamespaceRecord, TenantRecord
from anabranch.model.names import TopicName, decode_part, encode_part, parse_namespace
from anabranch.model.policies.of_topics import policy_of_topic, topic_key
from anabranch.model.policies.retention import Retention, retention_of
from anabranch.model.scaling.policy import AutoScalePolicy, resolve

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "public/default"
RETENTION = "retention_policies"


class NamespaceStore(RecordStore):
    """The records of tenants and namespaces; topics are in `TopicStore`."""

    async def ensure_defaults(self, cluster: str = "standalone") -> None:
        """Create the default tenant and namespace if they are missing."""
        with suppress(ConflictError):
            await self.create_tenant(DEFAULT_TENANT, TenantRecord(allowed_clusters=(cluster,)))
        with suppress(ConflictError):
            await self.create_namespace(DEFAULT_NAMESPACE, NamespaceRecord())

    async def tenants(self) -> tuple[str, ...]:
        return tuple(decode_part(part) for part in await self.store.children(records.TENANTS))

    async def load_tenant(self, tenant: str) -> TenantRecord:
        record = await self.read(TenantRecord, records.tenant_path(tenant))
        if record is None:
            raise NotFoundError(f"tenant {tenant} does not exist")
        return record

    async def create_tenant(self, tenant: str, record: TenantRecord) -> None:
        exists = ConflictError(f"tenant {tenant} exists already")
        await self.create_record(records.tenant_path(tenant), record, exists)

    async def update_tenant(
        self, tenant: str, change: Callable[[TenantRecord], TenantRecord]
    ) -> TenantRecord:
        missing = NotFoundError(f"tenant {tenant} does not exist")
        return await self.change_record(TenantRecord, records.tenant_path(tenant), change, missing)

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant; raises ConflictError while it has namespaces."""
        await self.load_tenant(tenant)
        if await self.of_tenant(tenant):
            raise ConflictError(f"tenant {tenant} still has namespaces; delete them first")
        await self.delete_record(records.tenant_path(tenant))

    async def of_tenant(self, tenant: str) -> tuple[str, ...]:
        """The namespaces of a tenant as `tenant/namespace`."""
        parts = await self.store.children(f"{records.NAMESPACES}/{encode_part(tenant)}")
        return tuple(f"{tenant}/{decode_part(part)}" for part in parts)

    async def load_namespace(self, namespace: str) -> NamespaceRecord:
        record = await self.read(NamespaceRecord, records.namespace_path(records.NAMESPACES, namespace))
        if record is None:
            raise NotFoundError(f"namespace {namespace} does not exist")
        return record

    async def retention(self, topic: TopicName, default_s: float | None) -> Retention:
        """How long acknowledged messages of a topic stay; `default_s` without a policy."""
        return _retention(await self._load_policies(topic.namespace_name), topic, default_s)

    async def policies(
        self, namespace: str, broker: AutoScalePolicy, default_s: float | None
    ) -> tuple[AutoScalePolicy | None, Callable[[TopicName], Retention]]:
        """Auto-scaling of the namespace, None if its layer does not fit to the broker's; and retention."""
        found = await self.read(NamespaceRecord, records.namespace_path(records.NAMESPACES, namespace))
        record = found or NamespaceRecord()

        def limits(topic: TopicName) -> Retention:
            return _retention(record.policies, topic, default_s)

        try:
            return resolve(broker, record.scalable_topic_auto_scale_policy), limits
        except InvalidConfigurationError:
            return None, limits

    def watch(self, changed: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `changed` with each namespace whose record changed, or None for any; returns the undo."""

        def record_changed(path: str) -> None:
            parts = path.removeprefix(f"{records.NAMESPACES}/").split("/")
            changed("/".join(map(decode_part, parts)) if len(parts) == 2 else None)

        return self.store.watch(records.NAMESPACES, record_changed)

    async def creates_topics(self, namespace: str, default: bool) -> bool:
        """Whether topics of the namespace are created on first use; `default` if it has no policy."""
        policy = (await self._load_policies(namespace)).get("autoTopicCreationOverride")
        allowed = policy.get("allowAutoTopicCreation") if isinstance(policy, dict) else None
        return allowed if isinstance(allowed, bool) else default

    async def partitions_of_new_topics(self, namespace: str) -> int:
        """The partitions that a topic gets when it is created on first use; 0 for a plain topic."""
        policy = (await self._load_policies(namespace)).get("autoTopicCreationOverride")
        if not isinstance(policy, dict) or policy.get("topicType") != "partitioned":
            return 0
        count = policy.get("defaultNumPartitions")
        return count if isinstance(count, int) else 1

    async def _load_policies(self, namespace: str) -> dict[str, Any]:
        with suppress(NotFoundError):
            return (await self.load_namespace(namespace)).policies
        return {}

    async def create_namespace(self, namespace: str, record: NamespaceRecord) -> None:
        """Raises NotFoundError without its tenant, ConflictError if it exists already."""
        await self.load_tenant(parse_namespace(namespace)[0])
        path = records.namespace_path(records.NAMESPACES, namespace)
        await self.create_record(path, record, ConflictError(f"namespace {namespace} exists already"))

    async def update_namespace(
        self, namespace: str, change: Callable[[NamespaceRecord], NamespaceRecord]
    ) -> NamespaceRecord:
        missing = NotFoundError(f"namespace {namespace} does not exist")
        path = records.namespace_path(records.NAMESPACES, namespace)
        return await self.change_record(NamespaceRecord, path, change, missing)


def _retention(policies: dict[str, Any], topic: TopicName, default_s: float | None) -> Retention:
    own = policy_of_topic(policies, topic_key(topic), "retention")
    return retention_of(policies.get(RETENTION) if own is None else own, default_s)
