"""Clients and admin calls that speak for a role, at brokers that check rights."""

from __future__ import annotations

from typing import Any, Final

from anabranch.metadata.records import NamespaceRecord, TenantRecord
from tests.harness.cluster import Brokers
from tests.harness.security import SECURE, token_for
from tests.harness.wire import WireClient

RIGHTS: Final[dict[str, Any]] = {
    **SECURE,
    "authorization": True,
    "superuser_roles": "root",
    "proxy_roles": "proxy",
}
"""Settings of brokers that check rights."""


async def connect_as(brokers: Brokers, role: str, number: int = 0) -> WireClient:
    """A connection that proved its role; `proxy/client` is a client behind a proxy."""
    proxy, _, client = role.partition("/")
    return await brokers.connect(number, token=token_for(proxy), original=client)


def headers_of(role: str) -> dict[str, str | None]:
    """The headers of a request that proves a role, or a client behind a proxy; empty for no role."""
    proxy, _, client = role.partition("/")
    bearer = f"Bearer {token_for(proxy)}" if proxy else None
    return {"authorization": bearer, "x-original-principal": client or None}


async def grant(brokers: Brokers, namespace: str, policies: dict[str, Any] | None = None) -> None:
    """Store a namespace with these policies, and its tenant, whose admin is `<tenant>-admin`."""
    namespaces = brokers[0].records.namespaces
    tenant = namespace.partition("/")[0]
    if tenant not in await namespaces.tenants():
        await namespaces.create_tenant(tenant, TenantRecord(admin_roles=(f"{tenant}-admin",)))
    record = NamespaceRecord(policies=policies or {})
    if namespace in await namespaces.of_tenant(tenant):
        await namespaces.update_namespace(namespace, lambda _: record)
    else:
        await namespaces.create_namespace(namespace, record)
