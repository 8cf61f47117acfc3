"""The record of a live broker."""

from __future__ import annotations

from anabranch.metadata.records import Record


class BrokerRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A live broker, stored until its lease runs out; `generation` numbers the starts of all brokers."""

    id: int
    url: str
    """The address of this broker alone. Each address is empty without such a port."""
    http_url: str
    generation: int
    url_tls: str = ""
    http_url_tls: str = ""

    @property
    def web_url(self) -> str:
        """An address of the admin API, the plain one first."""
        return self.http_url or self.http_url_tls

    def peer_url(self, *, tls: bool) -> str:
        """The address for calls of other brokers; over TLS if they want it, or without a plain port."""
        return self.url_tls if self.url_tls and (tls or not self.url) else self.url
