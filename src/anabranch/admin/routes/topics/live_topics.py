"""`/admin/v2/non-persistent`: live topics, with the calls of classic topics that need no stored message.

Calls about positions, backlogs and stored messages do not exist here: a live topic has none of them.
"""

from __future__ import annotations

from anabranch.admin.endpoints import Endpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.topics import PartitionedMetadata
from anabranch.admin.routes.namespaces import permissions
from anabranch.admin.routes.topics import topic_reports, topics, upkeep
from anabranch.admin.routes.topics.topic_reports import WANTED
from anabranch.admin.routes.topics.topics import FORCE, REPLICATED, Start
from anabranch.rights.lines import LIVE_ADMIN, LIVE_LOOK, LIVE_READ, LIVE_SUBSCRIPTION, NAMES


async def list_in_bundle(call: Call) -> list[str]:
    """The live topics of a namespace, by its one bundle."""
    upkeep.check_bundle(call)
    return await topics.list_topics(call)


NAMESPACE = "/admin/v2/non-persistent/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"
PERMISSIONS = TOPIC + "/permissions"

ENDPOINTS = [
    Endpoint("GET", NAMESPACE, NAMES, topics.list_topics),
    Endpoint("GET", NAMESPACE + "/partitioned", NAMES, topics.list_partitioned),
    Endpoint("GET", NAMESPACE + "/{bundle}", NAMES, list_in_bundle),
    Endpoint("PUT", TOPIC, LIVE_ADMIN, topics.create, body=dict[str, str]),
    Endpoint("DELETE", TOPIC, LIVE_ADMIN, topics.delete, query=FORCE),
    Endpoint(
        "PUT", TOPIC + "/partitions", LIVE_ADMIN, topics.create_partitioned, body=int | PartitionedMetadata
    ),
    Endpoint("POST", TOPIC + "/partitions", LIVE_ADMIN, topics.grow_partitions, body=int),
    Endpoint(
        "GET", TOPIC + "/partitions", LIVE_LOOK, topics.get_partitions, query={"checkAllowAutoCreation": bool}
    ),
    Endpoint("DELETE", TOPIC + "/partitions", LIVE_ADMIN, topics.delete_partitioned, query=FORCE),
    Endpoint("GET", TOPIC + "/stats", LIVE_LOOK, topic_reports.topic_stats, query=WANTED),
    Endpoint(
        "GET",
        TOPIC + "/partitioned-stats",
        LIVE_LOOK,
        topic_reports.partitioned_stats,
        query={**WANTED, "perPartition": bool},
    ),
    Endpoint("GET", TOPIC + "/internalStats", LIVE_LOOK, topic_reports.internal_stats),
    Endpoint(
        "GET", TOPIC + "/partitioned-internalStats", LIVE_LOOK, topic_reports.partitioned_internal_stats
    ),
    Endpoint("PUT", TOPIC + "/unload", LIVE_ADMIN, upkeep.unload),
    Endpoint("GET", TOPIC + "/subscriptions", LIVE_READ, topics.list_subscriptions),
    Endpoint(
        "PUT", SUBSCRIPTION, LIVE_SUBSCRIPTION, topics.create_subscription, body=Start, query=REPLICATED
    ),
    Endpoint("DELETE", SUBSCRIPTION, LIVE_SUBSCRIPTION, topics.delete_subscription, query=FORCE),
    Endpoint("GET", PERMISSIONS, LIVE_ADMIN, permissions.show_classic),
    Endpoint("POST", PERMISSIONS + "/{role}", LIVE_ADMIN, permissions.grant_on_classic, body=list[str]),
    Endpoint("DELETE", PERMISSIONS + "/{role}", LIVE_ADMIN, permissions.revoke_on_classic),
]
