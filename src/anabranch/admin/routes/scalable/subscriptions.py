"""`/admin/v2/scalable/.../subscriptions`: the subscriptions of scalable topics."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.aio import together
from anabranch.controller.decide.operation import segment_name
from anabranch.errors import (
    ConsumerBusyError,
    InvalidConfigurationError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import SubscriptionKind, SubscriptionRecord
from anabranch.model.layout import Segment
from anabranch.model.names import Place, TopicName
from anabranch.rights.rows import SCALABLE_SUBSCRIPTION

KINDS: tuple[str, ...] = get_args(SubscriptionKind)


async def create_subscription(call: Call) -> None:
    kind = call.query("type") or "STREAM"
    if kind not in KINDS:
        raise InvalidConfigurationError(f"type must be one of {', '.join(KINDS)}, not {kind!r}")
    leader = await call.leader()
    await leader.ensure_subscription(call.part("subscription"), kind, "earliest")  # type: ignore[arg-type]


async def existing_subscription(call: Call) -> tuple[str, SubscriptionRecord]:
    """Return the name and the record of the subscription that the path names."""
    topic, subscription = call.topic("topic"), call.part("subscription")
    record = await call.topics.load_subscription(topic, subscription)
    if record is None:
        await call.topics.load(topic)
        raise SubscriptionNotFoundError(f"{topic} has no subscription {subscription!r}")
    return subscription, record


async def delete_subscription(call: Call) -> None:
    await remove_subscription(call, force=call.flag("force"))


async def remove_subscription(call: Call, *, force: bool) -> None:
    """Delete the subscription that the path names; ConsumerBusyError while it is in use, unless forced."""

    async def unused() -> tuple[str, SubscriptionRecord]:
        subscription, record = await existing_subscription(call)
        if not force:
            await check_unused(call, call.topic("topic"), subscription)
        return subscription, record

    leader = await call.leader()
    subscription, record = await call.once("subscription", unused)
    await leader.delete_subscription(subscription, force=force, created_at_ms=record.created_at_ms)


async def check_unused(call: Call, topic: TopicName, subscription: str | None = None) -> None:
    """Raise ConsumerBusyError while a topic, or the given subscription, has consumers.

    Consumers that the leader does not know would attach again and create the subscription again.
    """

    async def used(segment: Segment) -> list[str]:
        with suppress(TopicNotFoundError):
            consumers = await call.logs.subscriptions(Place(segment_name(topic, segment), segment.store))
            return [sub for sub, count in consumers.items() if count and subscription in (None, sub)]
        return []

    layout = layout_of(await call.topics.load(topic))
    found = await together(used(segment) for segment in layout.segments.values())
    if names := sorted({sub for subs in found for sub in subs}):
        raise ConsumerBusyError(f"consumers are connected to {', '.join(names)}; close them, or use force")


async def seek(call: Call) -> None:
    timestamp_ms = call.timestamp_ms()
    leader = await call.leader()
    subscription, _ = await existing_subscription(call)
    await leader.seek(subscription, timestamp_ms)


async def skip_all(call: Call) -> None:
    leader = await call.leader()
    subscription, _ = await existing_subscription(call)
    await leader.skip_all(subscription)


SUBSCRIPTION = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}"

ENDPOINTS = [
    AdminEndpoint(
        "PUT",
        SUBSCRIPTION,
        SCALABLE_SUBSCRIPTION,
        create_subscription,
        query={"type": str},
        client="create_subscription",
    ),
    AdminEndpoint(
        "DELETE",
        SUBSCRIPTION,
        SCALABLE_SUBSCRIPTION,
        delete_subscription,
        query={"force": bool},
        client="delete_subscription",
    ),
    AdminEndpoint(
        "POST", SUBSCRIPTION + "/seek", SCALABLE_SUBSCRIPTION, seek, query={"timestamp": int}, client="seek"
    ),
    AdminEndpoint("POST", SUBSCRIPTION + "/skip-all", SCALABLE_SUBSCRIPTION, skip_all, client="skip_all"),
]
