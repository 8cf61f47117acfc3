"""The controller's port to segments, at this or another broker.

Every verb may be repeated, and carries the leader's term: an owner that knows a newer term raises
StaleTermError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from anabranch.controller.decide.admission import Roster
from anabranch.controller.decide.consistency import LogState
from anabranch.metadata.records import InitialPosition
from anabranch.model.drains import ALL, Ranges
from anabranch.model.inheritance import Pieces
from anabranch.model.names import Place, TopicName
from anabranch.model.scaling.traffic_sketch import NO_TRAFFIC, TrafficSummary


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """Rates of one segment as its owner measures them, the size of its storage, and what is wrong there."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    backlog_messages: int = 0
    size_bytes: int = 0
    troubles: tuple[str, ...] = ()
    """Entries that cannot be read, damaged entries that were passed, a disk that is full."""
    clients: int = 0
    """Producers and consumers that are attached to the segment."""
    traffic: TrafficSummary = NO_TRAFFIC
    """The published load by key hash, while the owner has seen enough of it."""
    next_index: int = -1
    """The index after the last message; -1 if the owner does not know the log, or does not tell."""


class Aim(NamedTuple):
    """An entry to move a cursor to; `ack_set` has its unacknowledged messages, if not all are."""

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

    async def create(self, place: Place, subscriptions: Mapping[str, InitialPosition], term: int) -> LogState:
        """Create the segment's storage and these subscriptions; those that exist stay as they are."""

    async def seal(self, place: Place, term: int) -> Pieces:
        """Refuse all later messages, durably; returns the sequence ids that the children inherit."""

    async def inherit(self, place: Place, pieces: Pieces, term: int) -> None:
        """Let a new segment recognise repetitions of messages that its parents stored, durably."""

    async def trim(self, place: Place, keep_bytes: int, term: int) -> None:
        """Drop acknowledged ledgers from the start while at least `keep_bytes` stay."""

    async def delete(self, place: Place, term: int) -> None:
        """Remove the storage and disconnect clients; does nothing if the segment is absent."""

    async def create_subscription(
        self, place: Place, subscription: str, start: InitialPosition, term: int
    ) -> None:
        """Create the subscription if it does not exist.

        A creation is repeated until it succeeds, and consumers wait until then. So one at earliest may move
        a subscription that an earlier attempt has made.
        """

    async def delete_subscription(self, place: Place, subscription: str, term: int) -> None: ...

    async def seek(self, place: Place, subscription: str, timestamp_ms: int, term: int) -> None:
        """Move the subscription to the first entry at or after the time."""

    async def seek_to(self, place: Place, subscription: str, aim: Aim, term: int) -> None:
        """Move the subscription to an entry, or to the next stored one."""

    async def skip_all(self, place: Place, subscription: str, term: int) -> None: ...

    async def restrict(self, place: Place, subscription: str, roster: Roster, term: int) -> None:
        """Let only the readers of the roster read; an older roster or an absent segment changes nothing.

        Consumers that are gone are disconnected and can acknowledge no more. Consumers that finish get no
        further messages.
        """

    async def consumers(self, place: Place, subscription: str) -> int:
        """The number of attached consumers, registered or not."""

    async def backlog(self, place: Place, subscription: str) -> int | None:
        """The number of unacknowledged messages; None if the segment lacks the subscription."""

    async def drained(self, place: Place, subscription: str) -> Ranges | None:
        """The durably acknowledged bucket hashes, maybe fewer after a restart; None if not subscribed.

        Raises TopicNotFoundError if the store of the segment has no such log.
        """

    async def load(self, place: Place) -> SegmentLoad: ...

    def on_drained(self, topic: TopicName, drained: Callable[[Drained], None]) -> Callable[[], None]:
        """Call `drained` when a sealed segment of `topic` is drained, wholly or partly; returns the undo."""
