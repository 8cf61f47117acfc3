"""Methods about quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.admin.client import calls
from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import topic_or_namespace, value
from anabranch.admin.models.tenants import TenantUsage
from anabranch.arguments import check_text, mapped
from anabranch.model.policies.quotas import NAMESPACE_COUNTS, NAMESPACE_RATES


class AsyncQuotaMethods(AsyncHttpClient):
    """Methods about the quotas of tenants, namespaces and topics."""

    async def quotas(self, of: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the quotas of a tenant, of a `tenant/namespace`, or of a topic by its whole name.

        >>> await admin.set_quotas("public", {"maxTopics": 1000})
        >>> await admin.quotas("public")
        {'maxTopics': 1000}
        """
        check_text("of", of)
        if "/" not in of:
            return await self.send(calls.TENANT_QUOTAS.reading(value(dict[str, Any]))(None, of), timeout)
        names = NAMESPACE_RATES if "://" in of else (*NAMESPACE_COUNTS, *NAMESPACE_RATES)
        on = topic_or_namespace(of)
        found = {name: await self.send(calls.POLICY(on, name), timeout) for name in names}
        return {name: quota for name, quota in found.items() if quota}

    async def set_quotas(self, of: str, quotas: Mapping[str, Any], *, timeout: float | None = None) -> None:
        """Change these quotas of a tenant, namespace or topic; the others stay. None removes one."""
        check_text("of", of)
        wanted = mapped("quotas", quotas)
        if "/" not in of:
            kept = {**await self.quotas(of, timeout=timeout), **wanted}
            body = {name: quota for name, quota in kept.items() if quota is not None}
            await self.send(calls.SET_TENANT_QUOTAS(None, of, body=body), timeout)
            return
        on = topic_or_namespace(of)
        for name, quota in wanted.items():
            call = calls.REMOVE_POLICY if quota is None else calls.SET_POLICY
            await self.send(call(on, name, body=quota), timeout)

    async def usage(self, tenant: str, *, timeout: float | None = None) -> TenantUsage:
        """Return how much of its quotas a tenant uses now.

        >>> (await admin.usage("public")).connections
        0
        """
        return await self.send(calls.USAGE(None, tenant), timeout)
