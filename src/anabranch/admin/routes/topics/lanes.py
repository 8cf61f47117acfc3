"""`.../lanes`: the lanes of a subscription, over all partitions or segments of its topic.

A lane is named by its slot, and by the partition or segment before it, `SEGMENT:SLOT`, where a topic may have
several.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call, whole
from anabranch.admin.models.lanes import LaneInfo, LaneMessage, SkippedEntries
from anabranch.admin.routes.scalable.subscriptions import existing_subscription
from anabranch.admin.routes.topics.topics import subscribed_places
from anabranch.aio import together
from anabranch.controller.decide.operation import segment_name
from anabranch.errors import (
    AnabranchError,
    InvalidConfigurationError,
    NotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.metadata.layouts import layout_of
from anabranch.model.names import Place
from anabranch.rights.rows import CLASSIC_SUBSCRIPTION, SCALABLE_SUBSCRIPTION

LISTED_MAX: Final = 1000
"""Most lanes of one answer."""

PEEKED: Final = 10

EXPLAINED: Final = 5
"""Keys of a segment, and lanes of a subscription, that `why` names."""


class LanePart(NamedTuple):
    """A partition or segment with the subscription; `label` is "" if the topic has no other."""

    label: str
    place: Place


Find = Callable[[Call], Awaitable[tuple[str, Sequence[LanePart]]]]
"""Gives the subscription that a path names, and all parts of the topic that may have its lanes."""


async def classic_parts(call: Call) -> tuple[str, Sequence[LanePart]]:
    places, name, _ = await subscribed_places(call)
    parts = (place.name.partition for place in places)
    if call.topic("persistent").partition is not None:
        return name, [LanePart("", place) for place in places]
    return name, [
        LanePart("" if part is None else str(part), place) for part, place in zip(parts, places, strict=True)
    ]


async def segment_parts(call: Call) -> tuple[str, Sequence[LanePart]]:
    subscription, _ = await existing_subscription(call)
    return subscription, await _segments(call)


async def _segments(call: Call) -> Sequence[LanePart]:
    topic, layout = call.topic("topic"), layout_of(await call.record())
    segments = [layout.segments[id_] for id_ in sorted(layout.segments)]
    return [
        LanePart(str(segment.id), Place(segment_name(topic, segment), segment.store)) for segment in segments
    ]


class LaneCalls:
    """The handlers for one kind of topics."""

    def __init__(self, find: Find) -> None:
        self._find = find

    async def list_lanes(self, call: Call) -> list[LaneInfo]:
        subscription, parts = await self._find(call)
        found = await together(_lanes_of(call, part, subscription) for part in parts)
        lanes = [lane for some in found for lane in some]
        return sorted(lanes, key=_largest_first)[:LISTED_MAX]

    async def show(self, call: Call) -> LaneInfo:
        part, subscription, slot = await self._named(call)
        return _labelled(part, await call.logs.lane(part.place, subscription, slot))

    async def peek(self, call: Call) -> list[LaneMessage]:
        count = call.number("count")
        count = PEEKED if count is None else _positive("count", count)
        part, subscription, slot = await self._named(call)
        found = await call.logs.peek_lane(part.place, subscription, slot, count)
        return msgspec.convert(found, list[LaneMessage])

    async def release(self, call: Call) -> None:
        part, subscription, slot = await self._named(call)
        await call.logs.release_lane(part.place, subscription, slot)

    async def skip(self, call: Call) -> SkippedEntries:
        count = call.number("count")
        if count is not None:
            _positive("count", count)
        part, subscription, slot = await self._named(call)
        call.repeatable = count is None
        skipped = await call.logs.skip_lane(part.place, subscription, slot, count)
        return SkippedEntries(skipped_entries=skipped)

    async def _named(self, call: Call) -> tuple[LanePart, str, int]:
        """Return the part, the subscription and the slot that the path names."""
        subscription, parts = await self._find(call)
        text = call.part("lane")
        label, colon, slot = text.rpartition(":")
        if not colon and len(parts) > 1:
            raise InvalidConfigurationError(
                f"lane {text!r}: name its partition or segment too, like {parts[0].label}:{text}"
            )
        for part in parts:
            if not colon or part.label == label:
                return part, subscription, whole(slot, "lane")
        raise NotFoundError(f"the topic has no partition or segment {label!r}; list the lanes")


async def _lanes_of(call: Call, part: LanePart, subscription: str) -> list[LaneInfo]:
    # Retention may have removed a sealed segment since the layout was read.
    with suppress(TopicNotFoundError, SubscriptionNotFoundError):
        found = await call.logs.lanes(part.place, subscription, LISTED_MAX)
        return [_labelled(part, lane) for lane in found]
    return []


def _labelled(part: LanePart, lane: dict[str, Any]) -> LaneInfo:
    """Return a lane with the name that other calls take."""
    name = f"{part.label}:{lane['slot']}" if part.label else str(lane["slot"])
    return msgspec.convert({**lane, "lane": name, "log": str(part.place.name)}, LaneInfo)


def _positive(name: str, count: int) -> int:
    if count < 1:
        raise InvalidConfigurationError(f"{name} must be at least 1, not {count}")
    return count


async def hot_spots(call: Call) -> dict[str, Any]:
    """Return the hottest keys of each segment of a topic, and the largest lanes of each subscription."""

    async def found_in(part: LanePart) -> tuple[LanePart, dict[str, Any]]:
        # An owner that does not answer, and a segment that is gone, are left out.
        with suppress(AnabranchError):
            return part, await call.logs.hot_spots(part.place, EXPLAINED)
        return part, {"keys": [], "lanes": {}}

    keys: dict[str, list[Any]] = {}
    lanes: dict[str, list[LaneInfo]] = {}
    for part, found in await together(found_in(part) for part in await _segments(call)):
        if found["keys"]:
            keys[part.label] = found["keys"]
        for name, some in found["lanes"].items():
            lanes.setdefault(name, []).extend(_labelled(part, lane) for lane in some)
    largest = {name: sorted(some, key=_largest_first)[:EXPLAINED] for name, some in lanes.items()}
    return {"hotKeys": keys, "lanes": largest}


async def lane_figures(call: Call) -> dict[str, dict[str, int]]:
    """Return the lane figures of each subscription; segments that do not answer are left out."""

    async def found_in(part: LanePart) -> dict[str, dict[str, int]]:
        with suppress(AnabranchError):
            return await call.logs.lane_figures(part.place)
        return {}

    sums: dict[str, dict[str, int]] = {}
    for found in await together(found_in(part) for part in await _segments(call)):
        for name, figures in found.items():
            known = sums.setdefault(name, dict.fromkeys(figures, 0))
            for figure, number in figures.items():
                known[figure] += number
    return sums


def _largest_first(lane: LaneInfo) -> int:
    return -(lane.held_entries or 0)


CLASSIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/lanes"
SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/lanes"

ENDPOINTS = [
    one
    for base, right, calls in (
        (CLASSIC, CLASSIC_SUBSCRIPTION, LaneCalls(classic_parts)),
        (SCALABLE, SCALABLE_SUBSCRIPTION, LaneCalls(segment_parts)),
    )
    for one in (
        AdminEndpoint("GET", base, right, calls.list_lanes, client="lanes"),
        AdminEndpoint("GET", base + "/{lane}", right, calls.show, client="lane"),
        AdminEndpoint(
            "GET", base + "/{lane}/messages", right, calls.peek, query={"count": int}, client="peek_lane"
        ),
        AdminEndpoint("POST", base + "/{lane}/release", right, calls.release, client="release_lane"),
        AdminEndpoint(
            "POST", base + "/{lane}/skip", right, calls.skip, query={"count": int}, client="skip_lane"
        ),
    )
]
