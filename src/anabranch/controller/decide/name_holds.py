"""Decides which connection holds a consumer's name in a group; `topic/members.py` measures time. Pure.

Example: consumer `a` joins with token 7. When its connection is lost, `handle` returns StartTimer(7) and `a`
keeps its name. If the same instance joins again with token 8 before the grace period ends, the effect is
CancelTimer(7), and a late loss of token 7 has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.controller.decide.registration_request import PLAIN_REQUEST, RegistrationRequest
from anabranch.errors import ConsumerBusyError


@dataclass(frozen=True, slots=True)
class ConsumerJoined:
    """A connection took a name. If not `connected`, the name was restored from storage and counts as lost."""

    subscription: str
    name: str
    token: int
    request: RegistrationRequest = PLAIN_REQUEST
    connected: bool = True


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection identified by `token` was lost."""

    token: int


@dataclass(frozen=True, slots=True)
class ConsumerGone:
    """The member left or was evicted, and this is stored."""

    token: int


NameHoldEvent = ConsumerJoined | ConnectionLost | ConsumerGone


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report the end of the grace period when it has passed, unless cancelled."""

    token: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Do not report the end of the grace period, because the consumer is back or gone."""

    token: int


NameHoldEffect = StartTimer | CancelTimer


@dataclass(frozen=True, slots=True)
class NameHold:
    """A name held by the connection that `token` identifies."""

    subscription: str
    name: str
    token: int
    request: RegistrationRequest
    connected: bool
    restored: bool = False
    """Whether the hold is known only from storage. Its consumer may be alive and looking for the leader."""


class NameHolds:
    """The names of a topic's groups. Events with a token that holds no name are ignored."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str, NameHold]] = {}
        """Keyed by subscription and name."""
        self._by_token: dict[int, NameHold] = {}

    def __len__(self) -> int:
        return len(self._by_token)

    def named(self, sub: str, name: str) -> NameHold | None:
        return self._by_name.get(sub, {}).get(name)

    def of(self, token: int) -> NameHold | None:
        return self._by_token.get(token)

    def all(self, sub: str) -> tuple[NameHold, ...]:
        found = self._by_name.get(sub, {})
        return tuple(found[name] for name in sorted(found))

    def connected(self) -> bool:
        return any(hold.connected for hold in self._by_token.values())

    def check_free(self, sub: str, name: str, request: RegistrationRequest) -> None:
        """Raise ConsumerBusyError if another consumer's connection or another role holds the name."""
        hold = self.named(sub, name)
        if hold is None:
            return
        if request.is_foreign_to(hold.request):
            # The hold also lasts through the grace period. The error must not reveal its address to another
            # role.
            raise ConsumerBusyError(
                f"the consumer name {name} belongs to another role; choose another consumer name"
            )
        if hold.connected and not request.returns(hold.request):
            raise ConsumerBusyError(
                f"consumer {name} is connected already, from {hold.request.address or 'elsewhere'}; "
                "close it, or choose another consumer name"
            )

    def handle(self, event: NameHoldEvent) -> tuple[NameHoldEffect, ...]:
        match event:
            case ConsumerJoined(sub, name, token, request, connected):
                self.check_free(sub, name, request)
                former = self._drop(self.named(sub, name))
                self._put(NameHold(sub, name, token, request, connected, restored=not connected))
                return former if connected else (*former, StartTimer(token))
            case ConnectionLost(token):
                held = self._by_token.get(token)
                if held is None or not held.connected:
                    return ()
                self._put(replace(held, connected=False))
                return (StartTimer(token),)
            case ConsumerGone(token):
                return self._drop(self._by_token.get(token))

    def _put(self, hold: NameHold) -> None:
        self._by_name.setdefault(hold.subscription, {})[hold.name] = self._by_token[hold.token] = hold

    def _drop(self, hold: NameHold | None) -> tuple[NameHoldEffect, ...]:
        if hold is None:
            return ()
        del self._by_name[hold.subscription][hold.name]
        del self._by_token[hold.token]
        return () if hold.connected else (CancelTimer(hold.token),)
