# Made by tools/generate_admin.py of the endpoints in admin/routes: change those.

"""The requests of admin clients, one for each name that endpoints give to clients."""

from __future__ import annotations

from typing import Any, Final

from anabranch.admin.client.requests import AdminCall, message, nothing, optional, value
from anabranch.admin.models.brokers import BrokerInfo, ClusterData, InternalConfiguration, LookupAnswer
from anabranch.admin.models.lanes import LaneInfo, LaneMessage, SkippedEntries
from anabranch.admin.models.namespaces import NamespacePolicies
from anabranch.admin.models.scalable import AutoScaleOverride, Explanation, ScalableMetadata, ScalableStats
from anabranch.admin.models.schemas import AllSchemas, SchemaCompatibility, SchemaInfo, SchemaVersion
from anabranch.admin.models.tenants import TenantInfo, TenantLimits, TenantUsage
from anabranch.admin.models.topics import PartitionedMetadata, PartitionedTopicStats
from anabranch.model.reports.logs import InternalStats, MessageIdBody, TopicStats

ADD_SCHEMA: Final = AdminCall(
    "POST", value(SchemaVersion), ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",)
)
AUTO_SCALE_POLICY: Final = AdminCall(
    "GET", optional(AutoScaleOverride), ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy",)
)
BACKLOG_SIZE: Final = AdminCall(
    "PUT", value(int), ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/backlogSize",)
)
BROKERS: Final = AdminCall("GET", value(list[BrokerInfo]), ("/admin/v2/brokers/workers",))
CHECK_SCHEMA: Final = AdminCall(
    "POST", value(SchemaCompatibility), ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility",)
)
CLASSIC_PROPERTIES: Final = AdminCall(
    "GET", value(dict[str, str]), ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/properties",)
)
CLASSIC_STATS: Final = AdminCall(
    "GET",
    value(TopicStats),
    ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats",),
    (
        "getPreciseBacklog",
        "subscriptionBacklogSize",
        "getEarliestTimeInBacklog",
        "excludePublishers",
        "excludeConsumers",
    ),
)
CLASSIC_TOPICS: Final = AdminCall("GET", value(list[str]), ("/admin/v2/persistent/{tenant}/{namespace}",))
CLUSTER: Final = AdminCall("GET", value(ClusterData), ("/admin/v2/clusters/{cluster}",))
CLUSTERS: Final = AdminCall("GET", value(list[str]), ("/admin/v2/clusters",))
CREATE_CLASSIC_SUBSCRIPTION: Final = AdminCall(
    "PUT",
    nothing,
    ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}",),
    ("replicated",),
)
CREATE_CLASSIC_TOPIC: Final = AdminCall(
    "PUT", nothing, ("/admin/v2/persistent/{tenant}/{namespace}/{topic}",)
)
CREATE_NAMESPACE: Final = AdminCall("PUT", nothing, ("/admin/v2/namespaces/{tenant}/{namespace}",))
CREATE_PARTITIONED_TOPIC: Final = AdminCall(
    "PUT", nothing, ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions",)
)
CREATE_SUBSCRIPTION: Final = AdminCall(
    "PUT",
    nothing,
    ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}",),
    ("type",),
)
CREATE_TENANT: Final = AdminCall("PUT", nothing, ("/admin/v2/tenants/{tenant}",))
CREATE_TOPIC: Final = AdminCall(
    "PUT", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}",), ("numInitialSegments",)
)
DELETE_CLASSIC_TOPIC: Final = AdminCall(
    "DELETE", nothing, ("/admin/v2/persistent/{tenant}/{namespace}/{topic}",), ("force",)
)
DELETE_NAMESPACE: Final = AdminCall(
    "DELETE", nothing, ("/admin/v2/namespaces/{tenant}/{namespace}",), ("force",)
)
DELETE_PARTITIONED_TOPIC: Final = AdminCall(
    "DELETE", nothing, ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions",), ("force",)
)
DELETE_PROPERTY: Final = AdminCall(
    "DELETE", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/properties",), ("key",)
)
DELETE_SCHEMA: Final = AdminCall(
    "DELETE", value(SchemaVersion), ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",), ("force",)
)
DELETE_SUBSCRIPTION: Final = AdminCall(
    "DELETE",
    nothing,
    (
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}",
    ),
    ("force",),
)
DELETE_TENANT: Final = AdminCall("DELETE", nothing, ("/admin/v2/tenants/{tenant}",))
DELETE_TOPIC: Final = AdminCall(
    "DELETE", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}",), ("force",)
)
FIND_SCHEMA: Final = AdminCall(
    "POST", value(SchemaVersion), ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/version",)
)
GRANT: Final = AdminCall(
    "POST",
    nothing,
    (
        "/admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions/{role}",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/permissions/{role}",
    ),
)
GRANT_ON_TOPICS: Final = AdminCall("POST", nothing, ("/admin/v2/namespaces/grantPermissionsOnTopics",))
GROW_PARTITIONS: Final = AdminCall(
    "POST", nothing, ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions",)
)
INTERNAL_CONFIGURATION: Final = AdminCall(
    "GET", value(InternalConfiguration), ("/admin/v2/brokers/internal-configuration",)
)
INTERNAL_STATS: Final = AdminCall(
    "GET", value(InternalStats), ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/internalStats",)
)
LANE: Final = AdminCall(
    "GET",
    value(LaneInfo),
    (
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/lanes/{lane}",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/lanes/{lane}",
    ),
)
LANES: Final = AdminCall(
    "GET",
    value(list[LaneInfo]),
    (
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/lanes",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/lanes",
    ),
)
LAST_MESSAGE_ID: Final = AdminCall(
    "GET", value(MessageIdBody), ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/lastMessageId",)
)
LIST_TOPICS: Final = AdminCall(
    "GET", value(list[str]), ("/admin/v2/scalable/{tenant}/{namespace}",), ("property",)
)
LOOKUP: Final = AdminCall(
    "GET", value(LookupAnswer), ("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",), ("listenerName",)
)
MERGE: Final = AdminCall(
    "POST", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/merge/{segments:path}",)
)
MESSAGE: Final = AdminCall(
    "GET", message, ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/ledger/{ledger}/entry/{entry}",)
)
MESSAGE_ID_AT: Final = AdminCall(
    "GET", value(MessageIdBody), ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/messageid/{timestamp}",)
)
MIGRATE: Final = AdminCall(
    "POST", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/migrate",), ("force",)
)
NAMESPACE_POLICIES: Final = AdminCall(
    "GET", value(NamespacePolicies), ("/admin/v2/namespaces/{tenant}/{namespace}",)
)
NAMESPACE_PROPERTIES: Final = AdminCall(
    "GET", value(dict[str, str]), ("/admin/v2/namespaces/{tenant}/{namespace}/properties",)
)
NAMESPACES: Final = AdminCall("GET", value(list[str]), ("/admin/v2/namespaces/{tenant}",))
PARTITIONED_STATS: Final = AdminCall(
    "GET",
    value(PartitionedTopicStats),
    ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitioned-stats",),
    (
        "getPreciseBacklog",
        "subscriptionBacklogSize",
        "getEarliestTimeInBacklog",
        "excludePublishers",
        "excludeConsumers",
        "perPartition",
    ),
)
PARTITIONS: Final = AdminCall(
    "GET",
    value(PartitionedMetadata),
    ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions",),
    ("checkAllowAutoCreation",),
)
PEEK: Final = AdminCall(
    "GET",
    message,
    ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/position/{position}",),
)
PEEK_LANE: Final = AdminCall(
    "GET",
    value(list[LaneMessage]),
    (
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/lanes/{lane}/messages",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/lanes/{lane}/messages",
    ),
    ("count",),
)
PERMISSIONS: Final = AdminCall(
    "GET",
    value(dict[str, list[str]]),
    (
        "/admin/v2/namespaces/{tenant}/{namespace}/permissions",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/permissions",
    ),
)
POLICY: Final = AdminCall(
    "GET",
    optional(Any),
    (
        "/admin/v2/namespaces/{tenant}/{namespace}/{policy}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/{policy}",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/{policy}",
    ),
    ("applied",),
)
REBUCKET: Final = AdminCall(
    "POST",
    nothing,
    ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/rebucket/{segment}",),
    ("bucketCount", "boundaries", "byTraffic"),
)
RELEASE_LANE: Final = AdminCall(
    "POST",
    nothing,
    (
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/lanes/{lane}/release",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/lanes/{lane}/release",
    ),
)
REMOVE_AUTO_SCALE_POLICY: Final = AdminCall(
    "DELETE", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy",)
)
REMOVE_POLICY: Final = AdminCall(
    "DELETE",
    nothing,
    (
        "/admin/v2/namespaces/{tenant}/{namespace}/{policy}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/{policy}",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/{policy}",
    ),
    ("backlogQuotaType",),
)
RESERVE_SUBSCRIPTION: Final = AdminCall(
    "POST", nothing, ("/admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription/{subscription}",)
)
RESET_CURSOR: Final = AdminCall(
    "POST",
    nothing,
    (
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/resetcursor/{timestamp}",
    ),
)
REVOKE: Final = AdminCall(
    "DELETE",
    nothing,
    (
        "/admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions/{role}",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/permissions/{role}",
    ),
)
REVOKE_ON_TOPICS: Final = AdminCall("POST", nothing, ("/admin/v2/namespaces/revokePermissionsOnTopics",))
SCHEMA: Final = AdminCall(
    "GET", value(SchemaInfo), ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",)
)
SCHEMA_VERSION: Final = AdminCall(
    "GET", value(SchemaInfo), ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}",)
)
SCHEMAS: Final = AdminCall(
    "GET", value(AllSchemas), ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schemas",)
)
SEEK: Final = AdminCall(
    "POST",
    nothing,
    ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/seek",),
    ("timestamp",),
)
SEGMENT_STATS: Final = AdminCall(
    "GET", value(TopicStats), ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/segments/{segment}/stats",)
)
SET_AUTO_SCALE_POLICY: Final = AdminCall(
    "POST", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/autoScalePolicy",)
)
SET_CLASSIC_PROPERTIES: Final = AdminCall(
    "PUT", nothing, ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/properties",)
)
SET_NAMESPACE_PROPERTIES: Final = AdminCall(
    "PUT", nothing, ("/admin/v2/namespaces/{tenant}/{namespace}/properties",)
)
SET_POLICY: Final = AdminCall(
    "POST",
    nothing,
    (
        "/admin/v2/namespaces/{tenant}/{namespace}/{policy}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/{policy}",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/{policy}",
    ),
    ("backlogQuotaType", "messageTTL"),
)
SET_PROPERTIES: Final = AdminCall(
    "PUT", nothing, ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/properties",)
)
SET_TENANT: Final = AdminCall("POST", nothing, ("/admin/v2/tenants/{tenant}",))
SET_TENANT_QUOTAS: Final = AdminCall("POST", nothing, ("/admin/v2/tenants/{tenant}/quotas",))
SKIP_ALL: Final = AdminCall(
    "POST",
    nothing,
    (
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/skip-all",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip_all",
    ),
)
SKIP_LANE: Final = AdminCall(
    "POST",
    value(SkippedEntries),
    (
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/lanes/{lane}/skip",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/lanes/{lane}/skip",
    ),
    ("count",),
)
SPLIT: Final = AdminCall(
    "POST",
    nothing,
    ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/split/{segment}",),
    ("points", "parts", "byTraffic"),
)
SUBSCRIPTION_ROLES: Final = AdminCall(
    "GET",
    value(dict[str, list[str]]),
    ("/admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription",),
)
SUBSCRIPTIONS: Final = AdminCall(
    "GET", value(list[str]), ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscriptions",)
)
TENANT: Final = AdminCall("GET", value(TenantInfo), ("/admin/v2/tenants/{tenant}",))
TENANT_QUOTAS: Final = AdminCall("GET", value(TenantLimits), ("/admin/v2/tenants/{tenant}/quotas",))
TENANTS: Final = AdminCall("GET", value(list[str]), ("/admin/v2/tenants",))
TERMINATE: Final = AdminCall(
    "POST", value(MessageIdBody), ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/terminate",)
)
TOPIC_METADATA: Final = AdminCall(
    "GET", value(ScalableMetadata), ("/admin/v2/scalable/{tenant}/{namespace}/{topic}",)
)
TOPIC_STATS: Final = AdminCall(
    "GET", value(ScalableStats), ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/stats",)
)
USAGE: Final = AdminCall("GET", value(TenantUsage), ("/admin/v2/tenants/{tenant}/usage",))
VERSION: Final = AdminCall("GET", value(str), ("/admin/v2/brokers/version",))
WHY: Final = AdminCall("GET", value(Explanation), ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/why",))
