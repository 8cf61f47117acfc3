"""`/admin/v2/scalable`: topics that split and merge, over the controller; Pulsar's paths and a few more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args

import msgspec

from anabranch.admin.calls import Call, object_of, route, whole
from anabranch.admin.topics import classic_places
from anabranch.aio import together
from anabranch.controller.decide.operation import segment_name, was_made
from anabranch.controller.decide.places import Place
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import (
    ConflictError,
    ConsumerBusyError,
    InvalidConfigurationError,
    LayoutError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from anabranch.metadata import records
from anabranch.metadata.records import SubscriptionKind, SubscriptionRecord
from anabranch.metadata.topics import layout_of
from anabranch.model.hashing import equal_bucket_splits
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName
from anabranch.model.policy import override_from_json, resolve, to_json

KINDS: tuple[str, ...] = get_args(SubscriptionKind)

SEGMENTS_AT_ONCE_MAX = 1024
"""More are a slip: each is a log of its own."""


async def _controller(call: Call) -> TopicLeader:
    try:
        return await call.broker.controllers.controller(call.topic("topic"))
    except TopicNotFoundError as error:
        raise await _absent(call, error) from None


async def _absent(call: Call, error: TopicNotFoundError) -> TopicNotFoundError:
    """The error, with what can be done about it when a classic topic has the name."""
    name = call.topic("topic")
    classic = await call.topics.find_classic(name)
    if classic is None or classic.migrated:
        return error
    return TopicNotFoundError(f"{error}; {name.local} is a classic topic: migrate it first")


async def list_topics(call: Call) -> list[str]:
    filters = set()
    for text in call.queries("property"):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidConfigurationError(f"property filter {text!r}: write it as key=value")
        filters.add((key, value))
    await call.topics.load_namespace(call.namespace())
    return [str(name) for name in await call.broker.controllers.list_topics(call.namespace(), filters)]


async def create(call: Call) -> None:
    segments = call.number("numInitialSegments")
    count = 1 if segments is None else segments
    properties = await call.body(dict[str, str])
    await call.topics.load_namespace(call.namespace())
    _check_count(count)
    with call.done_before(TopicExistsError):
        await call.broker.controllers.create_topic(call.topic("topic"), count, properties or {})
        return
    # Recorded the first time; only then a leader is asked for anything.
    await (await _controller(call)).settled()


def _check_count(count: int) -> None:
    if count > SEGMENTS_AT_ONCE_MAX:
        raise InvalidConfigurationError(
            f"one call makes at most {SEGMENTS_AT_ONCE_MAX} segments, not {count}; split these further"
        )


async def metadata(call: Call) -> Any:
    try:
        return await call.topics.load(call.topic("topic"))
    except TopicNotFoundError as error:
        raise await _absent(call, error) from None


async def delete(call: Call) -> None:
    name, force = call.topic("topic"), call.flag("force")
    with call.done_before(TopicNotFoundError):
        if call.meets_another((await call.topics.load(name)).incarnation):
            return
        if not force:
            await check_unused(call, name)
        await call.broker.controllers.delete_topic(name, force=force)


async def migrate(call: Call) -> None:
    """Let a classic topic go on as a scalable one; what it holds is read first."""
    force = call.flag("force")
    name, classic = call.topic("topic"), call.topic("persistent")
    if await call.topics.find(name) is not None:
        if not call.again:
            raise TopicExistsError(f"{name} is a scalable topic already")
        await (await _controller(call)).settled()
        await _adopt_latecomers(call, await classic_places(call))
        return
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
    await call.broker.topics.mark_migrated(classic)
    await call.broker.controllers.migrate_topic(
        name, places, kinds, {} if record is None else record.properties
    )
    await _adopt_latecomers(call, places)


async def _adopt_latecomers(call: Call, places: Sequence[Place]) -> None:
    """Register the subscriptions that were made on classic logs while these became segments."""
    with suppress(TopicNotFoundError):  # When retention was quick to take what was sealed.
        kinds = await _subscribed_everywhere(call, places)
        known = await call.topics.load_subscriptions(call.topic("topic"))
        for subscription in sorted(kinds.keys() - known.keys()):
            controller = await _controller(call)
            await controller.ensure_subscription(subscription, kinds[subscription], "earliest")


async def _subscribed_everywhere(call: Call, places: Sequence[Place]) -> dict[str, SubscriptionKind]:
    """The subscriptions of classic logs, from now on on all of them."""
    kinds: dict[str, SubscriptionKind] = {}
    for place in places:
        for subscription, kind in (await call.logs.kinds(place)).items():
            kinds[subscription] = "QUEUE" if "QUEUE" in (kind, kinds.get(subscription)) else "STREAM"
    for place in places:
        for subscription in sorted(kinds.keys() - (await call.logs.subscriptions(place)).keys()):
            await call.logs.create_subscription(place, subscription, "latest")
    return kinds


async def split(call: Call) -> None:
    points, parts = call.numbers("points"), call.number("parts")
    if points is not None and parts is not None:
        raise InvalidConfigurationError("give either points or parts, not both")
    id_ = call.number_part("segment")
    controller = await _controller(call)
    async with _done_once(call, (id_,), lambda layout: layout.split(id_, points, now_ms=0)):
        segment = layout_of(await call.topics.load(call.topic("topic"))).segment(id_)
        if parts is not None and parts < 2:
            raise InvalidConfigurationError(f"a split makes two parts or more, not {parts}")
        _check_count(parts or len(points or ()) + 1)
        if parts is not None:
            points = tuple(part.start for part in segment.range.parts(parts)[1:])
        await controller.split(id_, points)


async def merge(call: Call) -> None:
    ids = [whole(text, "segment") for text in call.part("segments").split("/")]
    async with _done_once(call, ids, lambda layout: layout.merge(ids, now_ms=0)):
        await (await _controller(call)).merge(ids)


async def rebucket(call: Call) -> None:
    count, boundaries = call.number("bucketCount"), call.numbers("boundaries")
    if (count is None) == (boundaries is None):
        raise InvalidConfigurationError("give either bucketCount or boundaries")
    splits = boundaries if boundaries is not None else equal_bucket_splits(count or 0)
    id_ = call.number_part("segment")
    async with _done_once(call, (id_,), lambda layout: layout.rebucket(id_, splits, now_ms=0)):
        await (await _controller(call)).rebucket(id_, splits)


@asynccontextmanager
async def _done_once(
    call: Call, parents: Sequence[int], change: Callable[[Layout], Layout]
) -> AsyncIterator[None]:
    """Take the refusal of a change for its answer if `change` was made before the call was repeated.

    A segment is sealed once, so nothing is done twice. When a leader's answer was lost, the next one ends
    what it began and refuses the repetition; what is in the place of the parents says which of them it was.
    """
    try:
        yield
    except (LayoutError, SegmentNotFoundError) as error:
        if not call.again:
            raise
        layout = layout_of(await call.topics.load(call.topic("topic")))
        if not layout.segments.keys() >= set(parents):
            raise ConflictError(f"{error}; this may have been done to it before it went") from error
        if not was_made(layout, parents, change):
            raise


async def why(call: Call) -> Any:
    return await (await _controller(call)).explain()


async def stats(call: Call) -> Any:
    """What the leader counts, and for each segment which store holds it and who serves that."""
    shown = await (await _controller(call)).stats()
    record = await call.topics.load(call.topic("topic"))
    about: dict[str, Any] = shown["segments"]  # type: ignore[assignment]
    for id_, segment in record.segments.items():
        if str(id_) in about:
            owner = call.broker.directory.owner_of(segment.store)
            about[str(id_)] |= {"store": segment.store, "ownerBroker": None if owner is None else owner.url}
    return shown


async def create_subscription(call: Call) -> None:
    kind = call.query("type") or "STREAM"
    if kind not in KINDS:
        raise InvalidConfigurationError(f"type must be one of {', '.join(KINDS)}, not {kind!r}")
    controller = await _controller(call)
    await controller.ensure_subscription(call.part("subscription"), kind, "earliest")  # type: ignore[arg-type]


async def _existing(call: Call) -> tuple[TopicLeader, str]:
    controller = await _controller(call)
    subscription = call.part("subscription")
    await _record_of(call, call.topic("topic"), subscription)
    return controller, subscription


async def _record_of(call: Call, topic: TopicName, subscription: str) -> SubscriptionRecord:
    record = await call.topics.load_subscription(topic, subscription)
    if record is None:
        raise SubscriptionNotFoundError(f"{topic} has no subscription {subscription!r}")
    return record


async def delete_subscription(call: Call) -> None:
    await remove_subscription(call, call.topic("topic"), call.part("subscription"), force=call.flag("force"))


async def remove_subscription(call: Call, topic: TopicName, subscription: str, *, force: bool) -> None:
    """Delete a subscription of a topic, once; ConsumerBusyError while it has consumers, unless forced."""
    with call.done_before(SubscriptionNotFoundError):
        controller = await call.broker.controllers.controller(topic)
        if call.meets_another((await _record_of(call, topic, subscription)).created_at_ms):
            return
        if not force:
            await check_unused(call, topic, subscription)
        await controller.delete_subscription(subscription, force=force)


async def check_unused(call: Call, topic: TopicName, subscription: str | None = None) -> None:
    """ConsumerBusyError while somebody reads the topic, or the subscription if it is given.

    The leader knows only those who are registered. A reader that is merely sent away loses its place, or
    comes back and makes the subscription again.
    """

    async def used(segment: Segment) -> list[str]:
        with suppress(TopicNotFoundError):
            consumers = await call.logs.subscriptions(Place(segment_name(topic, segment), segment.store))
            return [sub for sub, count in consumers.items() if count and subscription in (None, sub)]
        return []

    layout = layout_of(await call.topics.load(topic))
    found = await together(used(segment) for segment in layout.segments.values())
    if names := sorted({sub for subs in found for sub in subs}):
        raise ConsumerBusyError(f"{', '.join(names)}: there are consumers; close them, or use force")


async def seek(call: Call) -> None:
    timestamp_ms = call.number("timestamp")
    if timestamp_ms is None or timestamp_ms < 0:
        raise InvalidConfigurationError("timestamp must be given, in milliseconds since 1970")
    controller, subscription = await _existing(call)
    await controller.seek(subscription, timestamp_ms)


async def skip_all(call: Call) -> None:
    controller, subscription = await _existing(call)
    await controller.skip_all(subscription)


async def get_properties(call: Call) -> Any:
    return (await call.topics.load(call.topic("topic"))).properties


async def set_properties(call: Call) -> None:
    """Change those that are given; the others stay."""
    given = await call.body(dict[str, str]) or {}
    await (await _controller(call)).set_properties(given)


async def delete_property(call: Call) -> None:
    key = call.query("key")
    if not key:
        raise InvalidConfigurationError("key must be given: the property to remove")
    await (await _controller(call)).set_properties({key: None})


async def get_policy(call: Call) -> Any:
    return (await call.topics.load(call.topic("topic"))).auto_scale_policy


async def set_policy(call: Call) -> None:
    override = override_from_json(object_of(await call.body(dict[str, object])))
    await (await _controller(call)).set_policy(override)


async def delete_policy(call: Call) -> None:
    await (await _controller(call)).set_policy(None)


async def get_namespace_policy(call: Call) -> Any:
    return (await call.topics.load_namespace(call.namespace())).scalable_topic_auto_scale_policy


async def set_namespace_policy(call: Call) -> None:
    override = override_from_json(object_of(await call.body(dict[str, object])))
    resolve(call.broker.config.auto_scale, override)
    await _store_namespace_policy(call, to_json(override))


async def delete_namespace_policy(call: Call) -> None:
    await _store_namespace_policy(call, None)


async def _store_namespace_policy(call: Call, policy: records.PolicyFields | None) -> None:
    await call.topics.update_namespace(
        call.namespace(),
        lambda record: msgspec.structs.replace(record, scalable_topic_auto_scale_policy=policy),
    )


NAMESPACE = "/admin/v2/scalable/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"
SUBSCRIPTION = TOPIC + "/subscriptions/{subscription}"
NAMESPACE_POLICY = "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"

ROUTES = [
    route("GET", NAMESPACE, list_topics),
    route("PUT", TOPIC, create),
    route("GET", TOPIC, metadata),
    route("DELETE", TOPIC, delete),
    route("GET", TOPIC + "/stats", stats),
    route("GET", TOPIC + "/why", why),
    route("POST", TOPIC + "/migrate", migrate),
    route("POST", TOPIC + "/split/{segment}", split),
    route("POST", TOPIC + "/merge/{segments:path}", merge),
    route("POST", TOPIC + "/rebucket/{segment}", rebucket),
    route("PUT", SUBSCRIPTION, create_subscription),
    route("DELETE", SUBSCRIPTION, delete_subscription),
    route("POST", SUBSCRIPTION + "/seek", seek),
    route("POST", SUBSCRIPTION + "/skip-all", skip_all),
    route("GET", TOPIC + "/properties", get_properties),
    route("PUT", TOPIC + "/properties", set_properties),
    route("DELETE", TOPIC + "/properties", delete_property),
    route("GET", TOPIC + "/autoScalePolicy", get_policy),
    route("POST", TOPIC + "/autoScalePolicy", set_policy),
    route("DELETE", TOPIC + "/autoScalePolicy", delete_policy),
    route("GET", NAMESPACE_POLICY, get_namespace_policy),
    route("POST", NAMESPACE_POLICY, set_namespace_policy),
    route("DELETE", NAMESPACE_POLICY, delete_namespace_policy),
]
