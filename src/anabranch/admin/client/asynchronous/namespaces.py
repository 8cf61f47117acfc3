"""Methods about tenants, namespaces and policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.admin.client import calls
from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, namespace_of, topic_or_namespace
from anabranch.admin.models.namespaces import NamespacePolicies
from anabranch.admin.models.tenants import TenantInfo
from anabranch.arguments import mapped, texts


class AsyncNamespaceMethods(AsyncHttpClient):
    """Methods about tenants, namespaces and policies."""

    async def tenants(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all tenants.

        >>> await admin.create_tenant("shop", admins=["alice"])
        >>> await admin.tenants()
        ['public', 'shop']
        """
        return await self.send(calls.TENANTS(), timeout)

    async def tenant(self, tenant: str, *, timeout: float | None = None) -> TenantInfo:
        """Return the admins of a tenant, and the clusters that it may use."""
        return await self.send(calls.TENANT(None, tenant), timeout)

    async def tenant_admins(self, tenant: str, *, timeout: float | None = None) -> list[str]:
        """Return the roles that administer a tenant."""
        return (await self.tenant(tenant, timeout=timeout)).admin_roles or []

    async def create_tenant(
        self, tenant: str, admins: Iterable[str] = (), *, timeout: float | None = None
    ) -> None:
        """Create a tenant with these admins, in all clusters; ConflictError if it exists."""
        roles = texts("admins", admins)
        clusters = await self.send(calls.CLUSTERS(), timeout)
        body = TenantInfo(admin_roles=roles, allowed_clusters=clusters)
        await self.send(calls.CREATE_TENANT(None, tenant, body=body), timeout)

    async def set_tenant_admins(
        self, tenant: str, admins: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Make these roles, and no others, the admins of a tenant."""
        roles = texts("admins", admins)
        clusters = (await self.tenant(tenant, timeout=timeout)).allowed_clusters
        body = TenantInfo(admin_roles=roles, allowed_clusters=clusters)
        await self.send(calls.SET_TENANT(None, tenant, body=body), timeout)

    async def delete_tenant(self, tenant: str, *, timeout: float | None = None) -> None:
        """Delete a tenant; ConflictError while it has namespaces."""
        await self.send(calls.DELETE_TENANT(None, tenant), timeout)

    async def namespaces(self, tenant: str, *, timeout: float | None = None) -> list[str]:
        """Return the namespaces of a tenant, as `tenant/namespace`.

        >>> await admin.namespaces("public")
        ['public/default']
        """
        return await self.send(calls.NAMESPACES(None, tenant), timeout)

    async def create_namespace(
        self, namespace: str, policies: NamespacePolicies | None = None, *, timeout: float | None = None
    ) -> None:
        """Create a namespace, with these policies if there are any; ConflictError if it exists.

        >>> await admin.create_namespace("public/trial")
        """
        await self.send(calls.CREATE_NAMESPACE(namespace_of(namespace), body=policies), timeout)

    async def namespace_policies(self, namespace: str, *, timeout: float | None = None) -> NamespacePolicies:
        """Return all policies of a namespace.

        >>> (await admin.namespace_policies("public/default")).replication_clusters
        ['standalone']
        """
        return await self.send(calls.NAMESPACE_POLICIES(namespace_of(namespace)), timeout)

    async def delete_namespace(
        self, namespace: str, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Delete a namespace; ConflictError while it has topics, unless forced."""
        await self.send(calls.DELETE_NAMESPACE(namespace_of(namespace), query={"force": force}), timeout)

    async def namespace_properties(self, namespace: str, *, timeout: float | None = None) -> dict[str, str]:
        """Return the properties of a namespace."""
        return await self.send(calls.NAMESPACE_PROPERTIES(namespace_of(namespace)), timeout)

    async def set_namespace_properties(
        self, namespace: str, properties: Mapping[str, str], *, timeout: float | None = None
    ) -> None:
        """Change these properties of a namespace; the others stay.

        >>> await admin.set_namespace_properties("public/default", {"team": "sales"})
        >>> await admin.namespace_properties("public/default")
        {'team': 'sales'}
        """
        on, body = namespace_of(namespace), mapped("properties", properties)
        await self.send(calls.SET_NAMESPACE_PROPERTIES(on, body=body), timeout)

    async def policy(self, of: TopicLike, name: str, *, timeout: float | None = None) -> Any:
        """Return one policy of a `tenant/namespace`, or of a topic with its scheme; None if it is not set.

        >>> await admin.set_policy("public/default", "maxTopicsPerNamespace", 100)
        >>> await admin.policy("public/default", "maxTopicsPerNamespace")
        100
        """
        return await self.send(calls.POLICY(topic_or_namespace(of), name), timeout)

    async def set_policy(self, of: TopicLike, name: str, value: Any, *, timeout: float | None = None) -> None:
        """Set one policy, by its name in the path and in Pulsar's form."""
        await self.send(calls.SET_POLICY(topic_or_namespace(of), name, body=value), timeout)

    async def remove_policy(self, of: TopicLike, name: str, *, timeout: float | None = None) -> None:
        """Remove one policy, so that the one above it holds."""
        await self.send(calls.REMOVE_POLICY(topic_or_namespace(of), name), timeout)
