"""The cursor of a reader, which is never stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.model.acks import AckSet


class VolatileCursor:
    """A cursor that lives as long as its consumers."""

    def __init__(self, name: str, ordinal: int) -> None:
        self.name = name
        self.acks = AckSet(ordinal)
        self.properties: Mapping[str, str] = {}

    def acknowledge(self, ordinals: Iterable[int]) -> None:
        self.acks.acknowledge(ordinals)

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> None:
        self.acks.acknowledge_part(ordinal, remaining, count)

    def acknowledge_up_to(self, ordinal: int) -> None:
        self.acks.acknowledge_up_to(ordinal)

    def reset(self, ordinal: int) -> None:
        self.acks.reset(ordinal)

    async def flush(self) -> None:
        return None
