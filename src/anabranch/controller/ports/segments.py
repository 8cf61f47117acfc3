"""The controller's port to segments, on this or another broker.

Every verb may be repeated, and carries the leader's term: an owner that knows a newer term raises
StaleTermError and changes nothing. Without the term, a leader that was paused during a split could seal or
delete segments after its successor has finished that split.
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
    """A segment's rates as its owner measures them, the size of its storage, and its troubles."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    backlog_messages: int = 0
    size_bytes: int = 0
    troubles: tuple[str, ...] = ()
    """Unreadable entries, damaged entries that were skipped, or a full disk."""
    clients: int = 0
    """The number of producers and consumers attached to the segment."""
    traffic: TrafficSummary = NO_TRAFFIC
    """The published load by key hash, once the owner has seen enough messages."""
    next_index: int = -1
    """The index after the last message; -1 if the owner does not know the log, or does not report it."""


class Aim(NamedTuple):
    """An entry to move a cursor to; `ack_set` has its unacknowledged messages, if not all are."""

    ledger: int
    entry: int
    ack_set: tuple[int, ...] = ()


class Drained(NamedTuple):
    """A sealed segment, or these bucket hashes of it, has been fully acknowledged on a subscription."""

    segment: TopicName
    subscription: str
    ranges: Ranges = ALL


class Segments(Protocol):
    """Create, seal, delete and observe segments."""

    async def create(self, place: Place, subscriptions: Mapping[str, InitialPosition], term: int) -> LogState:
        """Create the segment's storage and these subscriptions. Existing ones are left unchanged."""

    async def seal(self, place: Place, term: int) -> Pieces:
        """Durably refuse all later messages. Returns the sequence ids that the children inherit."""

    async def inherit(self, place: Place, pieces: Pieces, term: int) -> None:
        """Let a new segment durably recognise duplicates of messages that its parents stored."""

    async def trim(self, place: Place, keep_bytes: int, term: int) -> None:
        """Drop acknowledged ledgers from the start, as long as at least `keep_bytes` remain."""

    async def delete(self, place: Place, term: int) -> None:
        """Remove the storage and disconnect clients. Does nothing if the segment does not exist."""

    async def create_subscription(
        self, place: Place, subscription: str, start: InitialPosition, term: int
    ) -> None:
        """Create the subscription if it does not exist.

        A creation is repeated until it succeeds, and consumers wait until then. So a creation at earliest may
        move a subscription that an earlier attempt has made.
        """

    async def delete_subscription(self, place: Place, subscription: str, term: int) -> None: ...

    async def seek(self, place: Place, subscription: str, timestamp_ms: int, term: int) -> None:
        """Move the subscription to the first entry at or after the time."""

    async def seek_to(self, place: Place, subscription: str, aim: Aim, term: int) -> None:
        """Move the subscription to an entry, or to the next stored one."""

    async def skip_all(self, place: Place, subscription: str, term: int) -> None: ...

    async def restrict(self, place: Place, subscription: str, roster: Roster, term: int) -> None:
        """Let only the readers in the roster read. An older roster or a missing segment has no effect.

        Consumers that are gone are disconnected and can no longer acknowledge. Consumers that finish get no
        further messages.
        """

    async def consumers(self, place: Place, subscription: str) -> int:
        """Return the number of attached consumers, registered or not."""

    async def backlog(self, place: Place, subscription: str) -> int | None:
        """Return the number of unacknowledged messages, or None if the segment lacks the subscription."""

    async def drained(self, place: Place, subscription: str) -> Ranges | None:
        """Return the durably acknowledged bucket hashes, perhaps fewer after a restart.

        None if not subscribed.

        Raises TopicNotFoundError if the store of the segment has no such log.
        """

    async def load(self, place: Place) -> SegmentLoad: ...

    def on_drained(self, topic: TopicName, drained: Callable[[Drained], None]) -> Callable[[], None]:
        """Call `drained` when a sealed segment of `topic` is drained, wholly or partly.

        Returns an undo function.
        """
