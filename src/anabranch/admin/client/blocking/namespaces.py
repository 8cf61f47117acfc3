# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about tenants, namespaces and policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.admin.client import calls
from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import TopicLike, namespace_of, topic_or_namespace
from anabranch.admin.models.namespaces import NamespacePolicies
from anabranch.admin.models.tenants import TenantInfo
from anabranch.arguments import mapped, texts


class NamespaceMethods(HttpClient):
    """Methods about tenants, namespaces and policies."""

    def tenants(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all tenants.

        >>> admin.create_tenant("shop", admins=["alice"])
        >>> admin.tenants()
        ['public', 'shop']
        """
        return self.send(calls.TENANTS(), timeout)

    def tenant(self, tenant: str, *, timeout: float | None = None) -> TenantInfo:
        """Return the admins of a tenant, and the clusters that it may use."""
        return self.send(calls.TENANT(None, tenant), timeout)

    def tenant_admins(self, tenant: str, *, timeout: float | None = None) -> list[str]:
        """Return the roles that administer a tenant."""
        return (self.tenant(tenant, timeout=timeout)).admin_roles or []

    def create_tenant(self, tenant: str, admins: Iterable[str] = (), *, timeout: float | None = None) -> None:
        """Create a tenant with these admins, in all clusters; ConflictError if it exists."""
        roles = texts("admins", admins)
        clusters = self.send(calls.CLUSTERS(), timeout)
        body = TenantInfo(admin_roles=roles, allowed_clusters=clusters)
        self.send(calls.CREATE_TENANT(None, tenant, body=body), timeout)

    def set_tenant_admins(self, tenant: str, admins: Iterable[str], *, timeout: float | None = None) -> None:
        """Make these roles, and no others, the admins of a tenant."""
        roles = texts("admins", admins)
        clusters = (self.tenant(tenant, timeout=timeout)).allowed_clusters
        body = TenantInfo(admin_roles=roles, allowed_clusters=clusters)
        self.send(calls.SET_TENANT(None, tenant, body=body), timeout)

    def delete_tenant(self, tenant: str, *, timeout: float | None = None) -> None:
        """Delete a tenant; ConflictError while it has namespaces."""
        self.send(calls.DELETE_TENANT(None, tenant), timeout)

    def namespaces(self, tenant: str, *, timeout: float | None = None) -> list[str]:
        """Return the namespaces of a tenant, as `tenant/namespace`.

        >>> admin.namespaces("public")
        ['public/default']
        """
        return self.send(calls.NAMESPACES(None, tenant), timeout)

    def create_namespace(
        self, namespace: str, policies: NamespacePolicies | None = None, *, timeout: float | None = None
    ) -> None:
        """Create a namespace, with these policies if there are any; ConflictError if it exists.

        >>> admin.create_namespace("public/trial")
        """
        self.send(calls.CREATE_NAMESPACE(namespace_of(namespace), body=policies), timeout)

    def namespace_policies(self, namespace: str, *, timeout: float | None = None) -> NamespacePolicies:
        """Return all policies of a namespace.

        >>> (admin.namespace_policies("public/default")).replication_clusters
        ['standalone']
        """
        return self.send(calls.NAMESPACE_POLICIES(namespace_of(namespace)), timeout)

    def delete_namespace(self, namespace: str, *, force: bool = False, timeout: float | None = None) -> None:
        """Delete a namespace; ConflictError while it has topics, unless forced."""
        self.send(calls.DELETE_NAMESPACE(namespace_of(namespace), query={"force": force}), timeout)

    def namespace_properties(self, namespace: str, *, timeout: float | None = None) -> dict[str, str]:
        """Return the properties of a namespace."""
        return self.send(calls.NAMESPACE_PROPERTIES(namespace_of(namespace)), timeout)

    def set_namespace_properties(
        self, namespace: str, properties: Mapping[str, str], *, timeout: float | None = None
    ) -> None:
        """Change these properties of a namespace; the others stay.

        >>> admin.set_namespace_properties("public/default", {"team": "sales"})
        >>> admin.namespace_properties("public/default")
        {'team': 'sales'}
        """
        on, body = namespace_of(namespace), mapped("properties", properties)
        self.send(calls.SET_NAMESPACE_PROPERTIES(on, body=body), timeout)

    def policy(self, of: TopicLike, name: str, *, timeout: float | None = None) -> Any:
        """Return one policy of a `tenant/namespace`, or of a topic with its scheme; None if it is not set.

        >>> admin.set_policy("public/default", "maxTopicsPerNamespace", 100)
        >>> admin.policy("public/default", "maxTopicsPerNamespace")
        100
        """
        return self.send(calls.POLICY(topic_or_namespace(of), name), timeout)

    def set_policy(self, of: TopicLike, name: str, value: Any, *, timeout: float | None = None) -> None:
        """Set one policy, by its name in the path and in Pulsar's form."""
        self.send(calls.SET_POLICY(topic_or_namespace(of), name, body=value), timeout)

    def remove_policy(self, of: TopicLike, name: str, *, timeout: float | None = None) -> None:
        """Remove one policy, so that the one above it holds."""
        self.send(calls.REMOVE_POLICY(topic_or_namespace(of), name), timeout)
