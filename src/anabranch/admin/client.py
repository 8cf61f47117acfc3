"""A blocking client of the admin API, on the standard library alone, for the command line and for scripts.

It knows the paths and their parameters. This module must not know what a broker does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from anabranch.admin.http_client import HttpClient, Json
from anabranch.model.names import TopicName, parse_namespace
from anabranch.model.quotas import NAMESPACE_COUNTS, NAMESPACE_RATES


class AdminClient(HttpClient):
    """The admin API of one cluster.

    `authentication` proves the role of each request, as that of AsyncClient does. Each call ends within
    `timeout_s`, redirects and repetitions included, or raises OperationTimeoutError.
    """

    def brokers(self) -> list[dict[str, Json]]:
        """The living brokers, each with the stores it owns."""
        found: list[dict[str, Json]] = self.call("GET", "/admin/v2/brokers/workers")
        return found

    def tenants(self) -> list[str]:
        return [str(tenant) for tenant in self.call("GET", "/admin/v2/tenants")]

    def tenant_admins(self, tenant: str) -> list[str]:
        """The roles that administrate a tenant."""
        return [str(role) for role in self.call("GET", _path("tenants", tenant))["adminRoles"]]

    def create_tenant(self, tenant: str, admins: Iterable[str] = ()) -> None:
        clusters = self.call("GET", "/admin/v2/clusters")
        body = {"adminRoles": list(admins), "allowedClusters": clusters}
        self.call("PUT", _path("tenants", tenant), body=body)

    def set_tenant_admins(self, tenant: str, admins: Iterable[str]) -> None:
        """Make these roles, and no others, the admins of a tenant."""
        clusters = self.call("GET", _path("tenants", tenant))["allowedClusters"]
        body = {"adminRoles": list(admins), "allowedClusters": clusters}
        self.call("POST", _path("tenants", tenant), body=body)

    def delete_tenant(self, tenant: str) -> None:
        self.call("DELETE", _path("tenants", tenant))

    def namespaces(self, tenant: str) -> list[str]:
        return [str(name) for name in self.call("GET", _path("namespaces", tenant))]

    def create_namespace(self, namespace: str) -> None:
        self.call("PUT", _path("namespaces", *parse_namespace(namespace)))

    def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        path = _path("namespaces", *parse_namespace(namespace))
        self.call("DELETE", path, query={"force": str(force).lower()})

    def permissions(self, on: str | TopicName) -> dict[str, list[str]]:
        """The actions of each role on a namespace, `tenant/namespace`, or on a topic."""
        found: dict[str, list[str]] = self.call("GET", _permissions(on))
        return found

    def grant(self, on: str | TopicName, role: str, actions: Iterable[str]) -> None:
        """Grant a role these actions, and no others, on a namespace or on a topic."""
        self.call("POST", f"{_permissions(on)}/{quote(role, safe='')}", body=list(actions))

    def revoke(self, on: str | TopicName, role: str) -> None:
        """End all grants of a role on a namespace or on a topic."""
        self.call("DELETE", f"{_permissions(on)}/{quote(role, safe='')}")

    def subscription_roles(self, namespace: str) -> dict[str, list[str]]:
        """The roles for which subscriptions of a namespace are reserved."""
        found: dict[str, list[str]] = self.call("GET", f"{_permissions(namespace)}/subscription")
        return found

    def reserve_subscription(self, namespace: str, subscription: str, roles: Iterable[str]) -> None:
        """Let only these roles use a subscription; without any, all roles that may consume."""
        path = f"{_permissions(namespace)}/subscription/{quote(subscription, safe='')}"
        self.call("POST", path, body=list(roles))

    def create_topic(
        self, name: TopicName, segments: int = 1, properties: Mapping[str, str] | None = None
    ) -> None:
        self.call(
            "PUT",
            _scalable(name),
            query={"numInitialSegments": segments},
            body=dict(properties or {}) or None,
        )

    def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        self.call("DELETE", _scalable(name), query={"force": str(force).lower()})

    def migrate(self, name: TopicName, *, force: bool = False) -> None:
        """Continue the classic topic of this name as a scalable topic."""
        self.call("POST", f"{_scalable(name)}/migrate", query={"force": str(force).lower()})

    def list_topics(self, namespace: str, properties: Mapping[str, str] | None = None) -> list[str]:
        tenant, _, local = namespace.partition("/")
        filters = [("property", f"{key}={value}") for key, value in (properties or {}).items()]
        path = f"/admin/v2/scalable/{quote(tenant, safe='')}/{quote(local, safe='')}"
        return [str(topic) for topic in self.call("GET", path, query=filters)]

    def topic_metadata(self, name: TopicName) -> dict[str, Json]:
        """The stored record: epoch, segments, properties and policy."""
        return dict(self.call("GET", _scalable(name)))

    def set_properties(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Change these properties of a topic; the others stay."""
        self.call("PUT", f"{_scalable(name)}/properties", body=dict(properties))

    def delete_property(self, name: TopicName, key: str) -> None:
        self.call("DELETE", f"{_scalable(name)}/properties", query={"key": key})

    def topic_stats(self, name: TopicName) -> dict[str, Json]:
        return dict(self.call("GET", f"{_scalable(name)}/stats"))

    def why(self, name: TopicName) -> dict[str, Json]:
        """Changes under way, the state of each subscription, and the last decisions of auto-scaling."""
        return dict(self.call("GET", f"{_scalable(name)}/why"))

    def split(
        self,
        name: TopicName,
        segment: int,
        *,
        points: Sequence[int] = (),
        parts: int | None = None,
        by_traffic: bool = False,
    ) -> None:
        """Split a segment in the middle, at the given start hashes, or into parts of equal width or load."""
        query: dict[str, object] = {}
        if points:
            query["points"] = ",".join(map(str, points))
        if parts is not None:
            query["parts"] = parts
        if by_traffic:
            query["byTraffic"] = "true"
        self.call("POST", f"{_scalable(name)}/split/{segment}", query=query)

    def merge(self, name: TopicName, segments: Iterable[int]) -> None:
        self.call("POST", f"{_scalable(name)}/merge/{'/'.join(map(str, segments))}")

    def rebucket(
        self,
        name: TopicName,
        segment: int,
        *,
        bucket_count: int | None = None,
        boundaries: Sequence[int] = (),
        by_traffic: bool = False,
    ) -> None:
        """Replace a segment by one with buckets of equal width or load, or with these boundaries."""
        query: dict[str, object] = {}
        if bucket_count is not None:
            query["bucketCount"] = bucket_count
        if boundaries:
            query["boundaries"] = ",".join(map(str, boundaries))
        if by_traffic:
            query["byTraffic"] = "true"
        self.call("POST", f"{_scalable(name)}/rebucket/{segment}", query=query)

    def quotas(self, of: str) -> dict[str, Json]:
        """The quotas of a tenant, of a `tenant/namespace`, or of a topic by its whole name."""
        if "/" not in of:
            return dict(self.call("GET", _path("tenants", of, "quotas")))
        names = NAMESPACE_RATES if "://" in of else (*NAMESPACE_COUNTS, *NAMESPACE_RATES)
        found = {name: self.call("GET", f"{_limited(of)}/{name}") for name in names}
        return {name: value for name, value in found.items() if value}

    def set_quotas(self, of: str, quotas: Mapping[str, Json]) -> None:
        """Change these quotas of a tenant, namespace or topic; the others stay. None removes one."""
        if "/" not in of:
            kept = {**self.quotas(of), **quotas}
            self.call(
                "POST", _path("tenants", of, "quotas"), body={k: v for k, v in kept.items() if v is not None}
            )
            return
        for name, value in quotas.items():
            method = "DELETE" if value is None else "POST"
            self.call(method, f"{_limited(of)}/{name}", body=value)

    def usage(self, tenant: str) -> dict[str, int]:
        """How much of its quotas a tenant uses now."""
        return dict(self.call("GET", _path("tenants", tenant, "usage")))

    def create_subscription(self, name: TopicName, subscription: str, kind: str = "STREAM") -> None:
        self.call("PUT", _subscription(name, subscription), query={"type": kind})

    def delete_subscription(self, name: TopicName, subscription: str) -> None:
        self.call("DELETE", _subscription(name, subscription))

    def seek(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        self.call("POST", f"{_subscription(name, subscription)}/seek", query={"timestamp": timestamp_ms})

    def skip_all(self, name: TopicName, subscription: str) -> None:
        self.call("POST", f"{_subscription(name, subscription)}/skip-all")

    def lanes(self, name: TopicName, subscription: str) -> list[dict[str, Json]]:
        """The lanes of a subscription of a scalable or classic topic, the largest first."""
        return list(self.call("GET", _lanes(name, subscription)))

    def lane(self, name: TopicName, subscription: str, lane: str) -> dict[str, Json]:
        return dict(self.call("GET", _lanes(name, subscription, lane)))

    def peek_lane(
        self, name: TopicName, subscription: str, lane: str, count: int = 10
    ) -> list[dict[str, Json]]:
        """The first messages that wait in a lane; they stay there."""
        path = f"{_lanes(name, subscription, lane)}/messages"
        return list(self.call("GET", path, query={"count": count}))

    def release_lane(self, name: TopicName, subscription: str, lane: str) -> None:
        """Let a parked or paused lane go on."""
        self.call("POST", f"{_lanes(name, subscription, lane)}/release")

    def skip_lane(self, name: TopicName, subscription: str, lane: str, count: int | None = None) -> int:
        """Acknowledge the first `count` entries of a lane, or all of them; returns how many."""
        query = {} if count is None else {"count": count}
        answer = self.call("POST", f"{_lanes(name, subscription, lane)}/skip", query=query)
        return int(answer["skippedEntries"])


def _path(resource: str, *parts: str) -> str:
    return "/".join((f"/admin/v2/{resource}", *(quote(part, safe="") for part in parts)))


def _scalable(name: TopicName) -> str:
    return _path("scalable", name.tenant, name.namespace, name.local)


def _limited(of: str) -> str:
    if "://" not in of:
        return _path("namespaces", *parse_namespace(of))
    name = TopicName.parse(of)
    resource = "persistent" if name.domain == "persistent" else "scalable"
    return _path(resource, name.tenant, name.namespace, name.local)


def _permissions(on: str | TopicName) -> str:
    if isinstance(on, str):
        return _path("namespaces", *parse_namespace(on)) + "/permissions"
    resource = "persistent" if on.domain == "persistent" else "scalable"
    return _path(resource, on.tenant, on.namespace, on.local) + "/permissions"


def _subscription(name: TopicName, subscription: str) -> str:
    return f"{_scalable(name)}/subscriptions/{quote(subscription, safe='')}"


def _lanes(name: TopicName, subscription: str, lane: str | None = None) -> str:
    if name.domain == "persistent":
        topic = _path("persistent", name.tenant, name.namespace, name.local)
        base = f"{topic}/subscription/{quote(subscription, safe='')}"
    else:
        base = _subscription(name, subscription)
    return f"{base}/lanes" if lane is None else f"{base}/lanes/{quote(lane, safe='')}"
