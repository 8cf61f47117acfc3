# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import change, find, get, namespace_path, path_of, topic_path
from anabranch.admin.models.tenants import TenantUsage
from anabranch.arguments import check_text, mapped
from anabranch.model.policies.quotas import NAMESPACE_COUNTS, NAMESPACE_RATES


class QuotaMethods(HttpClient):
    """Methods about the quotas of tenants, namespaces and topics."""

    def quotas(self, of: str, *, timeout: float | None = None) -> dict[str, Any]:
        """The quotas of a tenant, of a `tenant/namespace`, or of a topic by its whole name.

        >>> admin.set_quotas("public", {"maxTopics": 1000})
        >>> admin.quotas("public")
        {'maxTopics': 1000}
        """
        check_text("of", of)
        if "/" not in of:
            return self.send(get(path_of("tenants", of, "quotas"), dict[str, Any]), timeout)
        names = NAMESPACE_RATES if "://" in of else (*NAMESPACE_COUNTS, *NAMESPACE_RATES)
        found = {name: self.send(_quota(of, name), timeout) for name in names}
        return {name: value for name, value in found.items() if value}

    def set_quotas(self, of: str, quotas: Mapping[str, Any], *, timeout: float | None = None) -> None:
        """Change these quotas of a tenant, namespace or topic; the others stay. None removes one."""
        check_text("of", of)
        wanted = mapped("quotas", quotas)
        if "/" not in of:
            kept = {**self.quotas(of, timeout=timeout), **wanted}
            body = {name: value for name, value in kept.items() if value is not None}
            self.send(change("POST", path_of("tenants", of, "quotas"), body=body), timeout)
            return
        for name, value in wanted.items():
            method = "DELETE" if value is None else "POST"
            self.send(change(method, _limited(of, name), body=value), timeout)

    def usage(self, tenant: str, *, timeout: float | None = None) -> TenantUsage:
        """How much of its quotas a tenant uses now.

        >>> (admin.usage("public")).connections
        0
        """
        return self.send(get(path_of("tenants", tenant, "usage"), TenantUsage), timeout)


def _quota(of: str, name: str) -> Any:
    return find(_limited(of, name), Any)


def _limited(of: str, name: str) -> str:
    return topic_path(of, name) if "://" in of else namespace_path(of, name)
