"""The logs of all brokers, as admin calls use them: classic topics, and the logs of segments.

`Logs` is a port like `Segments`: every verb takes a place, and the broker that owns the place carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from anabranch.broker.broker import Broker
from anabranch.broker.browsing import lanes as lane_reports
from anabranch.broker.browsing import stats, stored_messages
from anabranch.broker.browsing.backlogs import (
    analyze,
    drop_old,
    replace_properties,
    size_after,
    skip_next,
    truncate,
)
from anabranch.broker.browsing.noted_lanes import noted_lanes
from anabranch.broker.browsing.positions import aim_after, aim_from, subscribe_from
from anabranch.broker.browsing.positions import id_at_time as id_at_time_of
from anabranch.broker.browsing.positions import last_id as last_id_of
from anabranch.broker.browsing.stats import WHOLE_STATS, StatsRequest
from anabranch.broker.browsing.stored_messages import EntryBody
from anabranch.broker.cluster.remote_calls import Port
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.skipping import expire_up_to, skip_older
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.errors import ConflictError, SubscriptionNotFoundError
from anabranch.model.ids import Position
from anabranch.model.names import Place
from anabranch.model.reports.logs import (
    BacklogAnalysis,
    CompactionStatus,
    InternalStats,
    MessageIdBody,
    TopicStats,
)
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED

TARGET: Final = "logs"

Json = dict[str, Any]
Listed = dict[str, object]
"""One element of a list in JSON."""


class Logs:
    """The logs in the stores of this broker; the log of a classic topic is created if it was not used yet."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def _log(self, place: Place) -> ServedLog:
        self._broker.stores.check(place.store)
        found = self._broker.logs.get(place.name)
        if found is not None:
            return found
        if place.name.is_segment or await self._broker.classic.is_migrated(place.name):
            # Only the leader of the topic creates segments.
            return self._broker.logs.require(place.name)
        return await self._broker.logs.make(place.name, place.store)

    async def _subscription(self, place: Place, subscription: str) -> Subscription:
        return (await self._subscribed(place, subscription))[1]

    async def _subscribed(self, place: Place, subscription: str) -> tuple[ServedLog, Subscription]:
        log = await self._log(place)
        found = log.subscriptions.get(subscription)
        if found is None:
            raise SubscriptionNotFoundError(f"{place.name} has no subscription {subscription!r}")
        return log, found

    async def make(self, place: Place) -> None:
        await self._log(place)

    async def drop(self, place: Place) -> None:
        """Disconnect the clients of the log and remove it; an absent log is fine."""
        self._broker.stores.check(place.store)
        await self._broker.logs.drop(place.name)

    async def check_unused(self, place: Place) -> None:
        """Raise ConflictError while the log has producers or consumers, as Pulsar does."""
        self._broker.stores.check(place.store)
        found = self._broker.logs.get(place.name)
        if found is None:
            return
        if found.producers.attached:
            raise ConflictError(f"{place.name} has connected producers")
        used = [name for name, subscription in found.subscriptions.items() if subscription.consumers]
        if used:
            raise ConflictError(f"{place.name} has connected consumers of {', '.join(used)}")

    async def kinds(self, place: Place) -> Mapping[str, str]:
        """Return the kind of each durable subscription: STREAM or QUEUE."""
        log = await self._log(place)
        return {
            name: "QUEUE" if subscription.kind == pb.CommandSubscribe.Shared else "STREAM"
            for name, subscription in sorted(log.subscriptions.items())
            if subscription.durable
        }

    async def old_clients(self, place: Place) -> Sequence[str]:
        """Return the names of connected clients that would not follow the log to a scalable topic."""
        log = await self._log(place)
        consumers = [consumer for sub in log.subscriptions.values() for consumer in sub.consumers]
        clients: list[ServedProducer | ServedConsumer] = [*log.producers.attached.values(), *consumers]
        return sorted(client.name for client in clients if client.options.metadata.get(MANAGED) != "true")

    async def seal(self, place: Place) -> MessageIdBody:
        """Seal the log; returns the id of its last message."""
        log = await self._log(place)
        await log.seal()
        return last_id_of(log)

    async def compact(self, place: Place) -> None:
        """Begin to compact the log; ConflictError while a compaction runs."""
        log = await self._log(place)
        log.compacting.start(self._broker.spawn, log.use, self._broker.clock.wall_ms)

    async def compaction_status(self, place: Place) -> CompactionStatus:
        compacting = (await self._log(place)).compacting
        return CompactionStatus(status=compacting.status, last_error=compacting.error or "")

    async def is_compacted(self, place: Place) -> bool:
        """Return whether the log has a cursor of compaction, though no compaction may have run yet."""
        return COMPACTION in (await self._log(place)).log.cursors

    async def trim(self, place: Place) -> None:
        """Drop the acknowledged entries that retention does not keep, by whole ledgers."""
        retention = self._broker.quotas.book.policies.of(place.name).retention
        await drop_old(await self._log(place), retention, self._broker.clock.wall_ms())

    async def truncate(self, place: Place) -> None:
        """Drop all entries, by whole ledgers, acknowledged or not."""
        await truncate(await self._log(place))

    async def unload(self, place: Place) -> None:
        """Disconnect the clients of the log, and load it again when one comes back."""
        self._broker.stores.check(place.store)
        self._broker.logs.reload(place.name)

    async def last_id(self, place: Place) -> MessageIdBody:
        return last_id_of(await self._log(place))

    async def size_after(self, place: Place, last: MessageIdBody) -> int:
        """Return the stored bytes behind a message."""
        return size_after((await self._log(place)).log, last)

    async def stats(self, place: Place, wanted: StatsRequest = WHOLE_STATS) -> TopicStats:
        log = await self._log(place)
        return stats.topic_stats(log, stats.facts_of(self._broker, place.name), wanted)

    async def internal_stats(self, place: Place) -> InternalStats:
        return stats.internal_stats(await self._log(place))

    async def subscriptions(self, place: Place) -> Mapping[str, int]:
        """Return the number of consumers of each subscription."""
        found = (await self._log(place)).subscriptions
        return {name: len(subscription.consumers) for name, subscription in found.items()}

    async def create_subscription(self, place: Place, subscription: str, start: object) -> None:
        log = await self._log(place)
        await self._broker.quotas.admit_classic(log, subscription)
        await subscribe_from(log, subscription, start)

    async def delete_subscription(self, place: Place, subscription: str) -> None:
        await (await self._log(place)).unsubscribe(subscription)

    async def seek(self, place: Place, subscription: str, to: object) -> None:
        """Move to "earliest", "latest", None (latest) or a message id."""
        found = await self._subscription(place, subscription)
        await found.seek(*aim_from(found.backing.places, to))

    async def seek_to_time(self, place: Place, subscription: str, timestamp_ms: int) -> None:
        found = await self._subscription(place, subscription)
        await found.seek(await found.backing.ordinal_at_time(timestamp_ms))

    async def entry(self, place: Place, ledger: int, entry: int) -> EntryBody:
        """Return one stored entry; NotFoundError if there is none."""
        log = await self._log(place)
        with log.use.call():
            return await stored_messages.entry_at(log, Position(ledger, entry))

    async def pending_entry(self, place: Place, subscription: str, number: int) -> EntryBody:
        """Return an entry of a backlog by its number, from 1; raises NotFoundError after the end."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            return await stored_messages.pending_entry(log, found, number)

    async def counted_entry(self, place: Place, number: int, *, from_end: bool) -> EntryBody:
        """Return an entry by its number, from 1, counted from the first or the last one; or NotFoundError."""
        log = await self._log(place)
        with log.use.call():
            return await stored_messages.counted_entry(log, number, from_end=from_end)

    async def id_at_time(self, place: Place, timestamp_ms: int) -> MessageIdBody:
        """Return the id of the first message published at or after a time, else that of the last message."""
        return id_at_time_of(await self._log(place), timestamp_ms)

    async def expire(self, place: Place, subscription: str, before_ms: int) -> None:
        """Acknowledge the messages that were published before that time."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            await skip_older(found, before_ms)

    async def expire_all(self, place: Place, before_ms: int) -> None:
        """As `expire`, for every durable subscription."""
        log = await self._log(place)
        with log.use.call():
            for found in [one for one in log.subscriptions.values() if one.durable]:
                await skip_older(found, before_ms)

    async def expire_up_to(self, place: Place, subscription: str, to: object) -> None:
        """Acknowledge the messages up to a message id and that one too; without it if it is excluded."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            await expire_up_to(found, *aim_after(log.log.extent, to))

    async def properties(self, place: Place, subscription: str) -> Mapping[str, str]:
        """Return the properties that applications gave to a subscription."""
        return dict((await self._subscription(place, subscription)).cursor.properties)

    async def set_properties(self, place: Place, subscription: str, given: Mapping[str, str]) -> None:
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            await replace_properties(found, given)

    async def analyze(self, place: Place, subscription: str, start: object) -> BacklogAnalysis:
        """Count the backlog from a message id on, or all of it."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            return await analyze(log, found, start)

    async def skip(self, place: Place, subscription: str, count: int) -> int:
        """Acknowledge the next `count` entries; returns how many of them the log does not have."""
        log, found = await self._subscribed(place, subscription)
        return await skip_next(log, found, count)

    async def lanes(self, place: Place, subscription: str, limit: int) -> list[Listed]:
        """Return the lanes of a subscription, the largest first, at most `limit`."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            return await lane_reports.list_lanes(log, found, limit)

    async def lane_figures(self, place: Place) -> dict[str, dict[str, int]]:
        """Return for each subscription the number of its lanes, and the entries, messages and bytes in them.

        This does not count as a use, so that unused logs stay unloaded. They have no figures.
        """
        self._broker.stores.check(place.store)
        log = self._broker.logs.loaded(place.name)
        found = {} if log is None else log.subscriptions
        return {name: lane_reports.lane_figures(subscription) for name, subscription in found.items()}

    async def hot_spots(self, place: Place, limit: int) -> Json:
        """Return the `limit` keys with most traffic, and the `limit` largest lanes of each subscription.

        This does not count as a use; of an unloaded log only the notes of its cursors are read.
        """
        self._broker.stores.check(place.store)
        log = self._broker.logs.loaded(place.name)
        if log is None:
            return {"keys": [], "lanes": noted_lanes(self._broker.stores.get(str(place.name)), limit)}
        with log.use.call():
            return await lane_reports.hot_spots(log, limit)

    async def lane(self, place: Place, subscription: str, slot: int) -> Json:
        """Return one lane; NotFoundError if the slot has none."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            return await lane_reports.show_lane(log, found, slot)

    async def peek_lane(self, place: Place, subscription: str, slot: int, count: int) -> list[Listed]:
        """Return the first messages that wait in a lane, which stay there."""
        log, found = await self._subscribed(place, subscription)
        bytes_max = self._broker.config.max_message_bytes
        with log.use.call():
            return await lane_reports.peek_lane(found, slot, count, bytes_max)

    async def release_lane(self, place: Place, subscription: str, slot: int) -> None:
        """Let a parked or paused slot go on, durably."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            await lane_reports.release_lane(found, slot)

    async def skip_lane(self, place: Place, subscription: str, slot: int, count: int | None) -> int:
        """Acknowledge the first `count` entries of a lane, or all of them, durably; returns how many."""
        log, found = await self._subscribed(place, subscription)
        with log.use.call():
            return await lane_reports.skip_lane(found, slot, count)


LOGS: Final = Port(Logs)


def serve_logs(broker: Broker) -> Logs:
    """Let other brokers call the logs of this broker; returns the port over all brokers."""
    return broker.links.serve(TARGET, LOGS, Logs(broker))
