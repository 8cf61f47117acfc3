"""Clients and admin calls that speak for a role, at brokers that check rights."""

from __future__ import annotations

from typing import Any, Final

from anabranch.metadata.records import NamespaceRecord, TenantRecord
from anabranch.rights.callers import Caller
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient

RIGHTS: Final[dict[str, Any]] = {
    "authentication": True,
    "authorization": True,
    "superuser_roles": "root",
    "proxy_roles": "proxy",
}
"""Settings of brokers that check rights."""


def caller_of(role: str) -> Caller:
    """The caller for a role; `proxy/client` is a client behind a proxy."""
    proxy, slash, client = role.partition("/")
    return Caller(role=proxy, original=client, method="test") if slash else Caller(role=role, method="test")


async def connect_as(brokers: Brokers, role: str, number: int = 0) -> WireClient:
    """A connection whose role is proven."""
    before = set(brokers[number].connections)
    client = await brokers.connect(number)
    (connection,) = set(brokers[number].connections) - before
    connection.caller = caller_of(role)
    return client


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
