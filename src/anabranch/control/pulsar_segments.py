"""The segments port over Apache Pulsar: a segment is a `persistent://` topic of the cluster.

Admin calls have no conditions, and a late call of a former leader takes effect. So a leader only carries out
what its records have decided for good: an intent names children that nothing else will use, a seal is never
undone, and a deleted segment is no longer in any layout. `LeasedAdmin` refuses calls of a process that
may have lost its session. Pulsar keeps no roster: an exclusive subscription has one consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from anabranch.control.cluster_admin import ClusterAdmin, PulsarStats, PulsarSubscription
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.quiet_periods import QuietPeriods
from anabranch.control.topic_marks import READY_PROPERTY, NewTopics, marks_of
from anabranch.controller.decide.admission import Roster
from anabranch.controller.decide.consistency import LogState
from anabranch.controller.ports.segments import Aim, Drained, SegmentLoad
from anabranch.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from anabranch.metadata.records import InitialPosition
from anabranch.model.drains import ALL, Ranges
from anabranch.model.inheritance import Pieces
from anabranch.model.names import Place, TopicName
from anabranch.model.pulsar_names import pulsar_topic

SEAL_CHECK_S: Final = 0.5
"""How long appends that were under way at a seal may take before the topic is unloaded."""

SEAL_CHECKS: Final = 5

EARLIEST_ENTRY: Final = (-1, -1)
"""Ledger and entry of Pulsar's position before all messages."""

FOR_EVER: Final = NewTopics()


class PulsarSegments:
    """All segments of a cluster, by its admin API."""

    def __init__(
        self,
        admin: ClusterAdmin,
        polls: DrainPolls,
        *,
        made: NewTopics = FOR_EVER,
        quiet: QuietPeriods | None = None,
    ) -> None:
        self._admin = admin
        self._polls = polls
        self._made = made
        self._quiet = quiet or QuietPeriods()
        polls.is_drained = self._is_drained

    async def create(self, place: Place, subscriptions: Mapping[str, InitialPosition], term: int) -> LogState:
        topic = pulsar_topic(place.name)
        state: LogState = "open"
        try:
            found = await self._admin.internals(topic)
            missing = {sub: start for sub, start in subscriptions.items() if sub not in found.cursors}
            if found.is_terminated:
                state = "sealed"
        except TopicNotFoundError:
            state, missing = "created", dict(subscriptions)
            await self._admin.create(topic, marks_of(place.name, self._made.installation))
        try:
            if state != "sealed" and topic != place.name:
                await self._make_ready(topic, known=state == "open")
            for sub, start in sorted(missing.items()):
                if state == "created":
                    await self._admin.create_subscription(topic, sub, earliest=start == "earliest")
                else:
                    await self.create_subscription(place, sub, start, term)
        except TopicNotFoundError as error:
            # A broker other than the owner may have answered, and may not know the new topic yet.
            raise ServiceNotReadyError(f"{topic} is not known to all brokers of Pulsar yet") from error
        return state

    async def _make_ready(self, topic: TopicName, *, known: bool) -> None:
        """Set the policies of a segment's topic, unless an earlier leader has set them all."""
        if not known or (await self._admin.properties(topic)).get(READY_PROPERTY) != "true":
            await self._admin.retain(topic, self._made.retention_minutes)
            await self._admin.recognise_repetitions(topic)
            await self._admin.set_properties(topic, {READY_PROPERTY: "true"})

    async def seal(self, place: Place, term: int) -> Pieces:
        topic = pulsar_topic(place.name)
        await self._admin.terminate(topic)
        # Appends that were under way when a topic was terminated may never complete and keep it fenced.
        for _ in range(SEAL_CHECKS):
            if not (await self._admin.internals(topic)).pending_add_entries_count:
                break
            await asyncio.sleep(SEAL_CHECK_S / SEAL_CHECKS)
        else:
            await self._admin.unload(topic)
        return ()

    async def inherit(self, place: Place, pieces: Pieces, term: int) -> None:
        """Do nothing: a producer finds out by reading what a sealed segment has stored of its messages."""

    async def trim(self, place: Place, keep_bytes: int, term: int) -> None:
        """Do nothing: Pulsar drops messages of an active segment by the time that its topic retains them."""

    async def delete(self, place: Place, term: int) -> None:
        await self._admin.delete(pulsar_topic(place.name))

    async def create_subscription(
        self, place: Place, subscription: str, start: InitialPosition, term: int
    ) -> None:
        topic, earliest = pulsar_topic(place.name), start == "earliest"
        async with self._quiet.call(topic):
            made = await self._admin.create_subscription(topic, subscription, earliest=earliest)
            if earliest and not made and await self._misses_entries(topic, subscription):
                # Pulsar creates a subscription at the end and moves it then. An earlier attempt may have
                # failed between the two; no consumer has used the subscription since.
                await self._admin.seek_to_entry(topic, subscription, *EARLIEST_ENTRY)

    async def _misses_entries(self, topic: TopicName, subscription: str) -> bool:
        """Whether a subscription that was never used begins behind the first entry."""
        found = (await self._admin.stats(topic, precise=True)).subscriptions.get(subscription)
        # In this order: entries that arrive meanwhile may only cause a move that changes nothing. Pulsar does
        # not finish the move of a subscription of a sealed topic without entries.
        entries = (await self._admin.internals(topic)).number_of_entries
        return found is not None and found.msg_backlog < entries

    async def delete_subscription(self, place: Place, subscription: str, term: int) -> None:
        topic = pulsar_topic(place.name)
        async with self._quiet.call(topic):
            await self._admin.delete_subscription(topic, subscription)

    async def seek(self, place: Place, subscription: str, timestamp_ms: int, term: int) -> None:
        topic = pulsar_topic(place.name)
        if await self._has(topic, subscription):
            async with self._quiet.call(topic):
                await self._admin.seek_to_time(topic, subscription, timestamp_ms)

    async def seek_to(self, place: Place, subscription: str, aim: Aim, term: int) -> None:
        check_aim(aim.ack_set)
        topic = pulsar_topic(place.name)
        if await self._has(topic, subscription):
            async with self._quiet.call(topic):
                await self._admin.seek_to_entry(topic, subscription, aim.ledger, aim.entry)

    async def skip_all(self, place: Place, subscription: str, term: int) -> None:
        topic = pulsar_topic(place.name)
        if await self._has(topic, subscription):
            async with self._quiet.call(topic):
                await self._admin.skip_all(topic, subscription)

    async def _has(self, topic: TopicName, subscription: str) -> bool:
        """Whether a topic has a subscription, when no late call can change that; TopicNotFoundError."""
        await self._quiet.end(topic)
        return subscription in (await self._admin.internals(topic)).cursors

    async def restrict(self, place: Place, subscription: str, roster: Roster, term: int) -> None:
        """Do nothing: the next reader of an exclusive subscription waits until the former has left it."""

    async def consumers(self, place: Place, subscription: str) -> int:
        found = await self._subscription(place, subscription)
        return 0 if found is None else len(found.consumers)

    async def backlog(self, place: Place, subscription: str) -> int | None:
        found = await self._subscription(place, subscription)
        return None if found is None else found.msg_backlog

    async def _subscription(self, place: Place, subscription: str) -> PulsarSubscription | None:
        try:
            return (await self._admin.stats(pulsar_topic(place.name))).subscriptions.get(subscription)
        except TopicNotFoundError:
            return None

    async def drained(self, place: Place, subscription: str) -> Ranges | None:
        drained = await self._is_drained(place.name, subscription)
        if drained is None:
            return None
        if not drained:
            self._polls.add(place.name, subscription)
        return ALL if drained else ()

    async def _is_drained(self, segment: TopicName, subscription: str) -> bool | None:
        """Whether a sealed segment is acknowledged to its end; None without the subscription."""
        topic = pulsar_topic(segment)
        if not (await self._admin.internals(topic)).is_terminated:
            return False
        found = (await self._admin.stats(topic, precise=True)).subscriptions.get(subscription)
        return None if found is None else found.msg_backlog == 0

    async def load(self, place: Place) -> SegmentLoad:
        try:
            return _load_of(await self._admin.stats(pulsar_topic(place.name)))
        except TopicNotFoundError:
            return SegmentLoad()

    def on_drained(self, topic: TopicName, drained: Callable[[Drained], None]) -> Callable[[], None]:
        return self._polls.listen(topic, drained)


def check_aim(ack_set: Sequence[int]) -> None:
    """Raise NotAllowedError for a position inside a batch, which `ack_set` names."""
    if ack_set:
        raise NotAllowedError("Apache Pulsar moves a subscription to the first message of a batch only")


def _load_of(stats: PulsarStats) -> SegmentLoad:
    consumers = sum(len(subscription.consumers) for subscription in stats.subscriptions.values())
    return SegmentLoad(
        msg_rate_in=stats.msg_rate_in,
        bytes_rate_in=stats.msg_throughput_in,
        msg_rate_out=stats.msg_rate_out,
        bytes_rate_out=stats.msg_throughput_out,
        backlog_messages=max((one.msg_backlog for one in stats.subscriptions.values()), default=0),
        size_bytes=stats.storage_size,
        clients=len(stats.publishers) + consumers,
    )
