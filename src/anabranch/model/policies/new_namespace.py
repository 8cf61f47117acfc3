"""The Policies of a new namespace: each is enforced, or true of this cluster anyway, or refused.

Admin clients send every field of Pulsar's Policies, most of them empty. Grants, modes, properties and
policies of schemas are checked by their own modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from anabranch.errors import InvalidConfigurationError
from anabranch.model.policies.of_topics import TOPIC_POLICIES
from anabranch.model.policies.quotas import NAMESPACE_RATES
from anabranch.model.policies.table import POLICIES

BUNDLES_MAX: Final = 2**31 - 1
FIRST_BOUNDARY: Final = "0x00000000"
LAST_BOUNDARY: Final = "0xffffffff"

CLUSTER_LISTS: Final = ("replication_clusters", "allowed_clusters")
BUNDLES: Final = "bundles"
AUTO_SCALE: Final = "scalableTopicAutoScalePolicy"

ELSEWHERE: Final = (
    "auth_policies",
    "subscription_auth_mode",
    "properties",
    "schema_compatibility_strategy",
    "schema_auto_update_compatibility_strategy",
    "schema_validation_enforced",
    "is_allow_auto_update_schema",
)
"""Fields that `check_policies` passes on without a check."""

_LINES: Final = {line.field: (name, line.check) for name, line in POLICIES.items() if line.field}
_EMPTY: Final[tuple[object, ...]] = (None, {}, [], "")
_UNSET: Final = (False, 0, -1)
"""Values by which admin clients say that a policy of Pulsar is not set."""


def check_policies(given: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the Policies of a new namespace as stored; InvalidConfigurationError if one is unsupported.

    Clusters and numbers of bundles are not stored: they say what is true of every namespace, or are refused.
    """
    found: dict[str, Any] = {}
    for field, value in given.items():
        if field == TOPIC_POLICIES:
            raise InvalidConfigurationError(f"{field} cannot be given; set the policies of each topic")
        if value in _EMPTY:
            continue
        if field in CLUSTER_LISTS:
            _check_clusters(field, value, cluster)
        elif field == BUNDLES:
            _check_bundles(value)
        elif field in ELSEWHERE:
            # Go's admin client writes null for the parts of an object that are not set.
            found[field] = without_nulls(value)
        elif field in _LINES:
            found[field] = _check_line(field, value, cluster)
        else:
            _check_unset(field, value)
    return found


def _check_line(field: str, value: object, cluster: str) -> object:
    name, check = _LINES[field]
    return _check_rates(field, value, cluster) if name in NAMESPACE_RATES else check(name, value)


def _check_unset(field: str, value: object) -> None:
    if field == AUTO_SCALE:
        raise InvalidConfigurationError(f"set {field} of the namespace with its own call")
    if value not in _UNSET:
        raise InvalidConfigurationError(f"a namespace has no policy {field!r} here; leave it out")


def without_nulls(value: Any) -> Any:
    """Return an object without the fields that are null; any other value as it is."""
    return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value


def _check_clusters(field: str, value: object, cluster: str) -> None:
    if value != [cluster]:
        raise InvalidConfigurationError(
            f"{field} can only be [{cluster!r}]: there is one cluster, so nothing is replicated to others"
        )


def _check_bundles(value: object) -> None:
    """Accept any number, because callers of Pulsar choose one; here topics are spread one by one."""
    count = value.get("numBundles") if isinstance(value, dict) else None
    if not isinstance(value, dict) or (count is not None and type(count) is not int):
        raise InvalidConfigurationError("bundles must be an object with numBundles, a whole number")
    if count is not None and not 0 <= count <= BUNDLES_MAX:
        raise InvalidConfigurationError(f"numBundles must be from 1 to {BUNDLES_MAX}, not {count}")
    if value.get("boundaries") not in (None, [], [FIRST_BOUNDARY, LAST_BOUNDARY]):
        raise InvalidConfigurationError(
            "boundaries cannot be chosen: topics are spread over brokers one by one; leave them out"
        )


def _check_rates(field: str, by_cluster: object, cluster: str) -> dict[str, Any]:
    if not isinstance(by_cluster, dict):
        raise InvalidConfigurationError(f"{field} must be a map from clusters to rates")
    foreign = [other for other in by_cluster if other != cluster]
    if foreign:
        raise InvalidConfigurationError(
            f"{field}: there is no cluster {foreign[0]!r}; this one is {cluster!r}"
        )
    name, check = _LINES[field]
    return {cluster: check(name, by_cluster[cluster])}
