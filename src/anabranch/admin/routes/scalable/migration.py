"""The migration of a classic topic: its logs become the first, sealed segments of a scalable topic.

The logs are those of this cluster of brokers or, behind a data plane, topics of Apache Pulsar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from anabranch.admin.http.calls import Call
from anabranch.admin.routes.topics.topics import classic_places
from anabranch.broker.catalog.classic_topics import log_names
from anabranch.broker.cluster.data_plane import DataPlane
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.controller.lifecycle import Migration
from anabranch.errors import ConflictError, TopicExistsError, TopicNotFoundError
from anabranch.metadata.records import SubscriptionKind
from anabranch.model.names import Place


class ClassicLogs(Protocol):
    """The logs of a classic topic, as far as a migration needs them."""

    async def old_clients(self, place: Place) -> Sequence[str]:
        """The names of connected clients that would not follow the log to a scalable topic."""

    async def kinds(self, place: Place) -> Mapping[str, str]:
        """The kind of each durable subscription: STREAM or QUEUE."""

    async def create_subscription(self, place: Place, subscription: str, start: object) -> None: ...


async def migrate(call: Call) -> None:
    """Continue a classic topic as a scalable one; consumers read its messages first."""
    places = await call.once("record", lambda: _record(call))
    await call.broker.controllers.lead_new(call.topic("topic"))
    await _adopt_latecomers(call, places)


def _logs(call: Call) -> ClassicLogs:
    return call.logs if call.broker.data_plane is None else call.broker.data_plane


async def _check_whole(call: Call, place: Place) -> None:
    """Refuse a compacted log: its segment would lack the messages that only compacted readers see."""
    if await call.logs.is_compacted(place):
        raise ConflictError(
            f"{place.name} is compacted, and scalable topics are not. "
            f"Delete its compactionThreshold and its subscription {COMPACTION} first"
        )


async def _record(call: Call) -> Sequence[Place]:
    """Check and mark the classic topic and record the scalable one; returns the places of the logs."""
    name, classic = call.topic("topic"), call.topic("persistent")
    if await call.topics.find(name) is not None:
        raise TopicExistsError(f"{name} is a scalable topic already")
    plane = call.broker.data_plane
    places = await classic_places(call) if plane is None else await _places_at(call, plane)
    for place in places:
        if plane is None:
            await call.logs.make(place)
            await _check_whole(call, place)
        old = await _logs(call).old_clients(place)
        if old and not call.flag("force"):
            raise ConflictError(
                f"{place.name} has clients that cannot follow it: {', '.join(old)}; close them, or use force"
            )
    kinds = await _subscribed_everywhere(call, places)
    record = await call.topics.find_classic(classic)
    if plane is None:
        await call.broker.classic.mark_migrated(classic)
    migration = Migration(places, kinds, {} if record is None else record.properties)
    await call.broker.controllers.record_migration(name, migration)
    return places


async def _places_at(call: Call, plane: DataPlane) -> list[Place]:
    """The topics of the data plane that a classic topic consists of; they are in no store of ours."""
    name = call.topic("persistent")
    return [Place(part, 0) for part in log_names(name, await plane.partitions(name))]


async def _adopt_latecomers(call: Call, places: Sequence[Place]) -> None:
    """Register the subscriptions that clients created on the classic logs during the migration."""
    # Retention may have removed the sealed logs already.
    with suppress(TopicNotFoundError):
        kinds = await _subscribed_everywhere(call, places)
        known = await call.topics.load_subscriptions(call.topic("topic"))
        for subscription in sorted(kinds.keys() - known.keys()):
            await (await call.leader()).ensure_subscription(subscription, kinds[subscription], "earliest")


async def _subscribed_everywhere(call: Call, places: Sequence[Place]) -> dict[str, SubscriptionKind]:
    """The subscriptions of all classic logs with their kinds; each is created where it is missing."""
    kinds: dict[str, SubscriptionKind] = {}
    found = {place: await _logs(call).kinds(place) for place in places}
    for named in found.values():
        for subscription, kind in named.items():
            kinds[subscription] = "QUEUE" if "QUEUE" in (kind, kinds.get(subscription)) else "STREAM"
    for place, named in found.items():
        for subscription in sorted(kinds.keys() - named.keys()):
            await _logs(call).create_subscription(place, subscription, "latest")
    return kinds
