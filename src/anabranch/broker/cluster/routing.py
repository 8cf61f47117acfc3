"""Carries calls to the owner of a segment and to the leader of a topic, at this or another broker.

The verbs of the ports are not written out here, and this module must not know what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.peers import Peers, RemoteSession
from anabranch.broker.cluster.remote_calls import Port, VerbCall
from anabranch.controller.ports.leader import TopicLeader
from anabranch.controller.ports.segments import Segments
from anabranch.controller.ports.verbs import VerbSession
from anabranch.errors import LocalProtocolError, NotConnectedError, ServiceNotReadyError
from anabranch.model.names import Place, TopicName

SEGMENTS: Final = Port(Segments)  # type: ignore[type-abstract]
SEGMENTS_TARGET: Final = "segments"
LEADER: Final = Port(TopicLeader)  # type: ignore[type-abstract]
LEADER_TARGET: Final = "controller"

CHANGE_S: Final = 60.0
"""How long a leader may take for a change, which waits in a queue and calls other brokers."""

P = TypeVar("P")


class Serve(Protocol):
    """Lets other brokers call an object; returns the port whose calls reach the owner of their place."""

    def __call__(self, target: str, port: Port[P], local: P, **members: Any) -> P: ...


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
        return await self._peers.call(self._peers.url_of(owner), self._target, call)

    def notify(self, call: VerbCall) -> None:
        raise LocalProtocolError(f"{call.verb.name} of {self._target} has to be answered")


class BrokerRouter:
    """Carries each call of a port to one other broker."""

    def __init__(self, peers: Peers, url: str, target: str) -> None:
        self._peers = peers
        self._url = url
        self._target = target

    async def call(self, call: VerbCall) -> Any:
        return await self._peers.call(self._url, self._target, call)

    def notify(self, call: VerbCall) -> None:
        raise LocalProtocolError(f"{call.verb.name} of {self._target} has to be answered")


class _RemoteLeader:
    """Carries calls to the leader of one topic at another broker.

    A call that ends a session must use the connection that opened it: a leader that lost the connection has
    ended the session already, and its next process gives the same tokens to other sessions.
    """

    def __init__(self, peers: Peers, url: str, name: TopicName) -> None:
        self._peers = peers
        self._url = url
        self._target = f"{LEADER_TARGET} {name}"
        # By the identity of the session, because tokens repeat when the leader restarts.
        self._sessions: dict[int, tuple[VerbSession, RemoteSession]] = {}

    async def call(self, call: VerbCall) -> Any:
        if call.session is not None:
            _, remote = self._sessions.get(id(call.session), (None, None))
            if remote is None or not remote.is_open:
                raise NotConnectedError(f"the broker at {self._url}, which opened this session, is gone")
            result = await remote.call(call, timeout_s=CHANGE_S)
            self._forget(call.session)
            return result
        if call.push is None:
            return await self._peers.call(self._url, self._target, call, timeout_s=CHANGE_S)
        session, remote = await self._peers.open_session(self._url, self._target, call, timeout_s=CHANGE_S)
        self._sessions[id(session)] = session, remote
        return session

    def notify(self, call: VerbCall) -> None:
        assert call.session is not None, f"{call.verb.name} is about no session"
        remote = self._forget(call.session)
        if remote is not None:
            remote.notify(call)

    def _forget(self, session: VerbSession) -> RemoteSession | None:
        _, remote = self._sessions.pop(id(session), (None, None))
        if remote is not None:
            remote.end_pushes()
        return remote


class BrokerLeaders:
    """Leaders by the directory of this broker."""

    def __init__(self, me: int, directory: Directory, peers: Peers, owns: Callable[[int], bool]) -> None:
        """`me` is the number of this broker."""
        self.owns = owns
        self.watch = directory.watch
        self._me = me
        self._directory = directory
        self._peers = peers

    def remote(self, store: int, name: TopicName) -> TopicLeader | None:
        owner = self._directory.owner_of(store)
        if owner is None or self.owns(store) or owner.id == self._me:
            return None
        return LEADER.proxy(_RemoteLeader(self._peers, self._peers.url_of(owner), name))
