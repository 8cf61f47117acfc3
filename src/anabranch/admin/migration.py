"""`/admin/v2/scalable/.../migrate`: a classic topic becomes a scalable one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from anabranch.admin.calls import Call, route
from anabranch.admin.topics import classic_places
from anabranch.controller.decide.places import Place
from anabranch.controller.lifecycle import Migration
from anabranch.errors import ConflictError, TopicExistsError, TopicNotFoundError
from anabranch.metadata.records import SubscriptionKind


async def migrate(call: Call) -> None:
    """Continue a classic topic as a scalable one; consumers read its messages first."""
    places = await call.once("record", lambda: _record_migration(call))
    await call.broker.controllers.lead_new(call.topic("topic"))
    await _adopt_latecomers(call, places)


async def _record_migration(call: Call) -> Sequence[Place]:
    """Check and mark the classic topic and record the scalable one; returns the places of the logs."""
    name, classic, force = call.topic("topic"), call.topic("persistent"), call.flag("force")
    if await call.topics.find(name) is not None:
        raise TopicExistsError(f"{name} is a scalable topic already")
    places = await classic_places(call)
    for place in places:
        await call.logs.make(place)
        old = await call.logs.old_clients(place)
        if old and not force:
            raise ConflictError(
                f"{place.name} has clients that cannot follow it: {', '.join(old)}; close them, or use force"
            )
    kinds = await _subscribed_everywhere(call, places)
    record = await call.topics.find_classic(classic)
    await call.broker.classic.mark_migrated(classic)
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
    """The subscriptions of all classic logs with their kinds; each is created where it is missing."""
    kinds: dict[str, SubscriptionKind] = {}
    for place in places:
        for subscription, kind in (await call.logs.kinds(place)).items():
            kinds[subscription] = "QUEUE" if "QUEUE" in (kind, kinds.get(subscription)) else "STREAM"
    for place in places:
        for subscription in sorted(kinds.keys() - (await call.logs.subscriptions(place)).keys()):
            await call.logs.create_subscription(place, subscription, "latest")
    return kinds


ROUTES = [route("POST", "/admin/v2/scalable/{tenant}/{namespace}/{topic}/migrate", migrate)]
