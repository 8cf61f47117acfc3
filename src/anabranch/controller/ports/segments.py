"""The controller's port to segments, wherever they live.

A controller never assumes that a segment is local. Every verb may be repeated harmlessly, and carries the
leader's term: an owner that has seen a newer term raises StaleTermError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from anabranch.controller.decide.admission import Roster
from anabranch.controller.decide.places import Place
from anabranch.model.drains import ALL, Ranges
from anabranch.model.inheritance import Pieces
from anabranch.model.names import TopicName

StartAt = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """Rates of one segment as its owner measures them, and what its storage holds."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    backlog_messages: int = 0
    size_bytes: int = 0


class Aim(NamedTuple):
    """An entry to move a cursor to; `ack_set` are the messages of it that still count, if not all do."""

    ledger: int
    entry: int
    ack_set: tuple[int, ...] = ()


class Drained(NamedTuple):
    """All of a sealed segment, or of these bucket hashes in it, is acknowledged on a subscription."""

    segment: TopicName
    subscription: str
    ranges: Ranges = ALL


class Segments(Protocol):
    """Create, seal, delete and observe segments."""

    async def create(self, place: Place, subscriptions: Mapping[str, StartAt], term: int) -> None:
        """Make the segment's storage with these subscriptions; what exists already is kept as it is."""
        ...

    async def seal(self, place: Place, term: int) -> Pieces:
        """Refuse further messages for ever, durably; returns the sequence ids to hand on to successors."""
        ...

    async def inherit(self, place: Place, pieces: Pieces, term: int) -> None:
        """Let a new segment recognise what those before it have stored; durable when it returns."""
        ...

    async def trim(self, place: Place, keep_bytes: int, term: int) -> None:
        """Drop the beginning as far as it is acknowledged and as much as this stays; whole ledgers only."""
        ...

    async def delete(self, place: Place, term: int) -> None:
        """Remove the storage and disconnect clients; an absent segment is fine."""
        ...

    async def create_subscription(self, place: Place, subscription: str, start: StartAt, term: int) -> None:
        """Make the subscription where it does not exist yet."""
        ...

    async def delete_subscription(self, place: Place, subscription: str, term: int) -> None: ...

    async def seek(self, place: Place, subscription: str, timestamp_ms: int, term: int) -> None:
        """Move the subscription to the first entry at or after the time."""
        ...

    async def seek_to(self, place: Place, subscription: str, aim: Aim, term: int) -> None:
        """Move the subscription to an entry, or to the first after it if it is not stored."""
        ...

    async def skip_all(self, place: Place, subscription: str, term: int) -> None: ...

    async def restrict(self, place: Place, subscription: str, roster: Roster, term: int) -> None:
        """Let only these members read, from now on; an older roster, or an absent segment, changes nothing.

        Members that are gone are disconnected and can acknowledge nothing more; those that only finish get no
        more messages.
        """
        ...

    async def consumers(self, place: Place, subscription: str) -> int:
        """How many consumers are attached, registered or not."""
        ...

    async def backlog(self, place: Place, subscription: str) -> int | None:
        """Messages not acknowledged yet; None when the segment lacks the subscription."""
        ...

    async def drained(self, place: Place, subscription: str) -> Ranges | None:
        """The bucket hashes of a sealed segment that are acknowledged, durably; None without subscription.

        Of a segment that is drained in part its owner may know less than it told an earlier leader.
        """
        ...

    async def load(self, place: Place) -> SegmentLoad: ...

    def on_drained(self, topic: TopicName, drained: Callable[[Drained], None]) -> Callable[[], None]:
        """Tell when a sealed segment of `topic` becomes drained on a subscription, whole or in part.

        Returns the undo.
        """
        ...
