"""Where topics are led: here, or at the broker that owns their home store, reached through its peers.

Must not know what a leader does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.peers import Line, Peers
from anabranch.broker.cluster.remote_calls import Arguments, Port, Verb
from anabranch.controller.ports.leader import Membership, TopicLeader
from anabranch.errors import NotConnectedError
from anabranch.model.names import TopicName

CONTROLLER: Final = Port(TopicLeader)
TARGET: Final = "controller"

CHANGE_S: Final = 60.0
"""How long a leader may take for a change: it waits for its turn, and asks other brokers itself."""


class _RemoteLeader:
    """Carries calls to the leader of one topic.

    What concerns a registration goes over the connection that made it, or nowhere: a leader that lost the
    connection has taken the registration for lost, and the next process counts its tokens anew.
    """

    def __init__(self, peers: Peers, url: str, name: TopicName) -> None:
        self._peers = peers
        self._url = url
        self._target = f"{TARGET} {name}"
        self._lines: dict[int, tuple[Membership, Line]] = {}

    async def call(self, verb: Verb, arguments: Arguments) -> Any:
        registration = arguments.get("registration")
        line = None if registration is None else self._line(registration)
        result, made = await self._peers.call(
            self._url,
            self._target,
            verb,
            arguments,
            timeout_s=CHANGE_S,
            line=line,
            orphaned=None if verb.push is None else self._abandon,
        )
        if registration is not None:
            self._forget(registration)
        if verb.push is not None:
            self._lines[id(result)] = result, made
        return result

    def tell(self, verb: Verb, arguments: Arguments) -> None:
        registration = arguments["registration"]
        with suppress(NotConnectedError):
            self._peers.tell(self._line(registration), self._target, verb, arguments)
        self._forget(registration)

    def _line(self, registration: Membership) -> Line:
        _, line = self._lines.get(id(registration), (None, None))
        if line is None or not line.open:
            raise NotConnectedError(f"the broker at {self._url}, where this was registered, is gone")
        return line

    def _forget(self, registration: Membership) -> None:
        _, line = self._lines.pop(id(registration), (None, None))
        if line is not None:
            line.end()

    def _abandon(self, registration: Membership, line: Line) -> None:
        """A registration came to be for a caller that is gone."""
        self._peers.tell(
            line, self._target, CONTROLLER.verb("connection_lost"), {"registration": registration}
        )


class BrokerLeaders:
    """Leaders by the directory of this broker."""

    def __init__(self, directory: Directory, peers: Peers, owns: Callable[[int], bool]) -> None:
        self._directory = directory
        self._peers = peers
        self._owns = owns

    def owns(self, store: int) -> bool:
        return self._owns(store)

    def remote(self, store: int, name: TopicName) -> TopicLeader | None:
        owner = self._directory.owner_of(store)
        if owner is None or self._owns(store) or owner.url == self._peers.here:
            return None
        return cast(TopicLeader, CONTROLLER.proxy(_RemoteLeader(self._peers, owner.url, name)))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._directory.watch(changed)
