"""The controller's port to the segments in the stores of this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.catalog.side_logs import spilled, spilled_bytes, whole_backlog
from anabranch.broker.catalog.trimming import trim
from anabranch.broker.cluster.drain_events import DrainEvents
from anabranch.broker.serving.log.served_log import ServedLog, troubles_of
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.controller.decide.admission import Roster
from anabranch.controller.decide.consistency import LogState
from anabranch.controller.ports.segments import Aim, Drained, SegmentLoad
from anabranch.errors import StaleTermError
from anabranch.metadata.records import InitialPosition
from anabranch.model.acks import bits_from_words
from anabranch.model.drains import Ranges
from anabranch.model.ids import Position
from anabranch.model.inheritance import Pieces, handed_on
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import FULL


class LocalSegments:
    """Carries out the requests of controllers."""

    def __init__(self, logs: ServedLogs, drains: DrainEvents) -> None:
        self._logs = logs
        self._drains = drains
        # In memory only: after a restart of this process, topics are led in newer terms.
        self._terms: dict[TopicName, int] = {}

    async def create(self, place: Place, subscriptions: Mapping[str, InitialPosition], term: int) -> LogState:
        self._check(place, term)
        known = self._logs.get(place.name) is not None
        made = await self._logs.make(place.name, place.store)
        # Concurrently, so that one commit makes all subscriptions durable.
        await asyncio.gather(
            *(
                made.subscription(subscription, durable=True, ordinal=_ordinal(made, start))
                for subscription, start in subscriptions.items()
            )
        )
        if not known:
            return "created"
        return "sealed" if made.log.sealed else "open"

    async def seal(self, place: Place, term: int) -> Pieces:
        self._check(place, term)
        found = self._logs.require(place.name)
        await found.seal()
        # A classic topic holds keys of the whole ring, although its segment has a part of it in the layout.
        whole = FULL if place.name.segment is None else place.name.segment.range
        return handed_on(whole, found.log.sequences.own, found.log.sequences.inherited)

    async def inherit(self, place: Place, pieces: Pieces, term: int) -> None:
        self._check(place, term)
        await self._logs.require(place.name).inherit(pieces)

    async def trim(self, place: Place, keep_bytes: int, term: int) -> None:
        self._check(place, term)
        found = self._logs.require(place.name)
        with found.use.call():
            await trim(found.log, found.log.extent.ordinal_keeping(keep_bytes))
            for subscription in tuple(found.subscriptions.values()):
                subscription.pass_trimmed()

    async def delete(self, place: Place, term: int) -> None:
        self._check(place, term)
        await self._logs.drop(place.name)

    async def create_subscription(
        self, place: Place, subscription: str, start: InitialPosition, term: int
    ) -> None:
        self._check(place, term)
        found = self._logs.require(place.name)
        await found.subscription(subscription, durable=True, ordinal=_ordinal(found, start))

    async def delete_subscription(self, place: Place, subscription: str, term: int) -> None:
        self._check(place, term)
        found = self._logs.get(place.name)
        if found is not None:
            await found.unsubscribe(subscription)

    async def seek(self, place: Place, subscription: str, timestamp_ms: int, term: int) -> None:
        self._check(place, term)
        known = self._logs.require(place.name).subscriptions.get(subscription)
        if known is not None:
            await known.seek(known.log.extent.ordinal_at_time(timestamp_ms))

    async def seek_to(self, place: Place, subscription: str, aim: Aim, term: int) -> None:
        self._check(place, term)
        known = self._logs.require(place.name).subscriptions.get(subscription)
        if known is not None:
            ordinal = known.log.extent.ordinal_of(Position(aim.ledger, aim.entry))
            await known.seek(ordinal, bits_from_words(aim.ack_set) if aim.ack_set else None)

    async def skip_all(self, place: Place, subscription: str, term: int) -> None:
        self._check(place, term)
        known = self._logs.require(place.name).subscriptions.get(subscription)
        if known is not None:
            await known.seek(known.log.extent.next_ordinal)

    async def restrict(self, place: Place, subscription: str, roster: Roster, term: int) -> None:
        self._check(place, term)
        known = self._subscription(place, subscription)
        if known is not None:
            known.restrict(roster)

    async def consumers(self, place: Place, subscription: str) -> int:
        self._logs.stores.check(place.store)
        found = self._logs.loaded(place.name)
        known = None if found is None else found.subscriptions.get(subscription)
        return 0 if known is None else len(known.consumers)

    async def backlog(self, place: Place, subscription: str) -> int | None:
        self._logs.stores.check(place.store)
        log = self._logs.stores.get(str(place.name))
        cursor = None if log is None else log.cursors.get(subscription)
        if log is None or cursor is None:
            return None
        stores = self._logs.stores
        if not cursor.acks.pending_count(log.extent.next_ordinal) + spilled(stores, cursor).entries:
            # The leader acts on an empty backlog, so the acknowledgements must survive a crash.
            await cursor.flush()
        return whole_backlog(stores, log, cursor)

    async def drained(self, place: Place, subscription: str) -> Ranges | None:
        self._logs.stores.check(place.store)
        known = self._logs.require(place.name).subscriptions.get(subscription)
        return None if known is None else await known.drained()

    async def load(self, place: Place) -> SegmentLoad:
        self._logs.stores.check(place.store)
        log = self._logs.stores.get(str(place.name))
        if log is None:
            return SegmentLoad()
        stores = self._logs.stores
        waiting = max((whole_backlog(stores, log, cursor) for cursor in log.cursors.values()), default=0)
        size_bytes = log.extent.size_bytes + spilled_bytes(stores, log)
        # A look of the leader does not count as a use, so that unused logs stay unloaded.
        found = self._logs.loaded(place.name)
        if found is None:
            return SegmentLoad(
                backlog_messages=waiting,
                size_bytes=size_bytes,
                troubles=troubles_of(log),
                next_index=log.extent.next_index,
            )
        found.observed_s = asyncio.get_running_loop().time()
        messages_in, bytes_in, messages_out, bytes_out = found.rates()
        return SegmentLoad(
            messages_in,
            bytes_in,
            messages_out,
            bytes_out,
            waiting,
            size_bytes,
            found.troubles(),
            found.clients,
            found.traffic(),
            log.extent.next_index,
        )

    def on_drained(self, topic: TopicName, drained: Callable[[Drained], None]) -> Callable[[], None]:
        return self._drains.listen(topic, drained)

    def _subscription(self, place: Place, subscription: str) -> Subscription | None:
        self._logs.stores.check(place.store)
        found = self._logs.get(place.name)
        return None if found is None else found.subscriptions.get(subscription)

    def _check(self, place: Place, term: int) -> None:
        topic = place.name.partitioned_topic.topic
        newest = self._terms.get(topic, 0)
        if term < newest:
            raise StaleTermError(f"{topic} is led in term {newest} now, not in term {term}")
        self._logs.stores.check(place.store)
        self._terms[topic] = term


def _ordinal(segment: ServedLog, start: InitialPosition) -> int:
    return segment.log.extent.first_ordinal if start == "earliest" else segment.log.extent.next_ordinal
