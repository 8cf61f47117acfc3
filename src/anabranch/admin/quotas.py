"""Quotas over HTTP: the policies of a namespace in Pulsar's form, and the quotas of a tenant."""

from __future__ import annotations

from typing import Any

import msgspec

from anabranch.admin.answers import MalformedBodyError
from anabranch.admin.calls import Call, route
from anabranch.admin.models.tenants import TenantLimits, TenantUsage
from anabranch.metadata.records import NamespaceRecord, TenantRecord
from anabranch.model.quotas import (
    NAMESPACE_COUNTS,
    NAMESPACE_RATES,
    check_count,
    check_policies,
    check_rate,
    check_tenant,
)

TENANT_QUOTAS = "/admin/v2/tenants/{tenant}/quotas"
TENANT_USAGE = "/admin/v2/tenants/{tenant}/usage"


async def _policies(call: Call) -> dict[str, Any]:
    return (await call.topics.namespaces.load_namespace(call.namespace())).policies


async def store_policy(call: Call, field: str, value: object) -> None:
    """Store a policy of the namespace, or remove it if the value is None."""

    def change(record: NamespaceRecord) -> NamespaceRecord:
        policies = {name: kept for name, kept in record.policies.items() if name != field}
        if value is not None:
            policies[field] = value
        return msgspec.structs.replace(record, policies=policies)

    await call.topics.namespaces.update_namespace(call.namespace(), change)


class _CountPolicy:
    """A policy that is a number."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._field = NAMESPACE_COUNTS[name]

    async def get(self, call: Call) -> Any:
        found = (await _policies(call)).get(self._field)
        # As in Pulsar, of all numbers only this one is shown as 0 while it is not set.
        return 0 if found is None and self._name == "maxTopicsPerNamespace" else found

    async def set(self, call: Call) -> None:
        await store_policy(call, self._field, check_count(self._name, await call.body(object)))

    async def remove(self, call: Call) -> None:
        await store_policy(call, self._field, None)


class _RatePolicy:
    """A policy that has a rate for each cluster; the path shows the rate of this one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._field = NAMESPACE_RATES[name]

    async def get(self, call: Call) -> Any:
        return ((await _policies(call)).get(self._field) or {}).get(call.broker.config.cluster)

    async def set(self, call: Call) -> None:
        rate = check_rate(self._name, await call.body(object))
        await store_policy(call, self._field, {call.broker.config.cluster: rate})

    async def remove(self, call: Call) -> None:
        await store_policy(call, self._field, None)


async def check_new_namespace(call: Call, policies: dict[str, Any]) -> None:
    """Check the quotas among its policies, and that its tenant may have one more namespace."""
    check_policies(policies)
    tenant, quotas = call.part("tenant"), call.broker.quotas.book
    limits = {
        "maxNamespacesPerTenant": call.broker.config.max_namespaces_per_tenant,
        "maxNamespaces": quotas.of_tenant(tenant).namespaces,
    }
    known = len(await call.topics.namespaces.of_tenant(tenant)) if any(limits.values()) else 0
    for policy, most in limits.items():
        if most and known >= most:
            quotas.refuse(policy, tenant, f"tenant {tenant} has {known} namespaces: {policy}={most}")


async def get_tenant_quotas(call: Call) -> TenantLimits:
    record = await call.topics.namespaces.load_tenant(call.part("tenant"))
    return msgspec.convert(record.quotas, TenantLimits)


async def get_tenant_usage(call: Call) -> TenantUsage:
    """How much of its quotas the tenant uses now."""
    await call.topics.namespaces.load_tenant(call.part("tenant"))
    return msgspec.convert(await call.broker.quotas.use_of(call.part("tenant")), TenantUsage)


async def set_tenant_quotas(call: Call) -> None:
    given = await call.body(dict[str, Any])
    if given is None:
        raise MalformedBodyError("the body is an object of quotas; DELETE removes all quotas")
    await _store_tenant_quotas(call, check_tenant(given))


async def remove_tenant_quotas(call: Call) -> None:
    await _store_tenant_quotas(call, {})


async def _store_tenant_quotas(call: Call, quotas: dict[str, Any]) -> None:
    def change(record: TenantRecord) -> TenantRecord:
        return msgspec.structs.replace(record, quotas=quotas)

    await call.topics.namespaces.update_tenant(call.part("tenant"), change)


QUOTA_POLICIES: dict[str, _CountPolicy | _RatePolicy] = {
    **{name: _CountPolicy(name) for name in NAMESPACE_COUNTS},
    **{name: _RatePolicy(name) for name in NAMESPACE_RATES},
}
"""The policies of a namespace that limit it, by their names in the path."""

ROUTES = [
    route("GET", TENANT_QUOTAS, get_tenant_quotas),
    route("GET", TENANT_USAGE, get_tenant_usage),
    route("POST", TENANT_QUOTAS, set_tenant_quotas, body=TenantLimits),
    route("DELETE", TENANT_QUOTAS, remove_tenant_quotas),
]
