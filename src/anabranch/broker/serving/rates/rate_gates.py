"""Gates that let connections and subscriptions wait until the rate of a topic or tenant lets them go on.

A gate counts what passed and goes into debt; only then the connections that publish, or the subscriptions
that deliver, wait in line. This module must not know policies, nor which limits apply to a topic.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from anabranch.model.token_bucket import Rate, RateBucket
from anabranch.protocol.commands import encode
from anabranch.protocol.pb import pulsar_pb2 as pb

NEXT_S: Final = 0.001
"""Pause between two releases, in which the gate counts what the first one sends."""

STILL_S: Final = 5.0
"""A client whose connection waits hears from the broker this often, or it would hang up."""

_PONG: Final = encode(pb.CommandPong())


class Pauses(Protocol):
    """The reasons for which a connection is not read."""

    def add(self, reason: object) -> None: ...

    def remove(self, reason: object) -> None: ...


class PublishingLink(Protocol):
    """A connection, as a gate sees it."""

    @property
    def pauses(self) -> Pauses: ...

    def write(self, buffer: bytes) -> None: ...


class RateGate:
    """One rate of one topic, subscription or tenant at this broker."""

    waiter, waiters = "subscription", "subscriptions"

    def __init__(self, policy: str, of: str, rate: Rate, share: float = 1.0, *, shared: bool = False) -> None:
        """`shared`: other brokers serve parts of `of`, so this gate has only a share of the rate."""
        self.policy = policy
        self.of = of
        self.shared = shared
        self.waits = 0
        """How often a connection or subscription had to wait; the number only grows."""
        self._loop = asyncio.get_running_loop()
        self._bucket = RateBucket(rate, self._loop.time(), share if shared else 1.0)
        self._waiting: dict[Any, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asked_s = self._loop.time()
        self._stay_s = 0.0
        self._had_waiters = False

    @property
    def key(self) -> str:
        """The same gate at another broker has the same key."""
        return f"{self.policy} {self.of}"

    @property
    def waiting(self) -> int:
        """Connections or subscriptions that wait now."""
        return len(self._waiting)

    @property
    def trouble(self) -> str | None:
        """The connections or subscriptions that wait for this rate, in words; None if none does."""
        if not self._waiting:
            return None
        limits = ((self.rate.messages, "messages"), (self.rate.bytes, "bytes"))
        rate = " and ".join(f"{limit:g} {unit}" for limit, unit in limits if limit is not None)
        period = "a second" if self.rate.period_s == 1.0 else f"in {self.rate.period_s:g} s"
        count = len(self._waiting)
        who = f"1 {self.waiter} waits" if count == 1 else f"{count} {self.waiters} wait"
        return f"{who} for {self.policy} of {self.of}: {rate} {period}"

    @property
    def rate(self) -> Rate:
        return self._bucket.rate

    @property
    def share(self) -> float:
        return self._bucket.share

    @property
    def is_open(self) -> bool:
        return self._bucket.wait_s(self._loop.time()) == 0.0

    def take(self, messages: int, size: int) -> None:
        """Count messages and bytes that pass."""
        self._bucket.take(messages, size, self._loop.time())

    def messages_left(self, most: int) -> int:
        return self._bucket.messages_left(self._loop.time(), most)

    def let_wait(self, waiter: object, go_on: Callable[[], None]) -> None:
        """Call `go_on` in turn, once messages may pass again."""
        if waiter not in self._waiting:
            self.waits += 1
            self._had_waiters = True
            self._waiting[waiter] = go_on
            if self._timer is None:
                now = self._loop.time()
                self._stay_s = max(self._stay_s, now + STILL_S)
                self._wait(self._bucket.wait_s(now))

    def forget(self, waiter: object) -> None:
        """Drop a connection or subscription that is gone, if it waits."""
        self._waiting.pop(waiter, None)

    def change(self, rate: Rate, share: float | None = None) -> None:
        """Follow another rate, with the same kinds of limits, or another share of it, from now on."""
        share = (self.share if share is None else share) if self.shared else 1.0
        if (rate, share) != (self.rate, self.share):
            self._bucket.change(rate, share, self._loop.time())
            if self._timer is not None:
                self._timer.cancel()
                self._wait(NEXT_S)

    def take_demand(self) -> float:
        """Return which part of the whole rate was used since the last call; infinite if messages waited."""
        now = self._loop.time()
        elapsed_s, self._asked_s = now - self._asked_s, now
        had_waiters, self._had_waiters = self._had_waiters or bool(self._waiting), False
        used = self._bucket.take_demand(max(elapsed_s, NEXT_S))
        return math.inf if had_waiters else used

    def close(self) -> None:
        """Let everything go on, because the limit is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting.values():
            go_on()

    def _wait(self, wait_s: float) -> None:
        self._timer = self._loop.call_later(max(min(wait_s, STILL_S), NEXT_S), self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._waiting and self.is_open:
            # One at a time: what it sends decides whether the next one may go on.
            waiter = next(iter(self._waiting))
            self._waiting.pop(waiter)()
        now = self._loop.time()
        if now >= self._stay_s:
            self._stay_s = now + STILL_S
            self._stay()
        if self._waiting and self._timer is None:
            self._wait(self._bucket.wait_s(now))

    def _stay(self) -> None:
        """Called every few seconds for those that still wait."""


class PublishGate(RateGate):
    """A rate of publishing: producers get no credit, and connections of other clients are not read."""

    waiter, waiters = "producer or connection", "producers or connections"

    def charge(self, link: PublishingLink, messages: int, size: int) -> None:
        """Count an entry; stop reading from its connection if that was more than the rate allows."""
        self.take(messages, size)
        self.stop(link)

    def stop(self, link: PublishingLink) -> None:
        """Stop reading from a connection while the rate is exceeded."""
        if not self.is_open and link not in self._waiting:
            link.pauses.add(self)
            self.let_wait(link, partial(link.pauses.remove, self))

    def _stay(self) -> None:
        # A PING that the client sent waits unread, and clients hang up without an answer to it.
        for link in self._waiting:
            link.write(_PONG)
