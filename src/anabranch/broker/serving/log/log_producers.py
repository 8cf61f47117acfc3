"""The producers of one log: which of them may send, which wait, and which one excludes the others.

Must not know subscriptions, nor how an entry is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Literal, NamedTuple

from anabranch.broker.serving.context import ClientLink, LogContext
from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.log.traffic import TrafficMeter
from anabranch.errors import (
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    StorageFullError,
    TopicTerminatedError,
)
from anabranch.ledger.storage import SegmentLog, StoredSequences
from anabranch.metadata.producer_epochs import TopicEpoch
from anabranch.model.inheritance import Known, highest_of
from anabranch.model.names import TopicName
from anabranch.model.ranges import FULL
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.rights.names import has_stored, is_foreign, roles_have_stored, stored_names

ProducerStep = Literal["join", "own", "wait", "fence"]


def next_step(
    mode: int, *, producers: int, exclusive: bool, waiting: int, foreign: bool = False
) -> ProducerStep:
    """Return how a producer with this access mode gets in; ProducerBusyError or ProducerFencedError.

    `foreign` says that producers of other roles are connected. A role fences only its own producers; those of
    other roles that wait go on waiting.
    """
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
    if foreign:
        raise ProducerFencedError("producers of another role are connected, which this role may not fence")
    return "own" if alone else "fence"


class KnownSequences(NamedTuple):
    """The sequence ids that a log remembers of one producer."""

    own: int
    inherited: Known


def known_sequences(stored: StoredSequences, name: str, principal: str) -> KnownSequences:
    """Return the sequence ids of a role's producer; those of other roles under the same name do not count."""
    names = stored_names(name, principal)
    return KnownSequences(highest_of(names, stored.own), Known(stored.inherited, *names))


class LogProducers:
    """The producers that are attached to one log, and those that wait for it."""

    def __init__(self, name: TopicName, log: SegmentLog, context: LogContext) -> None:
        self.attached: dict[str, ServedProducer] = {}
        self.waiting: dict[str, ServedProducer] = {}
        """Producers that wait for all others to leave, first come first served."""
        self.exclusive: ServedProducer | None = None
        self.sealing = False
        """Whether a seal is under way; no producer may attach, but a seal that fails is undone."""
        self.traffic = TrafficMeter(FULL if name.segment is None else name.segment.range)
        self.closed: str | None = None
        """The reason why the log is not served any more; None while it is."""
        self._name = name
        self._log = log
        self._context = context
        self._admission = asyncio.Lock()
        self._last_exclusive: TopicEpoch | None = None
        self._chunked = False
        self._messages_left = 0
        self._bytes_left = 0

    @property
    def topic_epoch(self) -> int | None:
        """The number of the last exclusive producer; None before any producer attached."""
        return None if self._last_exclusive is None else self._last_exclusive.number

    @property
    def idle(self) -> bool:
        """Whether every entry that was taken is answered."""
        return all(producer.idle for producer in self.attached.values())

    @property
    def chunked(self) -> bool:
        """Whether chunks of messages came in since the log was loaded."""
        return self._chunked or any(producer.chunks_in for producer in self.attached.values())

    @property
    def totals(self) -> tuple[int, int]:
        """Messages and bytes that came in since this broker serves the log."""
        producers = self.attached.values()
        return (
            self._messages_left + sum(producer.messages_in for producer in producers),
            self._bytes_left + sum(producer.bytes_in for producer in producers),
        )

    def resume(self, messages: int, size_bytes: int) -> None:
        """Count on from these totals."""
        self._messages_left, self._bytes_left = messages, size_bytes

    async def attach(self, producer: ServedProducer, *, fresh_name: bool, topic_epoch: int | None) -> bool:
        """Let a producer in; whether it may send at once or waits until its `promoted` is called.

        Raises TopicTerminatedError, ProducerBusyError, ProducerFencedError, or StorageFullError.
        """
        self._check_open()
        await self._detach_dead(producer.bound_name, producer.link)
        async with self._admission:
            self._check_open()
            await self._take_name(producer, fresh=fresh_name)
            if self._last_exclusive is None:
                self._last_exclusive = await self._context.epoch_of(self._name)
            stored = self._last_exclusive
            self._check_open()
            if topic_epoch is not None and topic_epoch < stored.number:
                raise ProducerFencedError(f"{self._name} has a newer exclusive producer")
            step = next_step(
                producer.options.mode,
                producers=len(self.attached),
                exclusive=self.exclusive is not None,
                waiting=len(self.waiting),
                foreign=any(_is_foreign(other, producer) for other in self.attached.values()),
            )
            self._prepare(producer)
            if step == "wait":
                self.waiting[producer.bound_name] = producer
                self._context.usage.add_producer(self._name, producer)
                return False
            if step == "fence":
                self._close_all(lambda other: not _is_foreign(other, producer))
            if step != "join":
                await self._own(producer, keep_epoch=topic_epoch == stored.number)
            self.attached[producer.bound_name] = producer
            self._context.usage.add_producer(self._name, producer)
            return True

    def _prepare(self, producer: ServedProducer) -> None:
        producer.leave = partial(self.detach, producer)
        producer.traffic = self.traffic
        if producer.options.deduplicate:
            known = known_sequences(self._log.sequences, producer.name, producer.options.principal)
            producer.recognise(known.own)
            producer.inherit(known.inherited)

    def detach(self, producer: ServedProducer) -> None:
        """Forget a producer; the entries that it sent are stored and answered all the same."""
        self._context.usage.discard(producer)
        producer.detached()
        if self.attached.get(producer.bound_name) is producer:
            del self.attached[producer.bound_name]
            self._messages_left += producer.messages_in
            self._chunked |= producer.chunks_in > 0
            self._bytes_left += producer.bytes_in
        elif self.waiting.get(producer.bound_name) is producer:
            del self.waiting[producer.bound_name]
        if self.exclusive is producer:
            self.exclusive = None
        if self.waiting and not self.attached and not self._sealed:
            self._context.spawn(self._promote())

    def inherit(self) -> None:
        """Recognise the messages that the segments before this one have stored, as the log knows them."""
        for producer in self._all():
            known = known_sequences(self._log.sequences, producer.name, producer.options.principal)
            producer.inherit(known.inherited)

    async def seal(self) -> None:
        """Seal the log once no producer can attach; the entries taken before are stored and answered."""
        async with self._admission:
            leaving, sealed = self._all(), False
            self.sealing = True
            for producer in leaving:
                # The connection drops later entries of the producer; its client repeats them to the children.
                producer.link.forget_producer(producer.id)
            try:
                await self._log.seal()
                await _all_idle(leaving)
                sealed = True
            finally:
                for producer in leaving:
                    self.detach(producer)
                    producer.close(sealed=sealed)
                self.sealing = False

    def renew(self, is_right: Callable[[ServedProducer], bool] = lambda _: False) -> None:
        """Disconnect the producers that are not right any more; their clients open them again."""
        self._close_all(lambda one: not is_right(one))

    def close(self, reason: str) -> None:
        """Disconnect all producers for good; later ones are refused with the reason."""
        self.closed = reason
        self._close_all()

    @property
    def _sealed(self) -> bool:
        return self.sealing or self._log.sealed

    def _check_open(self) -> None:
        if self.closed is not None:
            raise ServiceNotReadyError(f"{self._name} {self.closed}")
        if self._sealed:
            raise TopicTerminatedError(f"{self._name} is sealed")
        if self._log.full is not None:
            # Clients repeat this request after growing waits. Refused entries would end their connections.
            raise StorageFullError(f"{self._name}: {self._log.full}")

    def _all(self) -> list[ServedProducer]:
        return [*self.attached.values(), *self.waiting.values()]

    def _producer_named(self, name: str) -> ServedProducer | None:
        return self.attached.get(name) or self.waiting.get(name)

    async def _detach_dead(self, name: str, asking: ClientLink) -> None:
        """Detach the producer of a name if its peer is dead. This may take long, so it needs no lock."""
        known = self._producer_named(name)
        if known is not None and known.link is not asking and not await known.link.alive():
            self.detach(known)

    async def _take_name(self, producer: ServedProducer, *, fresh: bool) -> None:
        """Return when the producer may use its name, and the log knows all that was stored under it.

        ProducerBusyError if the name is new to the role of the producer, and another role uses or used it.
        """
        others = (one for one in self._all() if one.name == producer.name and _is_foreign(one, producer))
        if any(others) and self._is_new(producer):
            raise self._belongs_to_others(producer)
        self._free_name(producer)
        if not fresh:
            # Entries of an earlier producer of this name must be stored or refused before they count.
            await self._log.flush()
            if self._is_new(producer) and roles_have_stored(producer.name, self._known_names):
                raise self._belongs_to_others(producer)

    def _is_new(self, producer: ServedProducer) -> bool:
        """Return whether the producer has a role, and its role has stored nothing under its name."""
        principal = producer.options.principal
        return bool(principal) and not has_stored(producer.name, principal, self._known_names)

    @property
    def _known_names(self) -> tuple[Collection[str], ...]:
        """The names under which the log, or the logs before it, have stored sequence ids."""
        sequences = self._log.sequences
        return (sequences.own, *(piece.sequences for piece in sequences.inherited))

    def _belongs_to_others(self, producer: ServedProducer) -> ProducerBusyError:
        return ProducerBusyError(
            f"the producer name {producer.name} belongs to another role on {self._name}; choose another"
        )

    def _free_name(self, producer: ServedProducer) -> None:
        """Free the name if the producer that has it is this one before it connected again."""
        known = self._producer_named(producer.bound_name)
        if known is None:
            return
        same = known.link is producer.link and known.id == producer.id
        if not same or producer.options.epoch <= known.options.epoch:
            raise ProducerBusyError(f"a producer named {producer.name} is connected to {self._name}")
        self.detach(known)

    async def _own(self, producer: ServedProducer, *, keep_epoch: bool) -> None:
        last, principal = self._last_exclusive, producer.options.principal
        if not keep_epoch or last is None or is_foreign(last.principal, principal):
            # A role that comes with the epoch of another role would hide that the other one lost its access.
            self._last_exclusive = await self._context.next_epoch(self._name, principal)
        self.exclusive = producer

    def _close_all(self, is_closed: Callable[[ServedProducer], bool] = lambda _: True) -> None:
        """Close these producers, those that wait first, so that none of them is let in for another."""
        for other in [one for one in (*self.waiting.values(), *self.attached.values()) if is_closed(one)]:
            self.detach(other)
            other.close()

    async def _promote(self) -> None:
        async with self._admission:
            if self.attached or not self.waiting or self._sealed:
                return
            producer = self.waiting.pop(next(iter(self.waiting)))
            self.attached[producer.bound_name] = producer
            await self._own(producer, keep_epoch=False)
            producer.promoted()


def _is_foreign(other: ServedProducer, asking: ServedProducer) -> bool:
    return is_foreign(other.options.principal, asking.options.principal)


async def _all_idle(producers: Sequence[ServedProducer]) -> None:
    """Return once every one of them has answered all entries it took."""
    for producer in producers:
        idle = asyncio.Event()
        producer.when_idle(idle.set)
        await idle.wait()
