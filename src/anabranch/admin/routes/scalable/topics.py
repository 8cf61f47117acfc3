"""`/admin/v2/scalable`: topics that split and merge, over the controller; Pulsar's paths and a few more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call, whole
from anabranch.admin.models.scalable import Explanation, ScalableMetadata, ScalableStats
from anabranch.admin.routes.namespaces.permissions import forget_topic
from anabranch.admin.routes.scalable.migration import migrate
from anabranch.admin.routes.scalable.subscriptions import check_unused
from anabranch.admin.routes.topics.lanes import hot_spots, lane_figures
from anabranch.controller.decide.operation import LayoutVersion, segment_name
from anabranch.errors import ConflictError, InvalidConfigurationError, TopicNotFoundError
from anabranch.metadata import records
from anabranch.metadata.layouts import layout_of
from anabranch.model.hashing import equal_bucket_splits
from anabranch.model.layout import Segment
from anabranch.model.names import Place
from anabranch.model.scaling.traffic_sketch import TrafficSummary
from anabranch.model.scaling.weights import balanced_bucket_splits, balanced_points
from anabranch.rights.rows import NAMES, SCALABLE_ADMIN, SCALABLE_LOOK, SCALABLE_PRODUCE, SUPERUSER

SEGMENTS_AT_ONCE_MAX = 1024
"""Segments that one call may create; a larger number is taken for a typing error."""


async def list_topics(call: Call) -> list[str]:
    filters = set()
    for text in call.queries("property"):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidConfigurationError(f"property filter {text!r}: write it as key=value")
        filters.add((key, value))
    await call.topics.namespaces.load_namespace(call.namespace())
    return [str(name) for name in await call.broker.controllers.list_topics(call.namespace(), filters)]


async def create(call: Call) -> None:
    segments = call.number("numInitialSegments")
    count = 1 if segments is None else segments
    properties = await call.body(dict[str, str])
    await call.topics.namespaces.load_namespace(call.namespace())
    _check_count(count)
    name, controllers = call.topic("topic"), call.broker.controllers
    await call.once("record", lambda: controllers.record_topic(name, count, properties or {}))
    await controllers.lead_new(name)


def _check_count(count: int) -> None:
    if count > SEGMENTS_AT_ONCE_MAX:
        raise InvalidConfigurationError(
            f"one call creates at most {SEGMENTS_AT_ONCE_MAX} segments, not {count}; split the segments again"
        )


async def delete(call: Call) -> None:
    name, force = call.topic("topic"), call.flag("force")

    async def unused() -> int:
        incarnation = (await call.topics.load(name)).incarnation
        if not force:
            await check_unused(call, name)
        return incarnation

    incarnation = await call.once("incarnation", unused)
    # The topic existed when this call began: if it does not exist now, it is deleted.
    with suppress(TopicNotFoundError):
        await call.broker.controllers.delete_topic(name, force=force, incarnation=incarnation)
    await forget_topic(call, name)


async def split(call: Call) -> None:
    points, parts = call.numbers("points"), call.number("parts")
    by_traffic = call.flag("byTraffic")
    if points is not None and (parts is not None or by_traffic):
        raise InvalidConfigurationError("give either points or parts and byTraffic, not both")
    id_ = call.number_part("segment")

    async def cut() -> Sequence[int] | None:
        segment = layout_of(await call.record()).segment(id_)
        if parts is not None and parts < 2:
            raise InvalidConfigurationError(f"a split makes two parts or more, not {parts}")
        _check_count(parts or len(points or ()) + 1)
        if by_traffic:
            return await _split_points(call, id_, parts or 2)
        return points if parts is None else tuple(part.start for part in segment.range.parts(parts)[1:])

    expected = await _layout_version(call)
    starts = await call.once("points", cut)
    await (await call.leader()).split(id_, starts, expected)


async def merge(call: Call) -> None:
    ids = [whole(text, "segment") for text in call.part("segments").split("/")]
    expected = await _layout_version(call)
    await (await call.leader()).merge(ids, expected)


async def rebucket(call: Call) -> None:
    call.broker.engine.check_rebucket()
    count, boundaries = call.number("bucketCount"), call.numbers("boundaries")
    if (count is None) == (boundaries is None):
        raise InvalidConfigurationError("give either bucketCount or boundaries")
    by_traffic, id_ = call.flag("byTraffic"), call.number_part("segment")
    if by_traffic and count is None:
        raise InvalidConfigurationError("byTraffic places boundaries by itself; give bucketCount")

    async def cut() -> Sequence[int]:
        if boundaries is not None:
            return boundaries
        equal = equal_bucket_splits(count or 0)
        return await _bucket_splits(call, id_, len(equal) + 1) if by_traffic else equal

    expected = await _layout_version(call)
    await (await call.leader()).rebucket(id_, await call.once("boundaries", cut), expected)


async def _layout_version(call: Call) -> LayoutVersion:
    """Return the layout that the call refers to."""

    async def read() -> LayoutVersion:
        record = await call.record()
        return LayoutVersion(record.incarnation, record.epoch)

    return await call.once("layout", read)


async def why(call: Call) -> Explanation:
    """The explanation of the leader, with the hottest keys and the largest lanes."""
    shown = await (await call.leader()).explain()
    return msgspec.convert({**shown, **await hot_spots(call)}, Explanation)


async def stats(call: Call) -> ScalableStats:
    """The stats of the leader, with the owner of each segment and the lanes of each subscription."""
    shown = await (await call.leader()).stats()
    subscriptions: dict[str, Any] = shown["subscriptions"]  # type: ignore[assignment]
    found = await lane_figures(call)
    for name, figures in subscriptions.items():
        lanes = found.get(name, {})
        consumable = figures["backlog"] - lanes.get("laneMessages", 0)
        figures.update(lanes, consumableBacklog=max(consumable, 0))
    record = await call.record()
    about: dict[str, Any] = shown["segments"]  # type: ignore[assignment]
    for id_, segment in record.segments.items():
        if str(id_) in about:
            owner = call.broker.directory.owner_of(segment.store)
            about[str(id_)] |= {
                "store": segment.store,
                "ownerBroker": None if owner is None else owner.url or owner.url_tls,
            }
    return msgspec.convert(shown, ScalableStats)


async def get_properties(call: Call) -> dict[str, str]:
    return (await call.record()).properties


async def set_properties(call: Call) -> None:
    """Change the given properties and leave the others."""
    given = await call.body(dict[str, str]) or {}
    await (await call.leader()).set_properties(given)


async def delete_property(call: Call) -> None:
    key = call.query("key")
    if not key:
        raise InvalidConfigurationError("key must be given: the property to remove")
    await (await call.leader()).set_properties({key: None})


async def get_metadata(call: Call) -> ScalableMetadata:
    """The stored record: the segments, and the change that is under way."""
    return shown_record(await call.record())


def shown_record(record: records.TopicRecord) -> ScalableMetadata:
    """Return a stored record as a body."""
    return msgspec.convert(msgspec.to_builtins(record), ScalableMetadata)


async def _split_points(call: Call, id_: int, parts: int) -> tuple[int, ...]:
    """Return the first slot of each part after the first; ConflictError while the traffic is unknown."""
    segment, traffic = await _traffic(call, id_)
    return balanced_points(segment.range, traffic.ring_weights(segment.range), parts)


async def _bucket_splits(call: Call, id_: int, buckets: int) -> tuple[int, ...]:
    """Return the first hash of each bucket after the first; ConflictError while the traffic is unknown."""
    _, traffic = await _traffic(call, id_)
    return balanced_bucket_splits(traffic.bucket_weights(), buckets)


async def _traffic(call: Call, id_: int) -> tuple[Segment, TrafficSummary]:
    segment = layout_of(await call.record()).segment(id_)
    place = Place(segment_name(call.topic("topic"), segment), segment.store)
    load = await call.broker.controllers.context.segments.load(place)
    if not load.traffic.ring:
        raise ConflictError(
            f"the traffic of segment {id_} is not known: too few messages came lately; "
            "publish more, or leave byTraffic out"
        )
    return segment, load.traffic


NAMESPACE = "/admin/v2/scalable/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"

FORCE = {"force": bool}

ENDPOINTS = [
    AdminEndpoint("GET", NAMESPACE, NAMES, list_topics, query={"property": list[str]}, client="list_topics"),
    AdminEndpoint(
        "PUT",
        TOPIC,
        SCALABLE_ADMIN,
        create,
        body=dict[str, str],
        query={"numInitialSegments": int},
        client="create_topic",
    ),
    AdminEndpoint("GET", TOPIC, SCALABLE_LOOK, get_metadata, client="topic_metadata"),
    AdminEndpoint("DELETE", TOPIC, SCALABLE_ADMIN, delete, query=FORCE, client="delete_topic"),
    AdminEndpoint("GET", TOPIC + "/stats", SCALABLE_LOOK, stats, client="topic_stats"),
    AdminEndpoint("GET", TOPIC + "/why", SCALABLE_LOOK, why, client="why"),
    AdminEndpoint("POST", TOPIC + "/migrate", SCALABLE_PRODUCE, migrate, query=FORCE, client="migrate"),
    AdminEndpoint(
        "POST",
        TOPIC + "/split/{segment}",
        SUPERUSER,
        split,
        query={"points": str, "parts": int, "byTraffic": bool},
        client="split",
    ),
    AdminEndpoint("POST", TOPIC + "/merge/{segments:path}", SUPERUSER, merge, client="merge"),
    AdminEndpoint(
        "POST",
        TOPIC + "/rebucket/{segment}",
        SUPERUSER,
        rebucket,
        query={"bucketCount": int, "boundaries": str, "byTraffic": bool},
        client="rebucket",
    ),
    AdminEndpoint("GET", TOPIC + "/properties", SCALABLE_LOOK, get_properties),
    AdminEndpoint(
        "PUT",
        TOPIC + "/properties",
        SCALABLE_ADMIN,
        set_properties,
        body=dict[str, str],
        client="set_properties",
    ),
    AdminEndpoint(
        "DELETE",
        TOPIC + "/properties",
        SCALABLE_ADMIN,
        delete_property,
        query={"key": str},
        client="delete_property",
    ),
]
