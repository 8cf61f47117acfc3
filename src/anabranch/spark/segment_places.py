"""Positions that only brokers know: at a time, and of a subscription. Many segments are asked at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from anabranch.client.consume.segment_tails import SegmentTails
from anabranch.spark.decide.topology import Topology

T = TypeVar("T")

ASKED_AT_ONCE = 64


async def places_at(tails: SegmentTails, names: Mapping[int, str], time_ms: int) -> dict[int, int]:
    """Return the first position of each segment that was published then or later, or its end."""
    found = await of_all(names, lambda name: tails.at_time(name, time_ms))
    return {id_: place.index for id_, place in found.items()}


async def places_of(
    tails: SegmentTails, names: Mapping[int, str], subscription: str, topology: Topology
) -> dict[int, int] | None:
    """Return the first position of each segment that a subscription has not acknowledged; None without it.

    A segment that was sealed before the subscription began lacks it; nothing of the segment is due then.
    """
    found = await of_all(names, lambda name: tails.unacknowledged(name, subscription))
    if all(place is None for place in found.values()):
        return None
    return {id_: topology.tails[id_].next if place is None else place.index for id_, place in found.items()}


async def of_all(names: Mapping[int, str], ask: Callable[[str], Awaitable[T]]) -> dict[int, T]:
    """Return the answer about each segment; the names are by segment id."""
    found: dict[int, T] = {}
    ids = sorted(names)
    for at in range(0, len(ids), ASKED_AT_ONCE):
        some = ids[at : at + ASKED_AT_ONCE]
        found |= dict(zip(some, await asyncio.gather(*(ask(names[id_]) for id_ in some)), strict=True))
    return found
