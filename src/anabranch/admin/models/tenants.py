"""Bodies about tenants and their quotas."""

from __future__ import annotations

import msgspec

from anabranch.admin.models.body import Body


class TenantInfo(Body, frozen=True, kw_only=True):
    """The roles that administer a tenant, and the clusters that it may use."""

    admin_roles: list[str] | None = []
    allowed_clusters: list[str] | None = None


class PublishRate(Body, frozen=True, kw_only=True):
    """The most messages and bytes that are accepted in a second; -1 means no limit."""

    publish_throttling_rate_in_msg: int = -1
    publish_throttling_rate_in_byte: int = -1


class DispatchRate(Body, frozen=True, kw_only=True):
    """The most messages and bytes that are delivered in a period; -1 means no limit."""

    dispatch_throttling_rate_in_msg: int = -1
    dispatch_throttling_rate_in_byte: int = -1
    relative_to_publish_rate: bool = False
    rate_period_in_second: int = 1


class TenantLimits(Body, frozen=True, kw_only=True, omit_defaults=True):
    """The quotas of a tenant over all its namespaces; an absent quota means no limit."""

    max_connections: int | None = None
    max_namespaces: int | None = None
    max_topics: int | None = None
    max_subscriptions: int | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRate | None = None


class TenantUsage(Body, frozen=True, kw_only=True):
    """How much of its quotas a tenant uses now."""

    connections: int = 0
    namespaces: int = 0
    topics: int = 0
    subscriptions: int = 0
    producers: int = 0
    consumers: int = 0


class TopicPermissions(Body, frozen=True, kw_only=True):
    """The actions of one role on one topic: an element of a call that changes several topics at once."""

    topic: str
    role: str
    actions: list[str] = msgspec.field(default_factory=list)
