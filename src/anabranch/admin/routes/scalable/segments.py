"""`/admin/v2/segments`: requests about one segment, which Pulsar's brokers send each other.

Only the leader of a topic creates, seals and removes segments, so these calls raise ConflictError until that
is done. A request about a subscription applies to all segments of the topic, which keeps the order of keys.
"""

from __future__ import annotations

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.topics import TopicStats
from anabranch.admin.routes.scalable.subscriptions import remove_subscription
from anabranch.controller.decide.operation import segment_name
from anabranch.errors import (
    ConflictError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.layout import Segment
from anabranch.model.names import Place, SegmentDescriptor
from anabranch.rights.rows import SCALABLE_LOOK, SUPERUSER


async def _listed(call: Call) -> tuple[Segment, Place]:
    """Return the segment in the layout of its topic, and its place."""
    topic, named = call.topic("topic"), SegmentDescriptor.parse(call.part("descriptor"))
    segment = layout_of(await call.topics.load(topic)).segments.get(named.id)
    if segment is None or segment.range != named.range:
        raise SegmentNotFoundError(f"the layout of {topic} has no segment {named}")
    return segment, Place(segment_name(topic, segment), segment.store)


async def create(call: Call) -> None:
    subscriptions = await call.body(list[str]) or []
    try:
        await _listed(call)
    except SegmentNotFoundError as error:
        raise ConflictError(f"{error}; create segments by a split, merge or rebucket of the topic") from None
    for subscription in subscriptions:
        await _ensure(call, subscription)


async def terminate(call: Call) -> None:
    segment, _ = await _listed(call)
    if segment.active:
        raise ConflictError(
            f"segment {segment.id} is active, and no other segment has its keys; split, merge or rebucket it"
        )


async def delete(call: Call) -> None:
    call.flag("force")
    try:
        segment, _ = await _listed(call)
    except (SegmentNotFoundError, TopicNotFoundError):
        return
    raise ConflictError(
        f"segment {segment.id} is part of the layout; delete its topic, or wait for retention"
    )


async def _ensure(call: Call, subscription: str) -> None:
    if await call.topics.load_subscription(call.topic("topic"), subscription) is None:
        await (await call.leader()).ensure_subscription(subscription, "STREAM", "earliest")


async def create_subscription(call: Call) -> None:
    await _listed(call)
    await _ensure(call, call.part("subscription"))


async def _subscription(call: Call) -> tuple[Place, str, SubscriptionRecord | None]:
    """Return the place of the segment, and the record of the subscription if the topic has one."""
    _, place = await _listed(call)
    subscription = call.part("subscription")
    return place, subscription, await call.topics.load_subscription(call.topic("topic"), subscription)


async def delete_subscription(call: Call) -> None:
    place, subscription, known = await call.once("segment", lambda: _subscription(call))
    if known is not None:
        await remove_subscription(call, force=False)
    elif subscription in await call.logs.subscriptions(place):
        await call.logs.delete_subscription(place, subscription)


async def backlog(call: Call) -> int:
    place, subscription, _ = await _subscription(call)
    found = (await call.logs.stats(place)).subscriptions.get(subscription)
    if found is None:
        raise SubscriptionNotFoundError(f"{place.name} has no subscription {subscription!r}")
    return found.msg_backlog


async def seek(call: Call) -> None:
    timestamp_ms = call.timestamp_ms()
    place, subscription, known = await _subscription(call)
    if known is not None:
        await (await call.leader()).seek(subscription, timestamp_ms)
    else:
        await call.logs.seek_to_time(place, subscription, timestamp_ms)


async def skip_all(call: Call) -> None:
    place, subscription, known = await _subscription(call)
    if known is not None:
        await (await call.leader()).skip_all(subscription)
    else:
        await call.logs.seek(place, subscription, "latest")


async def stats(call: Call) -> TopicStats:
    """The stats of one segment, in the form of the stats of a classic topic."""
    topic = call.topic("topic")
    segment = layout_of(await call.topics.load(topic)).segment(call.number_part("segment"))
    return await call.logs.stats(Place(segment_name(topic, segment), segment.store))


SEGMENT = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
SUBSCRIPTION = SEGMENT + "/subscription/{subscription}"

ENDPOINTS = [
    AdminEndpoint("PUT", SEGMENT, SUPERUSER, create, body=list[str]),
    AdminEndpoint("POST", SEGMENT + "/terminate", SUPERUSER, terminate),
    AdminEndpoint("DELETE", SEGMENT, SUPERUSER, delete, query={"force": bool}),
    AdminEndpoint("PUT", SUBSCRIPTION, SUPERUSER, create_subscription),
    AdminEndpoint("DELETE", SUBSCRIPTION, SUPERUSER, delete_subscription),
    AdminEndpoint("GET", SUBSCRIPTION + "/backlog", SUPERUSER, backlog),
    AdminEndpoint("POST", SUBSCRIPTION + "/seek", SUPERUSER, seek, query={"timestamp": int}),
    AdminEndpoint("POST", SUBSCRIPTION + "/skip-all", SUPERUSER, skip_all),
    AdminEndpoint(
        "GET",
        "/admin/v2/scalable/{tenant}/{namespace}/{topic}/segments/{segment}/stats",
        SCALABLE_LOOK,
        stats,
        client="segment_stats",
    ),
]
