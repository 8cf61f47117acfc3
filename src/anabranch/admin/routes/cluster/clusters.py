"""`/admin/v2/clusters`: this cluster, which its brokers describe themselves; there is no other."""

from __future__ import annotations

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import PreconditionFailedError
from anabranch.admin.http.calls import Call
from anabranch.admin.models.brokers import ClusterData
from anabranch.errors import ConflictError, NotAllowedError, NotFoundError
from anabranch.model.names import validate_entity
from anabranch.rights.rows import AUTHENTICATED, SUPERUSER


async def list_clusters(call: Call) -> list[str]:
    """The names of all clusters."""
    return [call.broker.config.cluster]


async def get_cluster(call: Call) -> ClusterData:
    """The addresses of a cluster."""
    _known(call)
    me = call.broker.record
    return ClusterData(
        broker_service_url=me.url or None,
        broker_service_url_tls=me.url_tls or None,
        service_url=me.http_url or None,
        service_url_tls=me.http_url_tls or None,
    )


async def create_cluster(call: Call) -> None:
    """Refuse another cluster: there is no replication between clusters."""
    name = validate_entity("cluster", call.part("cluster"))
    if name == call.broker.config.cluster:
        raise ConflictError(f"cluster {name} exists already")
    raise PreconditionFailedError(
        f"cluster {name} cannot be added: messages are not replicated between clusters"
    )


async def update_cluster(call: Call) -> None:
    """Refuse another address: brokers announce their own."""
    _known(call)
    given = await call.body(ClusterData) or ClusterData()
    if given not in (ClusterData(), await get_cluster(call)):
        raise NotAllowedError(
            "brokers announce their own addresses; set advertised addresses in their settings"
        )


async def delete_cluster(call: Call) -> None:
    """Refuse to delete the cluster that serves the call."""
    _known(call)
    raise PreconditionFailedError("this cluster serves the call; stop its brokers to end it")


def _known(call: Call) -> None:
    if call.part("cluster") != call.broker.config.cluster:
        raise NotFoundError(f"there is no cluster {call.part('cluster')!r}")


CLUSTERS = "/admin/v2/clusters"
CLUSTER = CLUSTERS + "/{cluster}"

ENDPOINTS = [
    AdminEndpoint("GET", CLUSTERS, AUTHENTICATED, list_clusters, client="clusters"),
    AdminEndpoint("GET", CLUSTER, SUPERUSER, get_cluster, client="cluster"),
    AdminEndpoint("PUT", CLUSTER, SUPERUSER, create_cluster, body=ClusterData),
    AdminEndpoint("POST", CLUSTER, SUPERUSER, update_cluster, body=ClusterData),
    AdminEndpoint("DELETE", CLUSTER, SUPERUSER, delete_cluster),
]
