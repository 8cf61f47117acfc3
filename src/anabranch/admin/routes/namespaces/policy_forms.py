"""The endpoints of the calls about each policy, for the description of the API.

One route serves all policies of a place. The description lists each policy by itself, with its types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.models.namespaces import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuotaBody,
    RetentionPolicies,
)
from anabranch.admin.models.tenants import DispatchRate, PublishRate
from anabranch.model.policies.backlog import QUOTA_TYPES
from anabranch.model.policies.table import POLICIES
from anabranch.rights.grants import SUBSCRIPTION_MODES

POLICY_PART: Final = "{policy}"
QUOTAS: Final = "backlogQuotaMap"
SUBSCRIPTION_TYPES = list[Literal["Exclusive", "Failover", "Shared", "Key_Shared"]]

TYPES: Final[Mapping[str, Any]] = {
    "retention": RetentionPolicies,
    "autoTopicCreation": AutoTopicCreation,
    "autoSubscriptionCreation": AutoSubscriptionCreation,
    "subscriptionTypesEnabled": SUBSCRIPTION_TYPES,
    "deduplication": bool,
    "encryptionRequired": bool,
    "publishRate": PublishRate,
    "dispatchRate": DispatchRate,
    "subscriptionDispatchRate": DispatchRate,
    QUOTAS: BacklogQuotaBody,
}
"""The type of each policy that is not a number, by its name at namespaces."""

MODES = Literal["None", "Prefix"]
assert set(SUBSCRIPTION_MODES) == {"None", "Prefix"}


def type_of(policy: str) -> Any:
    """Return the type of a policy by its name at namespaces; numbers have no line of their own."""
    return TYPES.get(policy, int)


def described(endpoints: Iterable[AdminEndpoint]) -> Iterator[AdminEndpoint]:
    """Yield the endpoints, with one for each policy instead of one for all policies."""
    for endpoint in endpoints:
        if endpoint.path.endswith(POLICY_PART):
            yield from _of_each_policy(endpoint)
        else:
            yield endpoint


def _of_each_policy(endpoint: AdminEndpoint) -> Iterator[AdminEndpoint]:
    at_namespaces = "{topic}" not in endpoint.path
    for policy, line in POLICIES.items():
        shown = policy if at_namespaces else line.topic_name
        if not shown or (at_namespaces and not line.field):
            continue
        if line.scalable and "/scalable/" in endpoint.path:
            continue
        if policy == QUOTAS:
            yield from _of_quotas(endpoint)
        else:
            yield _typed(endpoint, shown, type_of(policy))
    if at_namespaces:
        yield _typed(endpoint, "subscriptionAuthMode", MODES)


def _of_quotas(endpoint: AdminEndpoint) -> Iterator[AdminEndpoint]:
    """Yield the quotas of all types are shown at one path, and each is set and removed at another."""
    if endpoint.method == "GET":
        yield _typed(endpoint, QUOTAS, dict[Literal[QUOTA_TYPES], BacklogQuotaBody])  # type: ignore[valid-type]
    else:
        yield _typed(endpoint, "backlogQuota", BacklogQuotaBody)


def _typed(endpoint: AdminEndpoint, name: str, kind: Any) -> AdminEndpoint:
    made = replace(endpoint, path=endpoint.path.replace(POLICY_PART, name))
    if endpoint.method == "GET":
        return replace(made, returns=kind | None)
    return replace(made, body=kind) if endpoint.body is not None else made
