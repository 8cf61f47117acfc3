"""The connected side of registered consumers: leases, grace timers and pushes.

Carries out what the pure `NameHolds` order. All times are the loop's. Must not know how membership is stored:
it asks for an eviction and is told when a consumer is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from anabranch.controller.decide.groups import (
    CancelTimer,
    ConnectionLost,
    ConsumerGone,
    ConsumerJoined,
    NameHold,
    NameHoldEvent,
    NameHolds,
    RegistrationRequest,
    StartTimer,
)
from anabranch.controller.ports.leader import Push
from anabranch.metadata.records import ConsumerRecord
from anabranch.model.assignment import Assignment

RETURN_S = 2.0
"""How long a new leader keeps a name for the consumer that held it under the former one."""


@runtime_checkable
class Living(Protocol):
    """A push whose connection can be asked for a sign of life."""

    async def alive(self) -> bool: ...


class Members:
    """The consumers of all subscriptions of one topic.

    `evict(subscription, token)` is called when a grace period is over; `assigned(subscription, name)` says
    what a consumer reads at the moment it is told, None that there is nothing to tell.
    """

    def __init__(
        self,
        grace_s: float,
        tokens: Iterator[int],
        evict: Callable[[str, int], None],
        assigned: Callable[[str, str], Assignment | None],
    ) -> None:
        self._grace_s = grace_s
        self._tokens = tokens
        self._evict = evict
        self._assigned = assigned
        self._leases: dict[str, NameHolds] = {}
        self._pushes: dict[int, Push] = {}
        self._due: set[int] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._replaced: dict[int, asyncio.Event] = {}
        """Who waits for what becomes of a name, by the token that holds it."""

    def of(self, sub: str) -> tuple[NameHold, ...]:
        return self._leases[sub].all() if sub in self._leases else ()

    def holder(self, sub: str, token: int) -> NameHold | None:
        """The lease that this token holds, if it still does."""
        return self._leases[sub].of(token) if sub in self._leases else None

    def connected(self) -> bool:
        """Whether any consumer of any subscription is connected."""
        return any(lease.connected for sub in self._leases for lease in self.of(sub))

    async def make_room(self, sub: str, name: str, said: RegistrationRequest) -> None:
        """Before a name is refused or given away: does the one that holds it still live, or come back?"""
        lease = self._leases[sub].holder(name) if sub in self._leases else None
        if lease is None or said.returns(lease.said):
            return
        push = self._pushes.get(lease.token)
        if isinstance(push, Living) and not await push.alive():
            self.lost(sub, lease.token)
        elif lease.restored and None not in (said.instance, lease.said.instance):
            await self._await_return(lease)

    async def _await_return(self, lease: NameHold) -> None:
        passed_s = self._grace_s - (self.seconds_left(lease) or 0.0)
        replaced = self._replaced.setdefault(lease.token, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(RETURN_S - passed_s):
                await replaced.wait()

    def check_free(self, sub: str, name: str, said: RegistrationRequest) -> None:
        """ConsumerBusyError while the connection of another consumer holds the name."""
        if sub in self._leases:
            self._leases[sub].check_free(name, said)

    def join(self, sub: str, name: str, push: Push, said: RegistrationRequest) -> int:
        """Give the name to a new connection; returns the token that stands for it."""
        former = self._leases[sub].holder(name) if sub in self._leases else None
        token = next(self._tokens)
        self._handle(sub, ConsumerJoined(name, token, said))
        if former is not None:
            self._end(former.token)
        self._pushes[token] = push
        return token

    def lost(self, sub: str, token: int) -> None:
        """The connection is gone; its grace period starts, unless it holds nothing any more."""
        self._pushes.pop(token, None)
        self._handle(sub, ConnectionLost(token))

    def gone(self, sub: str, token: int) -> None:
        """The consumer is no member any more."""
        self._end(token)
        self._handle(sub, ConsumerGone(token))

    def _end(self, token: int) -> None:
        self._pushes.pop(token, None)
        if token in self._replaced:
            self._replaced.pop(token).set()

    def fit(self, sub: str, members: Mapping[str, ConsumerRecord]) -> None:
        """Make the leases those of these members: one that nobody holds counts as lost just now."""
        for lease in self.of(sub):
            if lease.name not in members:
                self.gone(sub, lease.token)
        for name in sorted(members):
            if sub not in self._leases or self._leases[sub].holder(name) is None:
                said = RegistrationRequest(instance=members[name].instance)
                self._handle(sub, ConsumerJoined(name, next(self._tokens), said, connected=False))
        if not members:
            self._leases.pop(sub, None)

    def evict_later(self, sub: str, token: int, delay_s: float) -> None:
        """Ask for the eviction then, unless the consumer is gone or back."""
        if self.holder(sub, token) is not None:
            if token in self._timers:
                self._timers.pop(token).cancel()
            self._start_timer(sub, token, delay_s)

    def push_soon(self, sub: str, lease: NameHold) -> None:
        """Tell a consumer what it reads, once, however often that changes before the loop comes round."""
        if lease.token not in self._due and lease.token in self._pushes:
            self._due.add(lease.token)
            asyncio.get_running_loop().call_soon(self._deliver, sub, lease.name, lease.token)

    def say_farewell(self, sub: str, last: Assignment, *, come_back: bool = False) -> None:
        """Tell the consumers of a subscription a last thing, also if they are forgotten meanwhile.

        Those who are to come back register again, in case the topic is made again; and those who then hear
        that their subscription is deleted, which others would make again.
        """
        for lease in self.of(sub):
            push = self._pushes.pop(lease.token, None)
            if push is not None:
                asyncio.get_running_loop().call_soon(push, last)
                if come_back or lease.said.instance is not None:
                    asyncio.get_running_loop().call_soon(push, None)

    def seconds_left(self, lease: NameHold) -> float | None:
        """How long until a lost consumer is evicted."""
        timer = self._timers.get(lease.token)
        return None if timer is None else max(0.0, timer.when() - asyncio.get_running_loop().time())

    def close(self) -> None:
        """Forget everybody, and send them to the next leader; no timer stays behind."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        pushes, self._pushes = self._pushes, {}
        for push in pushes.values():
            push(None)
        self._leases.clear()

    def _deliver(self, sub: str, name: str, token: int) -> None:
        self._due.discard(token)
        push = self._pushes.get(token)
        told = self._assigned(sub, name)
        if push is not None and told is not None:
            push(told)

    def _handle(self, sub: str, event: NameHoldEvent) -> None:
        for effect in self._leases.setdefault(sub, NameHolds()).handle(event):
            match effect:
                case StartTimer(token):
                    self._start_timer(sub, token, self._grace_s)
                case CancelTimer(token):
                    self._timers.pop(token).cancel()

    def _start_timer(self, sub: str, token: int, delay_s: float) -> None:
        self._timers[token] = asyncio.get_running_loop().call_later(delay_s, self._evict, sub, token)
