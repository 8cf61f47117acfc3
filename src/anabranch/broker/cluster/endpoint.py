"""The addresses of one broker, and how it listens and calls other brokers."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from anabranch.metadata.broker_record import BrokerRecord
from anabranch.transport.door import Door, Listener
from anabranch.transport.pump import Pump

Accept = Callable[[Door[Pump]], Awaitable[Sequence[Listener]]]
"""Accepts connections from now on, through the given door."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    """TLS for calls to other brokers."""

    context: Callable[[], ssl.SSLContext]
    preferred: bool = False
    """Whether calls use TLS although the other broker has a plain port."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a broker, and how it accepts connections. An address is empty without such a port."""

    url: str
    """The address that reaches this broker and no other."""
    http_url: str
    listen: Accept
    url_tls: str = ""
    http_url_tls: str = ""
    peer_tls: PeerTls | None = None
    """None if the brokers have no TLS port."""

    def record(self, number: int) -> BrokerRecord:
        """The record of the broker with this number, before it has a generation."""
        return BrokerRecord(
            id=number,
            url=self.url,
            http_url=self.http_url,
            generation=-1,
            url_tls=self.url_tls,
            http_url_tls=self.http_url_tls,
        )
