"""`/admin/v2/non-persistent`: live topics, with the calls of classic topics that need no stored message.

Calls about positions, backlogs and stored messages do not exist here: a live topic has none of them.
"""

from __future__ import annotations

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.topics import PartitionedMetadata
from anabranch.admin.routes.namespaces import permissions
from anabranch.admin.routes.topics import topic_reports, topics, upkeep
from anabranch.admin.routes.topics.topic_reports import WANTED
from anabranch.admin.routes.topics.topics import FORCE, REPLICATED, Start
from anabranch.rights.rows import LIVE_ADMIN, LIVE_LOOK, LIVE_READ, LIVE_SUBSCRIPTION, NAMES


async def list_in_bundle(call: Call) -> list[str]:
    """The live topics of a namespace, by its one bundle."""
    upkeep.check_bundle(call)
    return await topics.list_topics(call)


NAMESPACE = "/admin/v2/non-persistent/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"
PERMISSIONS = TOPIC + "/permissions"

ENDPOINTS = [
    AdminEndpoint("GET", NAMESPACE, NAMES, topics.list_topics),
    AdminEndpoint("GET", NAMESPACE + "/partitioned", NAMES, topics.list_partitioned),
    AdminEndpoint("GET", NAMESPACE + "/{bundle}", NAMES, list_in_bundle),
    AdminEndpoint("PUT", TOPIC, LIVE_ADMIN, topics.create, body=dict[str, str]),
    AdminEndpoint("DELETE", TOPIC, LIVE_ADMIN, topics.delete, query=FORCE),
    AdminEndpoint(
        "PUT", TOPIC + "/partitions", LIVE_ADMIN, topics.create_partitioned, body=int | PartitionedMetadata
    ),
    AdminEndpoint("POST", TOPIC + "/partitions", LIVE_ADMIN, topics.grow_partitions, body=int),
    AdminEndpoint(
        "GET", TOPIC + "/partitions", LIVE_LOOK, topics.get_partitions, query={"checkAllowAutoCreation": bool}
    ),
    AdminEndpoint("DELETE", TOPIC + "/partitions", LIVE_ADMIN, topics.delete_partitioned, query=FORCE),
    AdminEndpoint("GET", TOPIC + "/stats", LIVE_LOOK, topic_reports.topic_stats, query=WANTED),
    AdminEndpoint(
        "GET",
        TOPIC + "/partitioned-stats",
        LIVE_LOOK,
        topic_reports.partitioned_stats,
        query={**WANTED, "perPartition": bool},
    ),
    AdminEndpoint("GET", TOPIC + "/internalStats", LIVE_LOOK, topic_reports.internal_stats),
    AdminEndpoint(
        "GET", TOPIC + "/partitioned-internalStats", LIVE_LOOK, topic_reports.partitioned_internal_stats
    ),
    AdminEndpoint("PUT", TOPIC + "/unload", LIVE_ADMIN, upkeep.unload),
    AdminEndpoint("GET", TOPIC + "/subscriptions", LIVE_READ, topics.list_subscriptions),
    AdminEndpoint(
        "PUT", SUBSCRIPTION, LIVE_SUBSCRIPTION, topics.create_subscription, body=Start, query=REPLICATED
    ),
    AdminEndpoint("DELETE", SUBSCRIPTION, LIVE_SUBSCRIPTION, topics.delete_subscription, query=FORCE),
    AdminEndpoint("GET", PERMISSIONS, LIVE_ADMIN, permissions.show_classic),
    AdminEndpoint("POST", PERMISSIONS + "/{role}", LIVE_ADMIN, permissions.grant_on_classic, body=list[str]),
    AdminEndpoint("DELETE", PERMISSIONS + "/{role}", LIVE_ADMIN, permissions.revoke_on_classic),
]
