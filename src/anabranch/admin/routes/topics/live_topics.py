"""`/admin/v2/non-persistent`: live topics, with the calls of classic topics that need no stored message.

Calls about positions, backlogs and stored messages do not exist here: a live topic has none of them.
"""

from __future__ import annotations

from anabranch.admin.http.calls import Call, route
from anabranch.admin.models.topics import PartitionedMetadata
from anabranch.admin.routes.namespaces import permissions
from anabranch.admin.routes.topics import topic_reports, topics, upkeep
from anabranch.admin.routes.topics.topic_reports import WANTED
from anabranch.admin.routes.topics.topics import FORCE, REPLICATED, Start


async def list_in_bundle(call: Call) -> list[str]:
    """The live topics of a namespace, by its one bundle."""
    upkeep.check_bundle(call)
    return await topics.list_topics(call)


NAMESPACE = "/admin/v2/non-persistent/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"
PERMISSIONS = TOPIC + "/permissions"

ROUTES = [
    route("GET", NAMESPACE, topics.list_topics),
    route("GET", NAMESPACE + "/partitioned", topics.list_partitioned),
    route("GET", NAMESPACE + "/{bundle}", list_in_bundle),
    route("PUT", TOPIC, topics.create, body=dict[str, str]),
    route("DELETE", TOPIC, topics.delete, query=FORCE),
    route("PUT", TOPIC + "/partitions", topics.create_partitioned, body=int | PartitionedMetadata),
    route("POST", TOPIC + "/partitions", topics.grow_partitions, body=int),
    route("GET", TOPIC + "/partitions", topics.get_partitions, query={"checkAllowAutoCreation": bool}),
    route("DELETE", TOPIC + "/partitions", topics.delete_partitioned, query=FORCE),
    route("GET", TOPIC + "/stats", topic_reports.topic_stats, query=WANTED),
    route(
        "GET",
        TOPIC + "/partitioned-stats",
        topic_reports.partitioned_stats,
        query={**WANTED, "perPartition": bool},
    ),
    route("GET", TOPIC + "/internalStats", topic_reports.internal_stats),
    route("GET", TOPIC + "/partitioned-internalStats", topic_reports.partitioned_internal_stats),
    route("PUT", TOPIC + "/unload", upkeep.unload),
    route("GET", TOPIC + "/subscriptions", topics.list_subscriptions),
    route("PUT", SUBSCRIPTION, topics.create_subscription, body=Start, query=REPLICATED),
    route("DELETE", SUBSCRIPTION, topics.delete_subscription, query=FORCE),
    route("GET", PERMISSIONS, permissions.show_classic),
    route("POST", PERMISSIONS + "/{role}", permissions.grant_on_classic, body=list[str]),
    route("DELETE", PERMISSIONS + "/{role}", permissions.revoke_on_classic),
]
