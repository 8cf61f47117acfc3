"""Records of tenants and namespaces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from anabranch.errors import ConflictError, NotFoundError
from anabranch.metadata import namespace_policies, records
from anabranch.metadata.namespace_policies import Retention
from anabranch.metadata.record_store import RecordStore
from anabranch.metadata.records import NamespaceRecord, TenantRecord
from anabranch.model.names import decode_part, parse_namespace

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "public/default"


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
        await self.create_record(records.tenant_path(tenant), record, f"tenant {tenant}")

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
        parts = await self.store.children(_namespaces_path(tenant))
        return tuple(f"{tenant}/{decode_part(part)}" for part in parts)

    async def load_namespace(self, namespace: str) -> NamespaceRecord:
        record = await self.read(NamespaceRecord, records.namespace_path(records.NAMESPACES, namespace))
        if record is None:
            raise NotFoundError(f"namespace {namespace} does not exist")
        return record

    async def retention(self, namespace: str, default_s: float | None) -> Retention:
        """How long acknowledged messages of the namespace stay; `default_s` if it has no policy."""
        try:
            record = await self.load_namespace(namespace)
        except NotFoundError:
            return Retention(default_s)
        return namespace_policies.retention(record, default_s)

    async def creates_topics(self, namespace: str, default: bool) -> bool:
        """Whether topics of the namespace are created on first use."""
        try:
            record = await self.load_namespace(namespace)
        except NotFoundError:
            return default
        return namespace_policies.creates_topics(record, default)

    async def create_namespace(self, namespace: str, record: NamespaceRecord) -> None:
        """Raises NotFoundError without its tenant, ConflictError if it exists already."""
        await self.load_tenant(parse_namespace(namespace)[0])
        path = records.namespace_path(records.NAMESPACES, namespace)
        await self.create_record(path, record, f"namespace {namespace}")

    async def update_namespace(
        self, namespace: str, change: Callable[[NamespaceRecord], NamespaceRecord]
    ) -> NamespaceRecord:
        missing = NotFoundError(f"namespace {namespace} does not exist")
        path = records.namespace_path(records.NAMESPACES, namespace)
        return await self.change_record(NamespaceRecord, path, change, missing)


def _namespaces_path(tenant: str) -> str:
    return f"{records.NAMESPACES}/{records.tenant_path(tenant).rsplit('/', 1)[1]}"
