"""Calls about one subscription, or all of them, of every topic of a namespace, with Pulsar's paths.

Topics that store nothing have no backlog, and their subscriptions end with their consumers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import PreconditionFailedError
from anabranch.admin.http.calls import Call
from anabranch.admin.routes.scalable.subscriptions import check_unused
from anabranch.admin.routes.topics.upkeep import NAMESPACE, check_bundle
from anabranch.errors import ConsumerBusyError, TopicNotFoundError
from anabranch.model.names import Place, TopicName
from anabranch.rights.rows import ADMIN


async def clear_backlog(call: Call) -> None:
    """Acknowledge all messages of a namespace for every subscription, or for the one in the path."""
    only = _chosen(call)
    async for place in _classic_places(call):
        for name in await call.logs.kinds(place):
            if only in (None, name):
                await call.logs.seek(place, name, "latest")
    for topic in await call.topics.list(call.namespace()):
        with suppress(TopicNotFoundError):
            leader = await call.broker.controllers.controller(topic)
            for name in await call.topics.load_subscriptions(topic):
                if only in (None, name):
                    await leader.skip_all(name)


async def unsubscribe(call: Call) -> None:
    """Delete a subscription from every topic of a namespace; refused while one of them has consumers."""
    name = _chosen(call)
    assert name is not None, "the path names a subscription"
    places = await _unused_places(call, name)
    topics = await _unused_topics(call, name)
    for place in places:
        await call.logs.delete_subscription(place, name)
    for topic in topics:
        with suppress(TopicNotFoundError):
            record = await call.topics.load_subscription(topic, name)
            if record is not None:
                leader = await call.broker.controllers.controller(topic)
                await leader.delete_subscription(name, force=False, created_at_ms=record.created_at_ms)


def _chosen(call: Call) -> str | None:
    """Return the subscription in the path, or None; raises NotFoundError for an unknown bundle."""
    if "bundle" in call.parts:
        check_bundle(call)
    return call.part("subscription") if "subscription" in call.parts else None


async def _classic_places(call: Call) -> AsyncIterator[Place]:
    """Yield the places of all classic topics and partitions of a namespace."""
    namespace, classic = call.namespace(), call.broker.classic
    await call.topics.namespaces.load_namespace(namespace)
    for name in await classic.list(namespace):
        # The logs of a topic that became scalable are segments of it.
        if not await classic.is_migrated(name):
            yield Place(name, await classic.store_of(name))


async def _unused_places(call: Call, subscription: str) -> list[Place]:
    """Return the places with the subscription; PreconditionFailedError if it has consumers there."""
    found: list[Place] = []
    async for place in _classic_places(call):
        consumers = (await call.logs.subscriptions(place)).get(subscription)
        if consumers:
            raise _in_use(subscription, place.name)
        if consumers is not None:
            found.append(place)
    return found


async def _unused_topics(call: Call, subscription: str) -> list[TopicName]:
    """Return the scalable topics with the subscription; PreconditionFailedError if it has consumers there."""
    found: list[TopicName] = []
    for topic in await call.topics.list(call.namespace()):
        if await call.topics.load_subscription(topic, subscription) is None:
            continue
        try:
            await check_unused(call, topic, subscription)
        except ConsumerBusyError:
            raise _in_use(subscription, topic) from None
        found.append(topic)
    return found


def _in_use(subscription: str, topic: TopicName) -> PreconditionFailedError:
    return PreconditionFailedError(f"{subscription} has consumers at {topic}; disconnect them first")


# The routes of bundles match any name in the place of a bundle, so they come last.
ENDPOINTS = [
    AdminEndpoint("POST", NAMESPACE + "/unsubscribe/{subscription}", ADMIN, unsubscribe),
    AdminEndpoint("POST", NAMESPACE + "/clearBacklog", ADMIN, clear_backlog),
    AdminEndpoint("POST", NAMESPACE + "/clearBacklog/{subscription}", ADMIN, clear_backlog),
    AdminEndpoint("POST", NAMESPACE + "/{bundle}/clearBacklog", ADMIN, clear_backlog),
    AdminEndpoint("POST", NAMESPACE + "/{bundle}/clearBacklog/{subscription}", ADMIN, clear_backlog),
    AdminEndpoint("POST", NAMESPACE + "/{bundle}/unsubscribe/{subscription}", ADMIN, unsubscribe),
]
