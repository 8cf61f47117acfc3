"""How one broker finds, calls and answers the other brokers of its cluster.

This module must not know what the called objects do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from anabranch.broker.cluster.broker_lease import BrokerLease
from anabranch.broker.cluster.cluster_secret import ClusterSecret
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.cluster.peers import Peers, Target
from anabranch.broker.cluster.remote_calls import Port
from anabranch.broker.cluster.routing import BrokerRouter, PlaceRouter
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.store import MetadataStore

P = TypeVar("P")


class ClusterLinks:
    """The directory of all brokers, the calls to them, and the objects that they may call here."""

    def __init__(
        self,
        store: MetadataStore,
        secret: ClusterSecret,
        endpoint: Endpoint,
        number: int,
        owns: Callable[[int], bool],
    ) -> None:
        """`number` is the number of this broker; `owns` tells whether it owns a store now."""
        self.store = store
        self.secret = secret
        self.owns = owns
        self.directory = Directory(store)
        self.record = endpoint.record(number)
        """The addresses of this broker, without a generation."""
        self.lease = BrokerLease(self.directory, store, self.record)
        self.peers = Peers(secret, endpoint.peer_tls)
        self.targets: dict[str, Target] = {}
        """The ports that other brokers may call here, by the first word of their names."""
        self._unwatch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Read the records of all brokers, and follow them from then on; `secret` has to be loaded before."""
        await self.directory.start()
        self._unwatch = self.directory.watch(self._brokers_changed)

    async def stop(self) -> None:
        """Stop following the records. Close `peers` first, so that no call is under way."""
        self._unwatch()
        await self.directory.stop()

    def serve(self, target: str, port: Port[P], local: P, **members: Any) -> P:
        """Let other brokers call `local`; returns the port whose calls reach the owner of their place."""
        self.serve_each(target, port, local)
        router = PlaceRouter(target, local, self.owns, self.directory, self.peers)
        return port.proxy(router, **members)

    def serve_each(self, target: str, port: Port[P], local: P) -> Callable[[BrokerRecord], P]:
        """Let other brokers call `local`; returns a function that gives the port at another broker."""
        self.targets[target] = Target.of(port, local)
        return lambda broker: port.proxy(BrokerRouter(self.peers, self.peers.url_of(broker), target))

    def _brokers_changed(self) -> None:
        self.peers.keep([self.peers.url_of(broker) for broker in self.directory.brokers.values()])
