"""One log that this broker serves, be it a segment or a classic topic: its producers and subscriptions.

Who may produce is decided here, sealing happens here. Must not know layouts, controllers or other logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from anabranch.broker.serving.client_link import ClientLink
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.log_reader import Spawn
from anabranch.broker.serving.producer import ServedProducer
from anabranch.broker.serving.rates import RateMeter
from anabranch.broker.serving.subscription import Subscription, SubscriptionLimits, VolatileCursor
from anabranch.clock import Clock
from anabranch.errors import (
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicTerminatedError,
)
from anabranch.ledger.storage import Cursor, SegmentLog
from anabranch.model.drains import Ranges
from anabranch.model.inheritance import Known, Pieces
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every segment of a broker shares."""

    clock: Clock
    spawn: Spawn
    limits: SubscriptionLimits
    deduplicate: bool
    rate_window_s: float
    epoch_of: Callable[[TopicName], Awaitable[int]]
    """The number of the last exclusive owner of a topic, -1 when there was none."""
    next_epoch: Callable[[TopicName], Awaitable[int]]
    """Count one more exclusive owner, durably."""


class ServedLog:
    """Producers, subscriptions and counters of one log."""

    def __init__(
        self,
        name: TopicName,
        log: SegmentLog,
        surroundings: Surroundings,
        drained: Callable[[ServedLog, str, Ranges], None],
        store: int = 0,
    ) -> None:
        self.name = name
        self.store = store
        """The store that the log lives in."""
        self.log = log
        self.splits: tuple[int, ...] = ()
        """Bucket boundaries, once the layout told them."""
        self.producers: dict[str, ServedProducer] = {}
        self.waiting: dict[str, tuple[ServedProducer, Callable[[], None]]] = {}
        """Producers that wait for everybody else to leave, first come first served, and how to tell them."""
        self.exclusive: ServedProducer | None = None
        self.topic_epoch: int | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.closed: str | None = None
        """Why nobody is let in any more; None while the log is served."""
        self._around = surroundings
        self._drained = drained
        self._sealing = False
        self._admission = asyncio.Lock()
        self._found_ordinal = log.extent.next_ordinal
        self._messages_in = 0
        self._bytes_in = 0
        self._messages_out = 0
        self._bytes_out = 0
        loop = asyncio.get_running_loop()
        self._rates = RateMeter(surroundings.rate_window_s, loop.time(), self.totals())
        self._unwatch = log.watch(self._advanced)
        for cursor in log.cursors.values():
            self._serve(cursor.name, cursor, durable=True)

    @property
    def partition(self) -> int:
        index = self.name.partition
        return -1 if index is None else index

    @property
    def sealed(self) -> bool:
        """Whether no producer is let in any more; before the log is sealed for good this may be undone."""
        return self._sealing or self.log.sealed

    @property
    def idle(self) -> bool:
        """Whether every entry that was taken is answered."""
        return all(producer.idle for producer in self.producers.values())

    # Producers.

    async def attach(
        self,
        producer: ServedProducer,
        *,
        fresh_name: bool,
        topic_epoch: int | None,
        promoted: Callable[[], None],
    ) -> bool:
        """Let a producer in; whether it may send at once or waits until `promoted` is called.

        Raises TopicTerminatedError, ProducerBusyError or ProducerFencedError.
        """
        self._check_open()
        await self._drop_dead(producer.name, producer.link)
        async with self._admission:
            self._check_open()
            self._take_name(producer)
            if not fresh_name:
                # What an earlier holder of the name sent and nobody answered yet must count as stored or not.
                await self.log.flush()
            known = self.log.sequences.own.get(producer.name, -1)
            stored_epoch = await self._epoch()
            self._check_open()
            if topic_epoch is not None and topic_epoch < stored_epoch:
                raise ProducerFencedError(f"{self.name} has a newer exclusive producer")
            step = admit(
                producer.mode,
                producers=len(self.producers),
                exclusive=self.exclusive is not None,
                waiting=len(self.waiting),
            )
            producer.leave = self.detach
            if self._around.deduplicate:
                producer.recognise(known)
                producer.inherit(Known(self.log.sequences.inherited, producer.name))
            if step == "wait":
                self.waiting[producer.name] = (producer, promoted)
                return False
            if step == "fence":
                self._fence_all()
            if step != "join":
                await self._own(producer, keep_epoch=topic_epoch == stored_epoch)
            self.producers[producer.name] = producer
            return True

    def detach(self, producer: ServedProducer) -> None:
        """The producer is gone; what it sent is stored and answered all the same."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self._messages_in += producer.messages_in
            self._bytes_in += producer.bytes_in
        elif self._waits(producer.name) is producer:
            del self.waiting[producer.name]
        if self.exclusive is producer:
            self.exclusive = None
        if self.waiting and not self.producers and not self.sealed:
            self._around.spawn(self._promote())

    def _check_open(self) -> None:
        if self.closed is not None:
            raise ServiceNotReadyError(f"{self.name} {self.closed}")
        if self.sealed:
            raise TopicTerminatedError(f"{self.name} is sealed")

    def _waits(self, name: str) -> ServedProducer | None:
        return self.waiting[name][0] if name in self.waiting else None

    async def _drop_dead(self, name: str, asking: ClientLink) -> None:
        """Does the holder of a name still live? Asked before the lock is taken, because it may take long."""
        holder = self.producers.get(name) or self._waits(name)
        if holder is not None and holder.link is not asking and not await holder.link.alive():
            self.detach(holder)

    def _take_name(self, producer: ServedProducer) -> None:
        """Free the name if its holder is the same producer before it connected again."""
        holder = self.producers.get(producer.name) or self._waits(producer.name)
        if holder is None:
            return
        if holder.link is not producer.link or holder.id != producer.id or producer.epoch <= holder.epoch:
            raise ProducerBusyError(f"a producer named {producer.name} is connected to {self.name}")
        self.detach(holder)

    async def _epoch(self) -> int:
        if self.topic_epoch is None:
            self.topic_epoch = await self._around.epoch_of(self.name)
        return self.topic_epoch

    async def _own(self, producer: ServedProducer, *, keep_epoch: bool) -> None:
        if not keep_epoch:
            self.topic_epoch = await self._around.next_epoch(self.name)
        self.exclusive = producer

    def _fence_all(self) -> None:
        others = [*self.producers.values(), *(producer for producer, _ in self.waiting.values())]
        self.waiting.clear()
        for other in others:
            self.detach(other)
            other.close()

    async def _promote(self) -> None:
        async with self._admission:
            if self.producers or not self.waiting or self.sealed:
                return
            producer, promoted = self.waiting.pop(next(iter(self.waiting)))
            self.producers[producer.name] = producer
            await self._own(producer, keep_epoch=False)
            promoted()

    # Subscriptions.

    async def subscription(
        self, name: str, *, durable: bool, ordinal: int | None, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """The subscription of that name, made at `ordinal` if new; durable when it returns.

        Raises SubscriptionNotFoundError when it is not there and `ordinal` is None.
        """
        if self.closed is not None:
            raise ServiceNotReadyError(f"{self.name} {self.closed}")
        found = self.subscriptions.get(name)
        if found is not None:
            if found.durable != durable:
                raise NotAllowedError(f"{name} is {'' if found.durable else 'not '}a durable subscription")
            if not found.confirmed:
                await found.cursor.flush()
            return found
        if ordinal is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}")
        if not durable:
            return self._serve(name, VolatileCursor(name, ordinal), durable=False)
        cursor = self.log.cursors.open(name, ordinal, properties)
        made = self._serve(name, cursor, durable=True)
        made.confirmed = False
        await cursor.flush()
        made.confirmed = True
        return made

    def leave(self, subscription: Subscription, consumer: ServedConsumer) -> None:
        """The consumer is gone; a reader's subscription goes with its last consumer."""
        subscription.remove(consumer)
        self.forget_unused(subscription)

    def forget_unused(self, subscription: Subscription) -> None:
        """Forget a reader's subscription that nobody uses."""
        if not subscription.durable and not subscription.consumers:
            self._forget(subscription)

    async def unsubscribe(self, name: str) -> None:
        """Delete a subscription, durably, and send its consumers away; an unknown one is fine."""
        found = self.subscriptions.get(name)
        if found is not None:
            self._forget(found)
            found.close_consumers()
        await self.log.cursors.delete(name)

    def _serve(self, name: str, cursor: Cursor, *, durable: bool) -> Subscription:
        made = self.subscriptions[name] = Subscription(
            name,
            self.log,
            cursor,
            durable=durable,
            partition=self.partition,
            limits=self._around.limits,
            clock=self._around.clock,
            spawn=self._around.spawn,
            drained=lambda subscription, ranges: self._drained(self, subscription.name, ranges),
            splits=lambda: self.splits,
        )
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
        """Tell of subscriptions that are at the end of a sealed log already."""
        for subscription in list(self.subscriptions.values()):
            subscription.check_end()

    # The beginning and the end.

    async def inherit(self, pieces: Pieces) -> None:
        """Recognise what the segments before this one have stored, from now on and durably."""
        await self.log.inherit(pieces)
        for producer in [*self.producers.values(), *(producer for producer, _ in self.waiting.values())]:
            producer.inherit(Known(pieces, producer.name))

    async def seal(self) -> None:
        """Take no more entries, for ever. Those taken before are stored and answered, then producers go."""
        async with self._admission:
            leaving = [*self.producers.values(), *(producer for producer, _ in self.waiting.values())]
            self._sealing = True
            for producer in leaving:
                # From here on what they send is swallowed; their clients send it again to the successors.
                producer.link.forget_producer(producer.id)
            try:
                await self.log.seal()
                await _all_idle(leaving)
            finally:
                for producer in leaving:
                    self.detach(producer)
                    producer.close()
                self._sealing = False
        self.check_drained()

    def close(self, reason: str = "is being deleted") -> None:
        """Stop serving the log: everybody is sent away, nothing stored changes.

        Clients look the log up again; `reason` is what they hear while it is still found here.
        """
        self.closed = reason
        self._unwatch()
        self._fence_all()
        for subscription in list(self.subscriptions.values()):
            subscription.close_consumers(moved=True)

    # What it carries.

    @property
    def entries_in(self) -> int:
        """Entries stored since this broker serves the log."""
        return self.log.extent.next_ordinal - self._found_ordinal

    def totals(self) -> tuple[int, int, int, int]:
        """Messages and bytes in, messages and bytes out, since this broker serves the log."""
        producers = self.producers.values()
        counters = [subscription.counters for subscription in self.subscriptions.values()]
        return (
            self._messages_in + sum(producer.messages_in for producer in producers),
            self._bytes_in + sum(producer.bytes_in for producer in producers),
            self._messages_out + sum(counter.messages_out for counter in counters),
            self._bytes_out + sum(counter.bytes_out for counter in counters),
        )

    def sample(self, now: float) -> None:
        self._rates.sample(now, self.totals())

    def rates(self) -> tuple[float, ...]:
        """As `totals`, per second over the last window."""
        return self._rates.rates(asyncio.get_running_loop().time(), self.totals())


Admission = Literal["join", "own", "wait", "fence"]


def admit(mode: int, *, producers: int, exclusive: bool, waiting: int) -> Admission:
    """What a producer with this access mode has to do to be let in, or why it is not."""
    alone = not producers and not waiting
    if mode == pb.Shared:
        if exclusive or waiting:
            raise ProducerBusyError("an exclusive producer is connected or waits")
        return "join"
    if mode == pb.Exclusive:
        if not alone:
            raise ProducerFencedError("other producers are connected")
        return "own"
    if mode == pb.WaitForExclusive:
        return "own" if alone else "wait"
    return "own" if alone else "fence"


async def _all_idle(producers: Sequence[ServedProducer]) -> None:
    """Return once every one of them has answered all it took."""
    loop = asyncio.get_running_loop()
    for producer in producers:
        idle: asyncio.Future[None] = loop.create_future()
        producer.when_idle(partial(_resolve, idle))
        await idle


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
