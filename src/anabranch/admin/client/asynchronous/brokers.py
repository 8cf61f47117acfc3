"""Methods about brokers and clusters."""

from __future__ import annotations

from anabranch.admin.client import calls
from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, lacking, topic_name, value
from anabranch.admin.models.brokers import BrokerInfo, ClusterData, InternalConfiguration, LookupAnswer


class AsyncBrokerMethods(AsyncHttpClient):
    """Methods about brokers and clusters."""

    async def brokers(self, *, timeout: float | None = None) -> list[BrokerInfo]:
        """Return the living brokers, each with the stores it owns.

        >>> [broker.id for broker in await admin.brokers()]
        [0]
        """
        request = calls.BROKERS.reading(value(list[BrokerInfo | str]))()
        found = await self.send(request, timeout)
        # Pulsar takes the last word of the path for the name of a cluster, and answers with addresses.
        if any(isinstance(one, str) for one in found):
            raise lacking(f"GET {request.path}")
        return [one for one in found if isinstance(one, BrokerInfo)]

    async def version(self, *, timeout: float | None = None) -> str:
        """Return the version of the broker."""
        return await self.send(calls.VERSION(), timeout)

    async def internal_configuration(self, *, timeout: float | None = None) -> InternalConfiguration:
        """Return the addresses of the stores that the brokers share.

        >>> (await admin.internal_configuration()).bookkeeper_metadata_service_uri is None
        True
        """
        return await self.send(calls.INTERNAL_CONFIGURATION(), timeout)

    async def clusters(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of the clusters that the broker knows.

        >>> await admin.clusters()
        ['standalone']
        """
        return await self.send(calls.CLUSTERS(), timeout)

    async def cluster(self, name: str, *, timeout: float | None = None) -> ClusterData:
        """Return the addresses of a cluster."""
        return await self.send(calls.CLUSTER(None, name), timeout)

    async def lookup(self, topic: TopicLike, *, timeout: float | None = None) -> LookupAnswer:
        """Return the addresses of the broker that serves a topic."""
        name = topic_name(topic, "topic")
        request = calls.LOOKUP(None, name.domain, name.tenant, name.namespace, name.local)
        return await self.send(request, timeout)
