# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about brokers and clusters."""

from __future__ import annotations

from anabranch.admin.client import calls
from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import TopicLike, lacking, topic_name, value
from anabranch.admin.models.brokers import BrokerInfo, ClusterData, InternalConfiguration, LookupAnswer


class BrokerMethods(HttpClient):
    """Methods about brokers and clusters."""

    def brokers(self, *, timeout: float | None = None) -> list[BrokerInfo]:
        """Return the living brokers, each with the stores it owns.

        >>> [broker.id for broker in admin.brokers()]
        [0]
        """
        request = calls.BROKERS.reading(value(list[BrokerInfo | str]))()
        found = self.send(request, timeout)
        # Pulsar takes the last word of the path for the name of a cluster, and answers with addresses.
        if any(isinstance(one, str) for one in found):
            raise lacking(f"GET {request.path}")
        return [one for one in found if isinstance(one, BrokerInfo)]

    def version(self, *, timeout: float | None = None) -> str:
        """Return the version of the broker."""
        return self.send(calls.VERSION(), timeout)

    def internal_configuration(self, *, timeout: float | None = None) -> InternalConfiguration:
        """Return the addresses of the stores that the brokers share.

        >>> (admin.internal_configuration()).bookkeeper_metadata_service_uri is None
        True
        """
        return self.send(calls.INTERNAL_CONFIGURATION(), timeout)

    def clusters(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of the clusters that the broker knows.

        >>> admin.clusters()
        ['standalone']
        """
        return self.send(calls.CLUSTERS(), timeout)

    def cluster(self, name: str, *, timeout: float | None = None) -> ClusterData:
        """Return the addresses of a cluster."""
        return self.send(calls.CLUSTER(None, name), timeout)

    def lookup(self, topic: TopicLike, *, timeout: float | None = None) -> LookupAnswer:
        """Return the addresses of the broker that serves a topic."""
        name = topic_name(topic, "topic")
        request = calls.LOOKUP(None, name.domain, name.tenant, name.namespace, name.local)
        return self.send(request, timeout)
