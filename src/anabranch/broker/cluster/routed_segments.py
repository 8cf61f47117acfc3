"""Segments of all stores: in a store of this broker, or at the broker that owns their store.

Every verb of the port is carried to its place; none is written out here. This module must not know what the
verbs do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.local_segments import LocalSegments
from anabranch.broker.cluster.peers import Peers
from anabranch.broker.cluster.remote_calls import Port, VerbCall
from anabranch.controller.decide.places import Place
from anabranch.controller.ports.segments import Segments
from anabranch.errors import LocalProtocolError, ServiceNotReadyError

SEGMENTS: Final = Port(Segments)  # type: ignore[type-abstract]
TARGET: Final = "segments"


class PlaceRouter:
    """Carries each call of a port whose verbs take a `place` to the broker that owns the place."""

    def __init__(
        self, target: str, local: object, owns: Callable[[int], bool], directory: Directory, peers: Peers
    ) -> None:
        self._target = target
        self._local = local
        self._owns = owns
        self._directory = directory
        self._peers = peers

    async def call(self, call: VerbCall) -> Any:
        place: Place = call.arguments["place"]
        if self._owns(place.store):
            return await call.invoke(self._local)
        owner = self._directory.owner_of(place.store)
        if owner is None:
            raise ServiceNotReadyError(f"{place.name} is in store {place.store}, which has no owner now")
        return await self._peers.call(owner.url, self._target, call)

    def notify(self, call: VerbCall) -> None:
        raise LocalProtocolError(f"{call.verb.name} of {self._target} has to be answered")


def route_segments(
    local: LocalSegments, owns: Callable[[int], bool], directory: Directory, peers: Peers
) -> Segments:
    """The segments port over all stores; drain events reach the broker that leads the topic."""
    router = PlaceRouter(TARGET, local, owns, directory, peers)
    return SEGMENTS.proxy(router, on_drained=local.on_drained)
