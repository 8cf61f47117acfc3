"""One live topic that this broker serves: a served log that stores nothing.

Producers, access modes, quotas and rates are those of any served log. Only two parts differ: the log is
always empty (`passing_log`), and subscriptions hand entries out at once or drop them (`live_reading`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from anabranch.broker.serving.context import LogContext, OpenedStore, SubscriptionContext
from anabranch.broker.serving.log.passing_log import PassingLog
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.rates.rate_meter import RateMeter
from anabranch.broker.serving.reading.live_reading import LiveReading, make_live_reading
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.errors import ServiceNotReadyError, SubscriptionNotFoundError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry
from anabranch.model.acks import AckSet
from anabranch.model.drains import Ranges
from anabranch.model.names import TopicName


class LiveSubscription(Subscription):
    """Consumers that get entries as they pass. Acknowledgements change nothing, because nothing is kept."""

    def __init__(self, cursor: Cursor, context: SubscriptionContext, *, durable: bool) -> None:
        super().__init__(cursor, context, durable=durable, choose_reading=make_live_reading)

    def pass_on(self, entries: Sequence[Entry], ledger: int) -> None:
        """Deliver these entries to consumers with room; drop the others, and all beyond the dispatch rate."""
        assert isinstance(self.reading, LiveReading)
        if self._limits.must_wait(self.schedule):
            self.reading.drop(entries)
            return
        self.reading.pass_on(entries, ledger)
        self._limits.delivered()


class LiveLog(ServedLog):
    """Producers, subscriptions and counters of one live topic, or of one of its partitions."""

    def __init__(
        self,
        name: TopicName,
        context: LogContext,
        report_drained: Callable[[TopicName, str, Ranges], None],
        store: OpenedStore,
    ) -> None:
        self._passing = PassingLog(str(name), context.clock.wall_ms())
        self._unheard = 0
        """Messages that no subscription was there for, or that subscriptions dropped which are gone."""
        super().__init__(name, self._passing, context, report_drained, store)
        self._drops = RateMeter(context.rate_window_s, asyncio.get_running_loop().time(), (0,))

    async def subscription(
        self, name: str, *, durable: bool, ordinal: int | None, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """Return a subscription, made if new; it lasts until it is deleted or the topic is unused."""
        if self.producers.closed is not None:
            raise ServiceNotReadyError(f"{self.name} {self.producers.closed}")
        found = self.subscriptions.get(name)
        if found is None and ordinal is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}")
        return found or self._serve(Cursor(name, AckSet(0), properties), durable=durable)

    def _serve(self, cursor: Cursor, *, durable: bool) -> Subscription:
        made = LiveSubscription(cursor, self._subscription_context, durable=durable)
        self.subscriptions[made.name] = made
        return made

    def _forget(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            self._unheard += subscription.counters.messages_dropped
        super()._forget(subscription)

    def _advanced(self) -> None:
        entries = self._passing.passing
        if not self.subscriptions:
            self._unheard += sum(entry.count for entry in entries)
        for subscription in self.subscriptions.values():
            assert isinstance(subscription, LiveSubscription)
            subscription.pass_on(entries, self._passing.ledger)

    @property
    def entries_in(self) -> int:
        return self._passing.entries_in

    @property
    def messages_dropped(self) -> int:
        """Messages that a subscription did not get, counted for each one, or that no subscription got."""
        return self._unheard + sum(one.counters.messages_dropped for one in self.subscriptions.values())

    @property
    def drop_rate(self) -> float:
        """Dropped messages per second over the last window."""
        return self._drops.rates(asyncio.get_running_loop().time(), (self.messages_dropped,))[0]

    def sample(self, now: float) -> None:
        super().sample(now)
        self._drops.sample(now, (self.messages_dropped,))
