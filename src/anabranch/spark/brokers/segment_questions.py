"""Asks brokers about many segments of a topic, a limited number at a time.

The answers are the tails of segments (cached for a while if a segment is sealed), their positions at a time,
and the positions of a subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, Protocol, TypeVar

from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.spark.decide.source.topology import Topology

T = TypeVar("T")

ASKED_AT_ONCE = 64
"""Segments that are asked about at the same time."""

SEALED_TAIL_TTL_S = 30.0
"""How long the tail of a sealed segment is cached: its end is final, but trimming moves its start."""


class Tails(Protocol[T]):
    """Asks brokers for the tails of topics, through one subscription per topic."""

    async def tails(self, topics: list[str]) -> dict[str, T]: ...

    def forget(self, topic: str) -> None: ...


class KeptTails(Generic[T]):
    """The tails of segments by name; those of sealed segments are cached."""

    def __init__(self, tails: Tails[T]) -> None:
        self._tails = tails
        self._sealed: dict[str, tuple[T, float]] = {}

    def clear(self) -> None:
        """Ask for the tails of sealed segments again."""
        self._sealed.clear()

    async def of(self, names: Collection[str], is_sealed: Callable[[str, T], bool]) -> dict[str, T]:
        """Return the tail of each segment."""
        now = asyncio.get_running_loop().time()
        found = {
            name: tail
            for name, (tail, asked_at) in self._sealed.items()
            if now - asked_at < SEALED_TAIL_TTL_S and name in names and is_sealed(name, tail)
        }
        missing = [name for name in names if name not in found]
        for at in range(0, len(missing), ASKED_AT_ONCE):
            answers = await self._tails.tails(missing[at : at + ASKED_AT_ONCE])
            found |= answers
            for name, tail in answers.items():
                if is_sealed(name, tail):
                    self._sealed[name] = (tail, now)
                    self._tails.forget(name)
        return found


async def positions_at(tails: SegmentTails, names: Mapping[int, str], time_ms: int) -> dict[int, int]:
    """Return each segment's first position that was published then or later, or its end."""
    found = await of_all(names, lambda name: tails.at_time(name, time_ms))
    return {id_: place.index for id_, place in found.items()}


async def cursor_positions(
    tails: SegmentTails, names: Mapping[int, str], subscription: str, topology: Topology
) -> dict[int, int] | None:
    """Return each segment's first position that a subscription has not acknowledged, or None without it.

    A segment that was sealed before the subscription was created lacks it. None of its messages are due then.
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
