"""`/admin/v2/persistent`: classic topics, with or without partitions, and their subscriptions.

Some handlers also serve `/admin/v2/non-persistent`; `live_topics` lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import PreconditionFailedError
from anabranch.admin.http.calls import NUMBER_MAX, Call
from anabranch.admin.models.topics import (
    CursorPosition,
    MessageIdBody,
    PartitionedMetadata,
)
from anabranch.admin.routes.namespaces.permissions import forget_topic
from anabranch.aio import together
from anabranch.broker.catalog.classic_topics import log_names
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.errors import (
    ConflictError,
    InvalidConfigurationError,
    NotAllowedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.model.limits import PARTITIONS_MAX
from anabranch.model.names import Place, TopicName, validate_subscription
from anabranch.rights.rows import CLASSIC_ADMIN, CLASSIC_LOOK, CLASSIC_READ, CLASSIC_SUBSCRIPTION, NAMES


async def list_topics(call: Call) -> list[str]:
    await call.topics.namespaces.load_namespace(call.namespace())
    return [str(name) for name in await call.broker.classic.list(call.namespace(), call.domain)]


async def list_partitioned(call: Call) -> list[str]:
    await call.topics.namespaces.load_namespace(call.namespace())
    return [str(name) for name in await call.broker.classic.list_partitioned(call.namespace(), call.domain)]


async def create(call: Call) -> None:
    properties = await call.body(dict[str, str])
    name = call.classic()
    if name.partition is not None and not await _is_partition(call, name):
        raise PreconditionFailedError(
            f"{name} is not a partition of {name.partitioned_topic}; choose another name"
        )
    await call.once("record", lambda: call.broker.classic.create(name, 0, properties or {}))
    await call.logs.make(await _place(call, name))


async def create_partitioned(call: Call) -> None:
    either: Any = int | PartitionedMetadata
    given: int | PartitionedMetadata | None = await call.body(either)
    if not isinstance(given, PartitionedMetadata):
        given = PartitionedMetadata(partitions=given or 0)
    count, name = _partition_count(given.partitions), call.classic()
    if name.partition is not None:
        raise PreconditionFailedError(f"{name} is the name of a partition; choose another name")
    await call.broker.classic.create(name, count, given.properties)


async def grow_partitions(call: Call) -> None:
    """Add partitions; they begin with the durable subscriptions of the others, as in Pulsar.

    Producers find new partitions before consumers do, and what they send must wait for the consumers.
    """
    count, name = _partition_count(await call.body(int)), call.classic()
    known = await call.once("known", lambda: classic_places(call))
    await call.once("record", lambda: call.broker.classic.grow(name, count))
    if name.is_live:
        return
    durable = await together(call.logs.kinds(place) for place in known)
    places = await classic_places(call)
    for subscription in sorted({one for part in durable for one in part}):
        for place in places[len(known) :]:
            await call.logs.create_subscription(place, subscription, "earliest")


def _partition_count(count: int | None) -> int:
    if count is None or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidConfigurationError(f"the body must be a number of partitions, 1 to {PARTITIONS_MAX}")
    return count


async def get_partitions(call: Call) -> PartitionedMetadata:
    name = call.classic()
    if await call.topics.find_classic(name) is None and call.broker.logs.get(name) is None:
        creating = call.flag("checkAllowAutoCreation")
        if creating:
            await call.broker.classic.partitions_for_use(name)
        if not creating or not await call.broker.classic.is_usable(name):
            raise TopicNotFoundError(f"{name} does not exist")
    return await topic_metadata(call)


async def delete(call: Call) -> None:
    """Delete a topic without partitions, or one partition."""
    count = await call.broker.classic.partitions(call.classic())
    if count:
        raise ConflictError(f"{call.classic()} is partitioned; add /partitions to the path")
    await _delete(call)


async def delete_partitioned(call: Call) -> None:
    """Delete a topic with all partitions."""
    if await call.broker.classic.partitions(call.classic()) == 0:
        raise ConflictError(f"{call.classic()} has no partitions; delete it without /partitions in the path")
    await _delete(call)


async def _delete(call: Call) -> None:
    try:
        await delete_topic(call, call.classic(), force=call.flag("force"))
    except ConflictError as error:
        raise PreconditionFailedError(f"{error}; disconnect them first, or pass force=true") from error


async def delete_topic(call: Call, name: TopicName, *, force: bool) -> None:
    """Delete a topic with all partitions; ConflictError while it is in use, unless forced."""
    if await call.broker.classic.is_migrated(name) and await call.topics.find(name.topic) is not None:
        raise PreconditionFailedError(f"{name} continues as {name.topic}; delete that topic")
    count = await call.broker.classic.partitions(name)
    if count is None:
        raise TopicNotFoundError(f"{name} does not exist")
    places = [await _place(call, part) for part in log_names(name, count)]
    if not force:
        await together(call.logs.check_unused(place) for place in places)
    for place in places:
        await call.logs.drop(place)
        await call.topics.delete_classic(place.name)
    await call.topics.delete_classic(name)
    await forget_topic(call, name)


async def terminate(call: Call) -> MessageIdBody:
    (only,) = await classic_places(call, partitions=False)
    return await call.logs.seal(only)


async def terminate_partitions(call: Call) -> dict[str, MessageIdBody]:
    places = await classic_places(call)
    sealed = await together(call.logs.seal(place) for place in places)
    return {str(last.partition_index): last for last in sealed}


async def topic_metadata(call: Call) -> PartitionedMetadata:
    """Return the partitions and properties of the topic that the path names."""
    record = await call.topics.find_classic(call.classic())
    return PartitionedMetadata(
        partitions=record.partitions if record else 0, properties=record.properties if record else None
    )


async def list_subscriptions(call: Call) -> list[str]:
    found = await together(call.logs.subscriptions(place) for place in await classic_places(call))
    return sorted({name for part in found for name in part})


async def create_subscription(call: Call) -> None:
    name = call.part("subscription")
    validate_subscription(name)
    if call.flag("replicated"):
        raise NotAllowedError("a subscription cannot be replicated: there is one cluster")
    start = await place_in(call)

    async def free() -> Sequence[Place]:
        places = await classic_places(call)
        known = await together(call.logs.subscriptions(place) for place in places)
        if all(name in part for part in known):
            raise ConflictError(f"subscription {name} exists already")
        return places

    for place in await call.once("places", free):
        await call.logs.create_subscription(place, name, start)


async def delete_subscription(call: Call) -> None:
    """Delete a subscription; that of compaction, as in Pulsar, ends the compaction of the topic."""
    find = compacted_places if call.part("subscription") == COMPACTION else subscribed_places
    places, name, consumers = await call.once("places", lambda: find(call))
    if consumers and not call.flag("force"):
        raise PreconditionFailedError("the subscription has consumers; disconnect them, or pass force=true")
    for place in places:
        await call.logs.delete_subscription(place, name)


async def skip_all(call: Call) -> None:
    places, name, _ = await subscribed_places(call)
    for place in places:
        await call.logs.seek(place, name, "latest")


async def skip(call: Call) -> None:
    left = call.number_part("count", least=0)
    places, name, _ = await subscribed_places(call)
    call.repeatable = False
    for place in places:
        left = await call.logs.skip(place, name, left)


async def reset_to_time(call: Call) -> None:
    timestamp_ms = call.number_part("timestamp")
    places, name, _ = await subscribed_places(call)
    for place in places:
        await call.logs.seek_to_time(place, name, timestamp_ms)


async def reset_to_id(call: Call) -> None:
    target = await place_in(call)
    places, name, _ = await subscribed_places(call)
    if names_an_entry(target) and len(await classic_places(call)) > 1:
        raise NotAllowedError(f"{call.classic()} is partitioned; name the partition of the message id")
    for place in places:
        await call.logs.seek(place, name, target)


async def classic_places(call: Call, *, partitions: bool = True) -> list[Place]:
    """Return the places of a topic: one for each partition, or one for a plain topic."""
    name = call.classic()
    count = await call.broker.classic.partitions(name)
    if count is None:
        if not await _is_partition(call, name):
            raise TopicNotFoundError(f"{name} does not exist")
        count = 0
    if count and not partitions:
        raise NotAllowedError(f"{name} is partitioned; ask for a single partition")
    return [await _place(call, part) for part in log_names(name, count)]


async def _place(call: Call, name: TopicName) -> Place:
    return Place(name, await call.broker.classic.store_of(name))


async def _is_partition(call: Call, name: TopicName) -> bool:
    """Return whether the name is a partition of a recorded topic, used or not."""
    if name.partition is None:
        return False
    whole = await call.topics.find_classic(name.partitioned_topic)
    return whole is not None and name.partition < whole.partitions


async def subscribed_places(call: Call) -> tuple[list[Place], str, int]:
    """Return the places that have the subscription, its name, and the number of its consumers."""
    name = call.part("subscription")
    places = await classic_places(call)
    known = await together(call.logs.subscriptions(place) for place in places)
    found = [place for place, part in zip(places, known, strict=True) if name in part]
    if not found:
        raise SubscriptionNotFoundError(f"{call.classic()} has no subscription {name!r}")
    return found, name, sum(part.get(name, 0) for part in known)


async def compacted_places(call: Call) -> tuple[list[Place], str, int]:
    """Return the places of the topic that are compacted, the name of their cursor, and no consumers."""
    places = await classic_places(call)
    compacted = await together(call.logs.is_compacted(place) for place in places)
    found = [place for place, is_compacted in zip(places, compacted, strict=True) if is_compacted]
    if not found:
        raise SubscriptionNotFoundError(f"{call.topic('persistent')} is not compacted")
    return found, COMPACTION, 0


async def place_in(call: Call) -> object:
    """Return the place in the body, or None; raises InvalidConfigurationError for a malformed id."""
    place = await call.body(object)
    if isinstance(place, dict):
        try:
            msgspec.convert(place, CursorPosition)
        except msgspec.ValidationError as error:
            raise InvalidConfigurationError(f"the body is not a message id: {error}") from error
    return place


def names_an_entry(place: object) -> bool:
    """Return whether a place is an entry of one log, not the beginning or the end of any."""
    ledger = place.get("ledgerId") if isinstance(place, dict) else None
    return isinstance(ledger, int) and 0 <= ledger < NUMBER_MAX


NAMESPACE = "/admin/v2/persistent/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"

FORCE = {"force": bool}
REPLICATED = {"replicated": bool}
Start = CursorPosition | Literal["earliest", "latest"]
"""The message at which a subscription begins or continues."""

ENDPOINTS = [
    AdminEndpoint("GET", NAMESPACE, NAMES, list_topics, client="classic_topics"),
    AdminEndpoint("GET", NAMESPACE + "/partitioned", NAMES, list_partitioned),
    AdminEndpoint("PUT", TOPIC, CLASSIC_ADMIN, create, body=dict[str, str], client="create_classic_topic"),
    AdminEndpoint("DELETE", TOPIC, CLASSIC_ADMIN, delete, query=FORCE, client="delete_classic_topic"),
    AdminEndpoint(
        "PUT",
        TOPIC + "/partitions",
        CLASSIC_ADMIN,
        create_partitioned,
        body=int | PartitionedMetadata,
        client="create_partitioned_topic",
    ),
    AdminEndpoint(
        "POST", TOPIC + "/partitions", CLASSIC_ADMIN, grow_partitions, body=int, client="grow_partitions"
    ),
    AdminEndpoint(
        "GET",
        TOPIC + "/partitions",
        CLASSIC_LOOK,
        get_partitions,
        query={"checkAllowAutoCreation": bool},
        client="partitions",
    ),
    AdminEndpoint(
        "DELETE",
        TOPIC + "/partitions",
        CLASSIC_ADMIN,
        delete_partitioned,
        query=FORCE,
        client="delete_partitioned_topic",
    ),
    AdminEndpoint("POST", TOPIC + "/terminate", CLASSIC_ADMIN, terminate, client="terminate"),
    AdminEndpoint("POST", TOPIC + "/terminate/partitions", CLASSIC_ADMIN, terminate_partitions),
    AdminEndpoint("GET", TOPIC + "/subscriptions", CLASSIC_READ, list_subscriptions, client="subscriptions"),
    AdminEndpoint(
        "PUT",
        SUBSCRIPTION,
        CLASSIC_SUBSCRIPTION,
        create_subscription,
        body=Start,
        query=REPLICATED,
        client="create_classic_subscription",
    ),
    AdminEndpoint(
        "DELETE",
        SUBSCRIPTION,
        CLASSIC_SUBSCRIPTION,
        delete_subscription,
        query=FORCE,
        client="delete_subscription",
    ),
    AdminEndpoint("POST", SUBSCRIPTION + "/skip_all", CLASSIC_SUBSCRIPTION, skip_all, client="skip_all"),
    AdminEndpoint("POST", SUBSCRIPTION + "/skip/{count}", CLASSIC_SUBSCRIPTION, skip),
    AdminEndpoint("POST", SUBSCRIPTION + "/resetcursor", CLASSIC_SUBSCRIPTION, reset_to_id, body=Start),
    AdminEndpoint(
        "POST",
        SUBSCRIPTION + "/resetcursor/{timestamp}",
        CLASSIC_SUBSCRIPTION,
        reset_to_time,
        client="reset_cursor",
    ),
]
