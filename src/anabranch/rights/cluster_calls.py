"""The lines of admin calls about brokers, tenants and namespaces."""

from __future__ import annotations

from typing import Final

from anabranch.rights.lines import (
    ADMIN,
    AUTHENTICATED,
    NAMES,
    OPEN,
    SUPERUSER,
    TENANT,
    TableLine,
    of_lookup,
    policy_lines,
)
from anabranch.rights.needs import Right

_BROKERS: Final = "/admin/v2/brokers"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"

CLUSTER_CALLS: Final[dict[tuple[str, str], TableLine]] = {
    # Load balancers ask for these without credentials.
    ("GET", "/status.html"): OPEN,
    ("GET", _BROKERS + "/health"): OPEN,
    ("GET", _BROKERS + "/ready"): OPEN,
    ("GET", "/openapi.json"): AUTHENTICATED,
    ("GET", "/metrics"): SUPERUSER,
    ("GET", "/metrics/"): SUPERUSER,
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"): TableLine(Right.LOOK_UP, of_lookup),
    ("GET", _BROKERS): SUPERUSER,
    ("GET", _BROKERS + "/{cluster}"): SUPERUSER,
    ("GET", _BROKERS + "/version"): AUTHENTICATED,
    ("GET", _BROKERS + "/configuration"): SUPERUSER,
    ("GET", _BROKERS + "/configuration/values"): SUPERUSER,
    ("GET", _BROKERS + "/configuration/runtime"): SUPERUSER,
    ("POST", _BROKERS + "/configuration/{name}/{value}"): SUPERUSER,
    ("DELETE", _BROKERS + "/configuration/{name}"): SUPERUSER,
    ("GET", _BROKERS + "/internal-configuration"): SUPERUSER,
    ("GET", _BROKERS + "/leaderBroker"): SUPERUSER,
    ("GET", _BROKERS + "/workers"): SUPERUSER,
    ("GET", "/admin/v2/clusters"): AUTHENTICATED,
    ("GET", "/admin/v2/clusters/{cluster}"): SUPERUSER,
    ("PUT", "/admin/v2/clusters/{cluster}"): SUPERUSER,
    ("POST", "/admin/v2/clusters/{cluster}"): SUPERUSER,
    ("DELETE", "/admin/v2/clusters/{cluster}"): SUPERUSER,
    ("GET", "/admin/v2/tenants"): SUPERUSER,
    ("GET", "/admin/v2/tenants/{tenant}"): TENANT,
    ("PUT", "/admin/v2/tenants/{tenant}"): SUPERUSER,
    ("POST", "/admin/v2/tenants/{tenant}"): SUPERUSER,
    ("DELETE", "/admin/v2/tenants/{tenant}"): SUPERUSER,
    ("GET", "/admin/v2/tenants/{tenant}/quotas"): TENANT,
    ("GET", "/admin/v2/tenants/{tenant}/usage"): TENANT,
    ("POST", "/admin/v2/tenants/{tenant}/quotas"): SUPERUSER,
    ("DELETE", "/admin/v2/tenants/{tenant}/quotas"): SUPERUSER,
    ("GET", "/admin/v2/namespaces/{tenant}"): TENANT,
    ("PUT", _NAMESPACE): ADMIN,
    ("GET", _NAMESPACE): ADMIN,
    ("DELETE", _NAMESPACE): ADMIN,
    ("GET", _NAMESPACE + "/topics"): NAMES,
    ("GET", _NAMESPACE + "/properties"): ADMIN,
    ("PUT", _NAMESPACE + "/properties"): ADMIN,
    ("DELETE", _NAMESPACE + "/properties"): ADMIN,
    ("GET", _NAMESPACE + "/property/{key}"): ADMIN,
    ("PUT", _NAMESPACE + "/property/{key}/{value}"): ADMIN,
    ("DELETE", _NAMESPACE + "/property/{key}"): ADMIN,
    # Their bodies name the topics, and their handlers ask for the rights of an admin on each.
    ("POST", "/admin/v2/namespaces/grantPermissionsOnTopics"): AUTHENTICATED,
    ("POST", "/admin/v2/namespaces/revokePermissionsOnTopics"): AUTHENTICATED,
    ("GET", _NAMESPACE + "/permissions"): ADMIN,
    ("GET", _NAMESPACE + "/permissions/subscription"): ADMIN,
    ("POST", _NAMESPACE + "/permissions/subscription/{subscription}"): ADMIN,
    ("POST", _NAMESPACE + "/permissions/{role}"): ADMIN,
    ("DELETE", _NAMESPACE + "/permissions/{role}"): ADMIN,
    ("DELETE", _NAMESPACE + "/permissions/{subscription}/{role}"): ADMIN,
    ("PUT", _NAMESPACE + "/unload"): ADMIN,
    ("PUT", _NAMESPACE + "/{bundle}/unload"): ADMIN,
    ("GET", _NAMESPACE + "/bundles"): ADMIN,
    **policy_lines(_NAMESPACE, ADMIN, "scalableTopicAutoScalePolicy"),
}
