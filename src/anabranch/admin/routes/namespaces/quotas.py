"""The quotas of a tenant over HTTP; those of namespaces and topics are among their policies."""

from __future__ import annotations

from typing import Any

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import MalformedBodyError
from anabranch.admin.http.calls import Call
from anabranch.admin.models.tenants import TenantLimits, TenantUsage
from anabranch.metadata.records import TenantRecord
from anabranch.model.policies.quotas import check_tenant
from anabranch.rights.rows import SUPERUSER, TENANT

TENANT_QUOTAS = "/admin/v2/tenants/{tenant}/quotas"
TENANT_USAGE = "/admin/v2/tenants/{tenant}/usage"


async def check_new_namespace(call: Call) -> None:
    """Check that the tenant may have one more namespace."""
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
        raise MalformedBodyError("the body must be an object of quotas; DELETE removes all quotas")
    await _store_tenant_quotas(call, check_tenant(given))


async def remove_tenant_quotas(call: Call) -> None:
    await _store_tenant_quotas(call, {})


async def _store_tenant_quotas(call: Call, quotas: dict[str, Any]) -> None:
    def change(record: TenantRecord) -> TenantRecord:
        return msgspec.structs.replace(record, quotas=quotas)

    await call.topics.namespaces.update_tenant(call.part("tenant"), change)


ENDPOINTS = [
    AdminEndpoint("GET", TENANT_QUOTAS, TENANT, get_tenant_quotas, client="tenant_quotas"),
    AdminEndpoint("GET", TENANT_USAGE, TENANT, get_tenant_usage, client="usage"),
    AdminEndpoint(
        "POST", TENANT_QUOTAS, SUPERUSER, set_tenant_quotas, body=TenantLimits, client="set_tenant_quotas"
    ),
    AdminEndpoint("DELETE", TENANT_QUOTAS, SUPERUSER, remove_tenant_quotas),
]
