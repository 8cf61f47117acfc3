"""Methods about brokers and clusters."""

from __future__ import annotations

from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, get, lacking, path_of, topic_name
from anabranch.admin.models.brokers import BrokerInfo, ClusterData, InternalConfiguration, LookupAnswer


class AsyncBrokerMethods(AsyncHttpClient):
    """Methods about brokers and clusters."""

    async def brokers(self, *, timeout: float | None = None) -> list[BrokerInfo]:
        """The living brokers, each with the stores it owns.

        >>> [broker.id for broker in await admin.brokers()]
        [0]
        """
        path = "/admin/v2/brokers/workers"
        found = await self.send(get(path, list[BrokerInfo | str]), timeout)
        # Pulsar takes the last word of the path for the name of a cluster, and answers with addresses.
        if any(isinstance(one, str) for one in found):
            raise lacking(f"GET {path}")
        return [one for one in found if isinstance(one, BrokerInfo)]

    async def version(self, *, timeout: float | None = None) -> str:
        """The version of the broker."""
        return await self.send(get("/admin/v2/brokers/version", str), timeout)

    async def internal_configuration(self, *, timeout: float | None = None) -> InternalConfiguration:
        """The addresses of the stores that the brokers share.

        >>> (await admin.internal_configuration()).bookkeeper_metadata_service_uri is None
        True
        """
        return await self.send(
            get("/admin/v2/brokers/internal-configuration", InternalConfiguration), timeout
        )

    async def clusters(self, *, timeout: float | None = None) -> list[str]:
        """The names of the clusters that the broker knows.

        >>> await admin.clusters()
        ['standalone']
        """
        return await self.send(get("/admin/v2/clusters", list[str]), timeout)

    async def cluster(self, name: str, *, timeout: float | None = None) -> ClusterData:
        """The addresses of a cluster."""
        return await self.send(get(path_of("clusters", name), ClusterData), timeout)

    async def lookup(self, topic: TopicLike, *, timeout: float | None = None) -> LookupAnswer:
        """The addresses of the broker that serves a topic."""
        name = topic_name(topic, "topic")
        path = path_of("", name.domain, name.tenant, name.namespace, name.local)
        return await self.send(get(path.replace("/admin/v2/", "/lookup/v2/topic", 1), LookupAnswer), timeout)
