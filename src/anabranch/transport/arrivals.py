"""Limits on the connections of a broker, in all and from one address."""

from __future__ import annotations

from collections import Counter

from anabranch.config.broker import BrokerConfig
from anabranch.errors import TooManyRequestsError
from anabranch.transport.addresses import host_of


class Arrivals:
    """Counts connections by the address of their clients."""

    def __init__(self, config: BrokerConfig) -> None:
        self._most = config.connections_max
        self._most_from = config.connections_per_address_max
        self._hosts: Counter[str] = Counter()

    def enter(self, address: str, connections: int) -> TooManyRequestsError | None:
        """Return why a connection from `host:port` must be refused given how many are open, or count it."""
        host = host_of(address)
        known = self._hosts[host]
        self._hosts[host] += 1
        if connections >= self._most:
            return TooManyRequestsError(
                f"{connections} connections are open; close some, or raise connections_max"
            )
        if self._most_from and known >= self._most_from:
            return TooManyRequestsError(
                f"{known} connections from this address are open: brokerMaxConnectionsPerIp={self._most_from}"
            )
        return None

    def leave(self, address: str) -> None:
        host = host_of(address)
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]
