"""The tails of segments, asked for in parts; those of sealed segments are kept for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

TAILS_AT_ONCE = 64
SEALED_TAIL_TTL_S = 30.0
"""The end of a sealed segment is final; trimming moves its start."""


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
        for at in range(0, len(missing), TAILS_AT_ONCE):
            answers = await self._tails.tails(missing[at : at + TAILS_AT_ONCE])
            found |= answers
            for name, tail in answers.items():
                if is_sealed(name, tail):
                    self._sealed[name] = (tail, now)
                    self._tails.forget(name)
        return found
