"""Questions about many segments of a topic, asked of the brokers in parts.

The answers are tails (kept for a while if a segment is sealed), the positions at a time, and the positions of
a subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, Protocol, TypeVar

from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.spark.decide.source.topology import Topology

T = TypeVar("T")

ASKED_AT_ONCE = 64
"""Segments in one round of questions."""

SEALED_TAIL_TTL_S = 30.0
"""How long the tail of a sealed segment is kept: its end is final, but trimming moves its start."""


class Tails(Protocol[T]):
    """Asks brokers for the tails of topics, through one subscription per topic."""

    async def tails(self, topics: list[str]) -> dict[str, T]: ...

    def forget(self, topic: str) -> None: ...


class KeptTails(Generic[T]):
    """Tails by the names of segments."""

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
    """Return the first position of each segment that was published then or later, or its end."""
    found = await of_all(names, lambda name: tails.at_time(name, time_ms))
    return {id_: place.index for id_, place in found.items()}


async def cursor_positions(
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
