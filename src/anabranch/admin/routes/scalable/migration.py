"""The migration of a classic topic: its logs become the first, sealed segments of a scalable topic.

The engine knows the logs: those that these brokers serve, or topics of Apache Pulsar.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from anabranch.admin.http.calls import Call
from anabranch.admin.routes.topics.topics import classic_places
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.engine.port import ClassicLogs
from anabranch.controller.lifecycle import Migration
from anabranch.errors import ConflictError, TopicExistsError, TopicNotFoundError
from anabranch.metadata.records import SubscriptionKind
from anabranch.model.names import Place, TopicName


class ServedClassicLogs:
    """The logs of classic topics that these brokers serve, as a migration needs them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.old_clients = call.logs.old_clients
        self.kinds = call.logs.kinds
        self.create_subscription = call.logs.create_subscription
        self.mark_migrated = call.broker.classic.mark_migrated

    async def places(self, name: TopicName) -> Sequence[Place]:
        return await classic_places(self._call)

    async def check_migratable(self, place: Place) -> None:
        """Create the log if it was never used, and refuse a compacted one.

        The segment of a compacted log would lack the messages that only compacted readers see.
        """
        await self._call.logs.make(place)
        if await self._call.logs.is_compacted(place):
            raise ConflictError(
                f"{place.name} is compacted, and scalable topics are not. "
                f"Delete its compactionThreshold and its subscription {COMPACTION} first"
            )


async def migrate(call: Call) -> None:
    """Continue a classic topic as a scalable one; consumers read its messages first."""
    places = await call.once("record", lambda: _record(call))
    await call.broker.controllers.lead_new(call.topic("topic"))
    await _adopt_latecomers(call, places)


def _logs(call: Call) -> ClassicLogs:
    return call.broker.engine.classic_logs(ServedClassicLogs(call))


async def _record(call: Call) -> Sequence[Place]:
    """Check and mark the classic topic and record the scalable one; returns the places of the logs."""
    name, classic = call.topic("topic"), call.topic("persistent")
    if await call.topics.find(name) is not None:
        raise TopicExistsError(f"{name} is a scalable topic already")
    logs = _logs(call)
    places = await logs.places(classic)
    for place in places:
        await logs.check_migratable(place)
        old = await logs.old_clients(place)
        if old and not call.flag("force"):
            raise ConflictError(
                f"{place.name} has clients that cannot follow it: {', '.join(old)}; close them, or use force"
            )
    kinds = await _subscribed_everywhere(call, places)
    record = await call.topics.find_classic(classic)
    await logs.mark_migrated(classic)
    migration = Migration(places, kinds, {} if record is None else record.properties)
    await call.broker.controllers.record_migration(name, migration)
    return places


async def _adopt_latecomers(call: Call, places: Sequence[Place]) -> None:
    """Register the subscriptions that clients created on the classic logs during the migration."""
    # Retention may have removed the sealed logs already.
    with suppress(TopicNotFoundError):
        kinds = await _subscribed_everywhere(call, places)
        known = await call.topics.load_subscriptions(call.topic("topic"))
        for subscription in sorted(kinds.keys() - known.keys()):
            await (await call.leader()).ensure_subscription(subscription, kinds[subscription], "earliest")


async def _subscribed_everywhere(call: Call, places: Sequence[Place]) -> dict[str, SubscriptionKind]:
    """Return the subscriptions of all classic logs with their kinds; each is created where it is missing."""
    kinds: dict[str, SubscriptionKind] = {}
    logs = _logs(call)
    found = {place: await logs.kinds(place) for place in places}
    for named in found.values():
        for subscription, kind in named.items():
            kinds[subscription] = "QUEUE" if "QUEUE" in (kind, kinds.get(subscription)) else "STREAM"
    for place, named in found.items():
        for subscription in sorted(kinds.keys() - named.keys()):
            await logs.create_subscription(place, subscription, "latest")
    return kinds
