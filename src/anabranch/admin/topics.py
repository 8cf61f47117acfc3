"""`/admin/v2/persistent`: classic topics, with or without partitions, and their subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.admin import stats
from anabranch.admin.calls import Call, PreconditionFailedError, route
from anabranch.broker.segment import Segment
from anabranch.broker.subscription import Subscription
from anabranch.errors import (
    ConflictError,
    InvalidConfigurationError,
    NotAllowedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.model.ids import Position
from anabranch.model.names import TopicName, validate_subscription

PARTITIONS_MAX = 10_000


async def list_topics(call: Call) -> list[str]:
    await call.topics.load_namespace(call.namespace())
    return [str(name) for name in await call.broker.topics.list(call.namespace())]


async def list_partitioned(call: Call) -> list[str]:
    await call.topics.load_namespace(call.namespace())
    return [str(name) for name in await call.broker.topics.list_partitioned(call.namespace())]


async def create(call: Call) -> None:
    properties = await call.body(dict[str, str])
    name = call.topic("persistent")
    await call.broker.topics.create(name, 0, properties or {})
    await call.broker.topics.make(name, await call.broker.topics.store_of(name))


async def create_partitioned(call: Call) -> None:
    await call.broker.topics.create(call.topic("persistent"), await _partition_count(call))


async def grow_partitions(call: Call) -> None:
    count = await _partition_count(call)
    name = call.topic("persistent")
    await call.broker.topics.grow(name, count)


async def _partition_count(call: Call) -> int:
    count = await call.body(int)
    if count is None or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidConfigurationError(f"the body must be a number of partitions, 1 to {PARTITIONS_MAX}")
    return count


async def get_partitions(call: Call) -> Any:
    name = call.topic("persistent")
    record = await call.topics.find_classic(name)
    if record is None and call.broker.topics.get(name) is None:
        raise TopicNotFoundError(f"{name} does not exist")
    partitions = 0 if record is None else record.partitions
    return {"partitions": partitions, "deleted": False, "properties": record.properties if record else None}


async def delete(call: Call) -> None:
    try:
        await call.broker.topics.delete(call.topic("persistent"), force=call.flag("force"))
    except ConflictError as error:
        raise PreconditionFailedError(f"{error}; disconnect them first, or pass force=true") from error


async def terminate(call: Call) -> Any:
    (only,) = await _logs(call, partitions=False)
    return await _seal(only)


async def terminate_partitions(call: Call) -> Any:
    return {str(part.partition): await _seal(part) for part in await _logs(call)}


async def _seal(segment: Segment) -> Any:
    await segment.seal()
    return stats.message_id(stats.last_position(segment.log), segment.partition)


async def last_message_id(call: Call) -> Any:
    (only,) = await _logs(call, partitions=False)
    return stats.message_id(stats.last_position(only.log), only.partition)


async def topic_stats(call: Call) -> Any:
    return stats.add_up(await _stats(call)) if len(await _logs(call)) > 1 else (await _stats(call))[0]


async def partitioned_stats(call: Call) -> Any:
    parts = await _stats(call)
    name = call.topic("persistent")
    record = await call.topics.find_classic(name)
    whole = stats.add_up(parts)
    whole["metadata"] = {"partitions": record.partitions if record else 0, "deleted": False}
    if call.flag("perPartition", True):
        names = [str(part.name) for part in await _logs(call)]
        whole["partitions"] = dict(zip(names, parts, strict=True))
    return whole


async def _stats(call: Call) -> list[dict[str, Any]]:
    dedup = call.broker.config.deduplication
    logs = await _logs(call)
    return [stats.topic_stats(part, deduplication=dedup, owner=call.http_address) for part in logs]


async def internal_stats(call: Call) -> Any:
    (only,) = await _logs(call, partitions=False)
    return stats.internal_stats(only)


async def list_subscriptions(call: Call) -> list[str]:
    names = {name for part in await _logs(call) for name in part.subscriptions}
    return sorted(names)


async def create_subscription(call: Call) -> None:
    name = call.part("subscription")
    validate_subscription(name)
    start = await call.body(object)
    logs = await _logs(call)
    if all(name in part.subscriptions for part in logs):
        raise ConflictError(f"subscription {name} exists already")
    for part in logs:
        await part.subscription(name, durable=True, ordinal=_ordinal(part, start))


async def delete_subscription(call: Call) -> None:
    found = await _subscriptions(call)
    if any(sub.consumers for _, sub in found) and not call.flag("force"):
        raise PreconditionFailedError("the subscription has consumers; disconnect them, or pass force=true")
    for part, sub in found:
        await part.unsubscribe(sub.name)


async def skip_all(call: Call) -> None:
    for part, sub in await _subscriptions(call):
        await sub.seek(part.log.next_ordinal)


async def skip(call: Call) -> None:
    left = call.number_part("count")
    for part, sub in await _subscriptions(call):
        acks = sub.cursor.acks
        ordinal = acks.next_pending(acks.mark)
        while left > 0 and ordinal < part.log.next_ordinal:
            ordinal = acks.next_pending(ordinal + 1)
            left -= 1
        await sub.seek(min(ordinal, part.log.next_ordinal))


async def reset_to_time(call: Call) -> None:
    timestamp_ms = call.number_part("timestamp")
    for part, sub in await _subscriptions(call):
        await sub.seek(part.log.ordinal_at_time(timestamp_ms))


async def reset_to_id(call: Call) -> None:
    target = await call.body(object)
    for part, sub in await _subscriptions(call):
        await sub.seek(_ordinal(part, target))


async def expire(call: Call) -> None:
    before_ms = call.clock.wall_ms() - call.number_part("seconds") * 1000
    for part, sub in await _subscriptions(call):
        ordinal = part.log.ordinal_at_time(before_ms)
        if ordinal > sub.cursor.acks.mark:
            await sub.seek(ordinal)


def _ordinal(segment: Segment, start: object) -> int:
    """Where a body means: "earliest", "latest", nothing (latest) or a message id."""
    log = segment.log
    if start is None or start == "latest":
        return log.next_ordinal
    if start == "earliest":
        return log.first_ordinal
    if isinstance(start, dict):
        ledger, entry = start.get("ledgerId"), start.get("entryId")
        if isinstance(ledger, int) and isinstance(entry, int):
            ordinal = log.ordinal_of(Position(ledger, entry))
            return min(ordinal + bool(start.get("isExcluded")), log.next_ordinal)
    raise InvalidConfigurationError(
        'the body must be "earliest", "latest" or {"ledgerId": .., "entryId": ..}'
    )


async def _logs(call: Call, *, partitions: bool = True) -> list[Segment]:
    """The logs behind a topic: its own, or one for each partition."""
    name = call.topic("persistent")
    topics = call.broker.topics
    count = await topics.partitions(name)
    if count is None:
        if not await _is_partition(call, name):
            raise TopicNotFoundError(f"{name} does not exist")
        count = 0
    if count and not partitions:
        raise NotAllowedError(f"{name} has {count} partitions; ask for one of them")
    names: Sequence[TopicName] = [name.partition_name(index) for index in range(count)] or [name]
    return [await topics.make(part, await topics.store_of(part)) for part in names]


async def _is_partition(call: Call, name: TopicName) -> bool:
    """Whether a topic has this partition, which may not have been used yet."""
    if name.partition is None:
        return False
    whole = await call.topics.find_classic(name.partitioned_topic)
    return whole is not None and name.partition < whole.partitions


async def _subscriptions(call: Call) -> list[tuple[Segment, Subscription]]:
    name = call.part("subscription")
    found = [(p, p.subscriptions[name]) for p in await _logs(call) if name in p.subscriptions]
    if not found:
        raise SubscriptionNotFoundError(f"{call.topic('persistent')} has no subscription {name!r}")
    return found


NAMESPACE = "/admin/v2/persistent/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"

ROUTES = [
    route("GET", NAMESPACE, list_topics),
    route("GET", NAMESPACE + "/partitioned", list_partitioned),
    route("PUT", TOPIC, create),
    route("DELETE", TOPIC, delete),
    route("PUT", TOPIC + "/partitions", create_partitioned),
    route("POST", TOPIC + "/partitions", grow_partitions),
    route("GET", TOPIC + "/partitions", get_partitions),
    route("DELETE", TOPIC + "/partitions", delete),
    route("POST", TOPIC + "/terminate", terminate),
    route("POST", TOPIC + "/terminate/partitions", terminate_partitions),
    route("GET", TOPIC + "/lastMessageId", last_message_id),
    route("GET", TOPIC + "/stats", topic_stats),
    route("GET", TOPIC + "/partitioned-stats", partitioned_stats),
    route("GET", TOPIC + "/internalStats", internal_stats),
    route("GET", TOPIC + "/subscriptions", list_subscriptions),
    route("PUT", SUBSCRIPTION, create_subscription),
    route("DELETE", SUBSCRIPTION, delete_subscription),
    route("POST", SUBSCRIPTION + "/skip_all", skip_all),
    route("POST", SUBSCRIPTION + "/skip/{count}", skip),
    route("POST", SUBSCRIPTION + "/resetcursor", reset_to_id),
    route("POST", SUBSCRIPTION + "/resetcursor/{timestamp}", reset_to_time),
    route("POST", SUBSCRIPTION + "/expireMessages/{seconds}", expire),
]
