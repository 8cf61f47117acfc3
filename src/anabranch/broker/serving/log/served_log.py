"""One log that this broker serves, of a segment or a classic topic: its producers and subscriptions.

Sealing happens here. Must not know layouts, controllers or other logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from itertools import islice
from typing import NamedTuple

from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.serving.context import LogContext, LogUse, OpenedStore, SubscriptionContext
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.log import client_rates
from anabranch.broker.serving.log.compacting import Compacting
from anabranch.broker.serving.log.log_producers import LogProducers
from anabranch.broker.serving.rates.rate_meter import RateMeter
from anabranch.broker.serving.side_logs.compacted_log import CompactedLog
from anabranch.broker.serving.subscription.kept import KeptLog
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.errors import NotAllowedError, ServiceNotReadyError, SubscriptionNotFoundError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import SegmentLog
from anabranch.model.acks import AckSet
from anabranch.model.drains import Ranges
from anabranch.model.inheritance import Pieces
from anabranch.model.names import TopicName
from anabranch.model.traffic_sketch import HotHash, TrafficSummary

TROUBLES_MAX = 20
"""Troubles of one log that its leader is told of."""
RETURN_S = 30.0
"""A reader that a seek has disconnected finds its position this long."""


class LogActivity(NamedTuple):
    """The uses of a log at one moment, which decide whether it may be unloaded."""

    clients: int
    """Attached or waiting producers, and consumers."""
    calls: int
    working: bool
    """Whether a subscription delivers, reads or reports."""
    troubled: bool
    """Whether the log has troubles that operators should see."""
    closed: bool
    """Whether the log is being deleted or moves to another broker."""
    idle_s: float
    """Time since the last lookup or client."""


def may_unload(seen: LogActivity, idle_s: float) -> bool:
    """Return whether a log may be unloaded, after `idle_s` without a use, without losing anything."""
    if seen.closed or seen.clients or seen.calls or seen.working or seen.troubled:
        return False
    return seen.idle_s >= idle_s


class ServedLog:
    """Producers, subscriptions and counters of one log."""

    def __init__(
        self,
        name: TopicName,
        log: SegmentLog,
        context: LogContext,
        report_drained: Callable[[TopicName, str, Ranges], None],
        store: OpenedStore,
    ) -> None:
        self.name = name
        self.partition = -1 if name.partition is None else name.partition
        self.store = store.number
        """The store that the log lives in."""
        self.log = log
        now_s = asyncio.get_running_loop().time()
        self.use = LogUse(now_s)
        self.throttle = context.throttles.of(name)
        self.producers = LogProducers(name, log, context)
        self.subscriptions: dict[str, Subscription] = {}
        # Subscriptions must not refer to this object, or an unloaded log would stay in memory for a while.
        self._compacted = cache(partial(CompactedLog, log, store.storage.get))
        self._subscription_context = SubscriptionContext(
            log=log,
            partition=self.partition,
            broker=context,
            throttle=self.throttle,
            use=self.use,
            sides=store.storage,
            report_drained=partial(report_drained, name),
            compacted=self._compacted,
        )
        self.observed_s = now_s
        """When a leader last asked for the load; at first the time when the log was opened."""
        self._found_ordinal = log.extent.next_ordinal
        self._messages_out = self._bytes_out = 0
        self.rate_window_s = context.rate_window_s
        self._rates = RateMeter(context.rate_window_s, now_s, self.totals())
        self._unwatch: Callable[[], None] | None = log.watch(self._advanced)
        for cursor in log.cursors.values():
            if cursor.name != COMPACTION:
                self._serve(cursor, durable=True)

    @property
    def compacted(self) -> CompactedLog:
        """The log as compacted readers see it."""
        return self._compacted()

    @cached_property
    def compacting(self) -> Compacting:
        """The compactions of the log."""
        context = self._subscription_context
        return Compacting(self.name, self.log, self.compacted, context.sides, context.broker.failpoints)

    async def subscription(
        self, name: str, *, durable: bool, ordinal: int | None, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """Return the subscription of that name, made at `ordinal` if new; durable when it returns.

        Raises SubscriptionNotFoundError when it does not exist and `ordinal` is None.
        """
        if self.producers.closed is not None:
            raise ServiceNotReadyError(f"{self.name} {self.producers.closed}")
        found = self.subscriptions.get(name)
        if found is not None:
            if found.durable != durable:
                raise NotAllowedError(f"{name} is {'' if found.durable else 'not '}a durable subscription")
            if not found.confirmed:
                await self._confirm(found)
            return found
        if name == COMPACTION:
            raise NotAllowedError(f"{name} is the cursor of compaction; choose another name")
        if ordinal is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}")
        if not durable:
            return self._serve(Cursor(name, AckSet(ordinal)), durable=False)
        cursor = self.log.cursors.open(name, ordinal, properties)
        made = self._serve(cursor, durable=True)
        made.confirmed = False
        await self._confirm(made)
        return made

    async def _confirm(self, subscription: Subscription) -> None:
        with self.use.call():
            await subscription.cursor.flush()
        subscription.confirmed = True

    def detach(self, subscription: Subscription, consumer: ServedConsumer) -> None:
        """Forget a consumer; a reader's subscription goes with its last consumer."""
        subscription.remove(consumer)
        self.forget_unused(subscription)

    def forget_unused(self, subscription: Subscription) -> None:
        """Forget a reader's subscription without consumers, unless its reader is awaited after a seek."""
        awaited = asyncio.get_running_loop().time() < subscription.awaited_until_s
        if not subscription.durable and not subscription.consumers and not awaited:
            self._forget(subscription)

    def await_return(self, subscription: Subscription) -> None:
        """Keep the position of a reader that a seek has disconnected, until it attaches again or is late."""
        if not subscription.durable:
            loop = asyncio.get_running_loop()
            subscription.awaited_until_s = loop.time() + RETURN_S
            # A timer may fire a moment early.
            loop.call_later(RETURN_S + 0.1, self.forget_unused, subscription)

    async def unsubscribe(self, name: str) -> None:
        """Delete a subscription durably and disconnect its consumers. Does nothing if there is none."""
        if name == COMPACTION:
            await self.compacting.drop()
            return
        found = self.subscriptions.get(name)
        if found is not None:
            self._forget(found)
            found.close_consumers()
        await self.log.cursors.delete(name)
        if found is not None:
            await found.backing.delete()

    def _serve(self, cursor: Cursor, *, durable: bool) -> Subscription:
        made = Subscription(cursor, self._subscription_context, durable=durable)
        self.subscriptions[made.name] = made
        return made

    def _forget(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            self._messages_out += subscription.counters.messages_out
            self._bytes_out += subscription.counters.bytes_out

    def _advanced(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.schedule()

    def check_drained(self) -> None:
        """Report the subscriptions that have drained a sealed log already."""
        for subscription in list(self.subscriptions.values()):
            subscription.check_end()

    async def inherit(self, pieces: Pieces) -> None:
        """Recognise the messages that the segments before this one have stored, from now on and durably."""
        with self.use.call():
            await self.log.inherit(pieces)
            self.producers.inherit()

    async def seal(self) -> None:
        """Take no more entries, for ever; the entries taken before are stored and answered."""
        with self.use.call():
            await self.producers.seal()
        self.check_drained()

    def close(self, reason: str = "is being deleted") -> None:
        """Disconnect all clients; `reason` is the error text while their lookups still lead here."""
        self._stop_watching()
        self.producers.close(reason)
        for subscription in list(self.subscriptions.values()):
            subscription.close_consumers(moved=True)

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def activity(self, now_s: float) -> LogActivity:
        """Return the uses of the log now; a log with clients counts as used just now."""
        clients = self.clients
        if clients:
            self.use.used_s = now_s
        return LogActivity(
            clients=clients,
            calls=self.use.calls,
            working=any(subscription.working for subscription in self.subscriptions.values()),
            troubled=any(subscription.troubles for subscription in self.subscriptions.values()),
            closed=self.producers.closed is not None,
            idle_s=now_s - self.use.used_s,
        )

    def unload(self) -> KeptLog:
        """Stop serving a log that `may_unload`, for good; returns the state that is not on disk.

        A caller that kept a reference without a call of `use` is refused, and finds no subscriptions.
        """
        self._stop_watching()
        self.producers.close("was not used for long and is loaded again")
        kept = tuple((name, sub.unload()) for name, sub in self.subscriptions.items() if sub.durable)
        throttle = self.throttle if self.throttle.publish_gates or self.throttle.limits_delivery else None
        self.subscriptions = {}
        self.log.release()
        return KeptLog(self.store, self._found_ordinal, *self._own_totals(), kept, throttle)

    def _own_totals(self) -> tuple[int, int, int, int]:
        """As `totals`, without the deliveries of the present subscriptions."""
        return (*self.producers.totals, self._messages_out, self._bytes_out)

    def resume(self, kept: KeptLog) -> None:
        """Go on from the state of an unloaded log."""
        self._found_ordinal = kept.first_ordinal
        self.producers.resume(kept.messages_in, kept.bytes_in)
        self._messages_out, self._bytes_out = kept.messages_out, kept.bytes_out
        for name, state in kept.subscriptions:
            if name in self.subscriptions:
                self.subscriptions[name].resume(state)
        self._rates.restart(asyncio.get_running_loop().time(), self.totals())

    @property
    def clients(self) -> int:
        """Attached or waiting producers, and consumers."""
        consumers = sum(len(subscription.consumers) for subscription in self.subscriptions.values())
        return consumers + len(self.producers.attached) + len(self.producers.waiting)

    @property
    def spilled_bytes(self) -> int:
        return sum(subscription.backing.spilled_bytes for subscription in self.subscriptions.values())

    @property
    def entries_in(self) -> int:
        """Entries stored since this broker serves the log."""
        return self.log.extent.next_ordinal - self._found_ordinal

    def totals(self) -> tuple[int, int, int, int]:
        """Return the messages and bytes in, the messages and bytes out, since this broker serves the log."""
        counters = [subscription.counters for subscription in self.subscriptions.values()]
        return (
            *self.producers.totals,
            self._messages_out + sum(counter.messages_out for counter in counters),
            self._bytes_out + sum(counter.bytes_out for counter in counters),
        )

    def troubles(self) -> tuple[str, ...]:
        """Reasons why the log takes no entries, clients wait, or subscriptions cannot read; damage passed."""
        found = (
            f"subscription {name}: {trouble}"
            for name, subscription in self.subscriptions.items()
            for trouble in subscription.troubles
        )
        return (*troubles_of(self.log), *self.throttle.troubles(), *islice(found, TROUBLES_MAX))

    def hottest(self, most: int) -> tuple[HotHash, ...]:
        """Return the key hashes that take most of the published load, with their shares and a key of each."""
        return self.producers.traffic.hottest(most)

    def traffic(self) -> TrafficSummary:
        """Return the published load by key hash."""
        return self.producers.traffic.summary()

    def sample(self, now: float) -> None:
        """Remember the counters and let earlier load count less; called at even intervals."""
        self.producers.traffic.age()
        self._rates.sample(now, self.totals())
        client_rates.sample(self.producers.attached, self.subscriptions, now, self.rate_window_s)
        if self.throttle.is_relative:
            self.throttle.note_published(self.name, *self.rates()[:2])

    def rates(self) -> tuple[float, ...]:
        """As `totals`, per second over the last window."""
        return self._rates.rates(asyncio.get_running_loop().time(), self.totals())


def troubles_of(log: SegmentLog) -> tuple[str, ...]:
    """Reasons why a log takes no entries, or takes them slowly."""
    return tuple(trouble for trouble in (log.full, log.slow) if trouble is not None)
