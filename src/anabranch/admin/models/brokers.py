"""Bodies about brokers and clusters."""

from __future__ import annotations

from anabranch.admin.models.body import Body


class ClusterData(Body, frozen=True, kw_only=True, omit_defaults=True):
    """The addresses of a cluster."""

    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None
    proxy_service_url: str | None = None
    proxy_protocol: str | None = None
    authentication_plugin: str | None = None
    authentication_parameters: str | None = None
    peer_cluster_names: list[str] | None = None


class BrokerInfo(Body, frozen=True, kw_only=True):
    """A living broker and the stores it owns; without an id, the stores that have no owner now."""

    id: int | None = None
    service_url: str | None = None
    web_service_url: str | None = None
    service_url_tls: str | None = None
    web_service_url_tls: str | None = None
    stores: list[int] = []


class LeaderBroker(Body, frozen=True, kw_only=True):
    """The broker that Pulsar's tools ask about all others."""

    broker_id: str = ""
    service_url: str = ""


class InternalConfiguration(Body, frozen=True, kw_only=True):
    """The stores that brokers use; None for one that they do not have."""

    metadata_store_url: str | None = None
    configuration_metadata_store_url: str | None = None
    ledgers_root_path: str | None = None
    bookkeeper_metadata_service_uri: str | None = None
    state_storage_service_url: str | None = None


class LookupAnswer(Body, frozen=True, kw_only=True):
    """The addresses of the broker that serves a topic."""

    broker_url: str | None = None
    broker_url_tls: str | None = None
    http_url: str | None = None
    http_url_tls: str | None = None
    native_url: str | None = None
    broker_id: str = ""
