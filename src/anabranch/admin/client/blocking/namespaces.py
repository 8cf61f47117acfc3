# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about tenants, namespaces and policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import (
    TopicLike,
    change,
    find,
    get,
    namespace_path,
    path_of,
    topic_path,
)
from anabranch.admin.models.namespaces import NamespacePolicies
from anabranch.admin.models.tenants import TenantInfo
from anabranch.arguments import mapped, texts


class NamespaceMethods(HttpClient):
    """Methods about tenants, namespaces and policies."""

    def tenants(self, *, timeout: float | None = None) -> list[str]:
        """The names of all tenants.

        >>> admin.create_tenant("shop", admins=["alice"])
        >>> admin.tenants()
        ['public', 'shop']
        """
        return self.send(get("/admin/v2/tenants", list[str]), timeout)

    def tenant(self, tenant: str, *, timeout: float | None = None) -> TenantInfo:
        """The admins of a tenant, and the clusters that it may use."""
        return self.send(get(path_of("tenants", tenant), TenantInfo), timeout)

    def tenant_admins(self, tenant: str, *, timeout: float | None = None) -> list[str]:
        """The roles that administrate a tenant."""
        return (self.tenant(tenant, timeout=timeout)).admin_roles or []

    def create_tenant(self, tenant: str, admins: Iterable[str] = (), *, timeout: float | None = None) -> None:
        """Create a tenant with these admins, in all clusters; ConflictError if it exists."""
        roles = texts("admins", admins)
        clusters = self.send(get("/admin/v2/clusters", list[str]), timeout)
        body = TenantInfo(admin_roles=roles, allowed_clusters=clusters)
        self.send(change("PUT", path_of("tenants", tenant), body=body), timeout)

    def set_tenant_admins(self, tenant: str, admins: Iterable[str], *, timeout: float | None = None) -> None:
        """Make these roles, and no others, the admins of a tenant."""
        roles = texts("admins", admins)
        clusters = (self.tenant(tenant, timeout=timeout)).allowed_clusters
        body = TenantInfo(admin_roles=roles, allowed_clusters=clusters)
        self.send(change("POST", path_of("tenants", tenant), body=body), timeout)

    def delete_tenant(self, tenant: str, *, timeout: float | None = None) -> None:
        """Delete a tenant; ConflictError while it has namespaces."""
        self.send(change("DELETE", path_of("tenants", tenant)), timeout)

    def namespaces(self, tenant: str, *, timeout: float | None = None) -> list[str]:
        """The namespaces of a tenant, as `tenant/namespace`.

        >>> admin.namespaces("public")
        ['public/default']
        """
        return self.send(get(path_of("namespaces", tenant), list[str]), timeout)

    def create_namespace(
        self, namespace: str, policies: NamespacePolicies | None = None, *, timeout: float | None = None
    ) -> None:
        """Create a namespace, with these policies if there are any; ConflictError if it exists.

        >>> admin.create_namespace("public/trial")
        """
        self.send(change("PUT", namespace_path(namespace), body=policies), timeout)

    def namespace_policies(self, namespace: str, *, timeout: float | None = None) -> NamespacePolicies:
        """All policies of a namespace.

        >>> (admin.namespace_policies("public/default")).replication_clusters
        ['standalone']
        """
        return self.send(get(namespace_path(namespace), NamespacePolicies), timeout)

    def delete_namespace(self, namespace: str, *, force: bool = False, timeout: float | None = None) -> None:
        """Delete a namespace; ConflictError while it has topics, unless forced."""
        self.send(change("DELETE", namespace_path(namespace), query={"force": force}), timeout)

    def namespace_properties(self, namespace: str, *, timeout: float | None = None) -> dict[str, str]:
        """The properties of a namespace."""
        return self.send(get(namespace_path(namespace, "properties"), dict[str, str]), timeout)

    def set_namespace_properties(
        self, namespace: str, properties: Mapping[str, str], *, timeout: float | None = None
    ) -> None:
        """Change these properties of a namespace; the others stay.

        >>> admin.set_namespace_properties("public/default", {"team": "sales"})
        >>> admin.namespace_properties("public/default")
        {'team': 'sales'}
        """
        path = namespace_path(namespace, "properties")
        self.send(change("PUT", path, body=mapped("properties", properties)), timeout)

    def policy(self, of: TopicLike, name: str, *, timeout: float | None = None) -> Any:
        """One policy of a `tenant/namespace`, or of a topic with its scheme; None if it is not set.

        >>> admin.set_policy("public/default", "maxTopicsPerNamespace", 100)
        >>> admin.policy("public/default", "maxTopicsPerNamespace")
        100
        """
        return self.send(find(_policy_path(of, name), Any), timeout)

    def set_policy(self, of: TopicLike, name: str, value: Any, *, timeout: float | None = None) -> None:
        """Set one policy, by its name in the path and in Pulsar's form."""
        self.send(change("POST", _policy_path(of, name), body=value), timeout)

    def remove_policy(self, of: TopicLike, name: str, *, timeout: float | None = None) -> None:
        """Remove one policy, so that the one above it holds."""
        self.send(change("DELETE", _policy_path(of, name)), timeout)


def _policy_path(of: TopicLike, name: str) -> str:
    if isinstance(of, str) and "://" not in of:
        return namespace_path(of, name)
    return topic_path(of, name)
