"""The name holds, grace timers and pushes of connected consumers. Does not know how members are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from anabranch.controller.decide.name_holds import (
    CancelTimer,
    ConnectionLost,
    ConsumerGone,
    ConsumerJoined,
    NameHold,
    NameHoldEvent,
    NameHolds,
    StartTimer,
)
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.leader import Push
from anabranch.controller.topic.leadership import ControllerSettings, GraceOver, Notify
from anabranch.metadata.records import ConsumerRecord
from anabranch.model.assignment import Assignment

RETURN_S = 2.0
"""How long a new leader keeps a name for the consumer that held it under the former leader."""


@runtime_checkable
class Living(Protocol):
    """A push whose connection can be asked for a sign of life."""

    async def alive(self) -> bool: ...


class Members:
    """The consumers of all subscriptions of one topic."""

    def __init__(self, settings: ControllerSettings, tokens: Iterator[int], notify: Notify) -> None:
        self._settings = settings
        self._tokens = tokens
        self._notify = notify
        self.holds = NameHolds()
        self._pushes: dict[int, Push] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._released: dict[int, asyncio.Event] = {}
        """Set when the token no longer holds its name. Consumers of the same name wait for it."""

    async def make_room(self, sub: str, name: str, request: RegistrationRequest) -> None:
        """Find out whether a name's holder is alive. A holder known only from storage gets time to return."""
        hold = self.holds.named(sub, name)
        if hold is None or request.returns(hold.request):
            return
        push = self._pushes.get(hold.token)
        if isinstance(push, Living) and not await push.alive():
            self.lost(hold.token)
        elif hold.restored and None not in (request.instance, hold.request.instance):
            await self._await_return(hold)

    async def _await_return(self, hold: NameHold) -> None:
        passed_s = self._settings.consumer_grace_s - (self.seconds_left(hold) or 0.0)
        released = self._released.setdefault(hold.token, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(RETURN_S - passed_s):
                await released.wait()

    def join(self, sub: str, name: str, push: Push, request: RegistrationRequest) -> int:
        """Give the name to a new connection, and return the token that identifies it."""
        former = self.holds.named(sub, name)
        token = next(self._tokens)
        self._handle(ConsumerJoined(sub, name, token, request))
        if former is not None:
            self._release(former.token)
        self._pushes[token] = push
        return token

    def lost(self, token: int) -> None:
        """Start the grace period of a consumer whose connection was lost, if the token still holds a name."""
        self._pushes.pop(token, None)
        self._handle(ConnectionLost(token))

    def left_unrecorded(self, token: int) -> None:
        """Soon evict a consumer that left although its leaving could not be stored."""
        self.lost(token)
        if self.holds.of(token) is not None:
            self._timers.pop(token).cancel()
            self._start_timer(token, self._settings.retry_first_s)

    def gone(self, token: int) -> None:
        self._release(token)
        self._handle(ConsumerGone(token))

    def _release(self, token: int) -> None:
        self._pushes.pop(token, None)
        if token in self._released:
            self._released.pop(token).set()

    def fit(self, sub: str, members: Mapping[str, ConsumerRecord]) -> None:
        """Hold exactly the names of these members. A name without a connection counts as just lost."""
        for hold in self.holds.all(sub):
            if hold.name not in members:
                self.gone(hold.token)
        for name in sorted(members):
            if self.holds.named(sub, name) is None:
                member = members[name]
                request = RegistrationRequest(instance=member.instance, principal=member.principal)
                self._handle(ConsumerJoined(sub, name, next(self._tokens), request, connected=False))

    def push(self, token: int, assignment: Assignment) -> None:
        push = self._pushes.get(token)
        if push is not None:
            push(assignment)

    def dismiss(self, sub: str, last: Assignment, *, register_again: bool = False) -> None:
        """Push the last assignment to the subscription's consumers in the next iteration of the event loop.

        Anabranch clients register again, and then learn that the subscription was deleted. Clients of other
        vendors would recreate it, so they register again only if `register_again` is set.
        """
        loop = asyncio.get_running_loop()
        for hold in self.holds.all(sub):
            push = self._pushes.pop(hold.token, None)
            if push is not None:
                loop.call_soon(push, last)
                if register_again or hold.request.instance is not None:
                    loop.call_soon(push, None)

    def seconds_left(self, hold: NameHold) -> float | None:
        """Return the seconds until a lost consumer is evicted, or None if it is connected."""
        timer = self._timers.get(hold.token)
        return None if timer is None else max(0.0, timer.when() - asyncio.get_running_loop().time())

    def close(self) -> None:
        """Forget all consumers and send them to the next leader. No timer is left."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        pushes, self._pushes = self._pushes, {}
        for push in pushes.values():
            push(None)
        self.holds = NameHolds()

    def _handle(self, event: NameHoldEvent) -> None:
        for effect in self.holds.handle(event):
            match effect:
                case StartTimer(token):
                    self._start_timer(token, self._settings.consumer_grace_s)
                case CancelTimer(token):
                    self._timers.pop(token).cancel()

    def _start_timer(self, token: int, delay_s: float) -> None:
        self._timers[token] = asyncio.get_running_loop().call_later(delay_s, self._grace_over, token)

    def _grace_over(self, token: int) -> None:
        # The eviction may fail, so it is reported again until the consumer is gone or back.
        self._start_timer(token, self._settings.retry_max_s)
        self._notify(GraceOver(token))
