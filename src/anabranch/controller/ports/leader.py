"""The leader of a topic, on this or another broker, and how to find it.

Any broker accepts any request about a topic and passes it on to the leader through this port. The owner of a
topic's home store leads the topic. This module does not know how brokers talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.decide.operation import LayoutVersion
from anabranch.controller.decide.registration_request import PLAIN_REQUEST, RegistrationRequest
from anabranch.controller.ports.segments import Aim, Drained
from anabranch.controller.ports.verbs import ends_session, opens_session
from anabranch.metadata.records import InitialPosition, PolicyFields, SubscriptionKind
from anabranch.model.assignment import Assignment
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

Push = Callable[[Assignment | None], None]
"""Sends a consumer its assignment. None tells it to register again, because the leader has changed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A connection's hold on a member's name. The token distinguishes it from later connections."""

    token: int
    subscription: str
    consumer_name: str
    assignment: Assignment
    incarnation: int
    """The incarnation of the topic that the subscription belongs to."""


class TopicLeader(Protocol):
    """The requests to the leader of a topic."""

    async def settled(self) -> None:
        """Return once no earlier change is unfinished. Raises the error that prevents it."""

    async def stats(self) -> dict[str, object]:
        """Return segment rates and sizes, subscription states and backlogs, and the effective policy."""

    async def explain(self) -> dict[str, object]:
        """Return the running operation, waiting changes, troubles and last decisions, for operators."""

    async def split(
        self, segment_id: int, points: Sequence[int] | None = None, expected: LayoutVersion | None = None
    ) -> Layout:
        """Split a segment in the middle, or at these start hashes of the children after the first.

        If the change was made since the caller saw `expected`, it is not made again. The same holds for
        `merge` and `rebucket`.
        """

    async def merge(self, ids: Sequence[int], expected: LayoutVersion | None = None) -> Layout:
        """Merge adjacent segments."""

    async def rebucket(
        self, segment_id: int, splits: Sequence[int], expected: LayoutVersion | None = None
    ) -> Layout:
        """Replace a segment with one that has these bucket boundaries."""

    async def set_policy(self, override: PolicyFields | None) -> None:
        """Replace the topic's layer of the policy. Raises InvalidConfigurationError if it does not fit."""

    async def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Change these properties of the topic and leave the others. None removes a property."""

    async def delete(self, *, force: bool = False, incarnation: int | None = None) -> None:
        """Make the topic vanish for all clients; the service removes its records and storage.

        ConsumerBusyError while registered consumers are connected, unless forced. TopicNotFoundError if the
        topic has another incarnation than the given one.
        """

    async def ensure_subscription(
        self, sub: str, kind: SubscriptionKind, start: InitialPosition, opened_in: int | None = None
    ) -> None:
        """Register the subscription and create it on all active segments at `start`.

        At earliest, sealed segments get it too; at latest, they count as drained. When this returns, the
        children of every running and later operation get the subscription.
        """

    async def admit(self, sub: str, request: AttachRequest) -> Admission:
        """Let a consumer attach to a segment, and create the subscription as `ensure_subscription` does.

        Raises ConsumerBusyError if registered consumers read the subscription and this consumer does not read
        this segment, or its generation is not the newest.
        """

    async def remind(self, sub: str) -> None:
        """Push assignments again to consumers whose clients may have missed them."""

    async def delete_subscription(
        self, sub: str, *, force: bool = False, created_at_ms: int | None = None
    ) -> None:
        """Remove the subscription, if created then.

        Raises ConsumerBusyError while it is in use, unless forced.
        """

    async def seek(self, sub: str, timestamp_ms: int) -> None:
        """Move the subscription to a time, on all segments."""

    async def seek_segment(self, sub: str, segment_id: int, to: Aim | int) -> None:
        """Move the subscription on one segment, to an entry or a time. Its children wait for it again."""

    async def skip_all(self, sub: str) -> None:
        """Acknowledge everything stored so far on the subscription."""

    @opens_session(push="push", lost="connection_lost")
    async def register(
        self, sub: str, consumer_name: str, push: Push, request: RegistrationRequest = PLAIN_REQUEST
    ) -> Membership:
        """Make a consumer a member and return its assignment; `push` gets each later one.

        Raises ConsumerBusyError while another consumer of that name is alive. While one member reads only
        whole segments, no segment is shared by buckets. A member of a checkpoint group registers again when
        it has finished more segments.
        """

    @ends_session("membership")
    async def leave(self, membership: Membership) -> None:
        """Remove a member and assign its segments to the other members, now or as soon as possible."""

    @ends_session("membership")
    def connection_lost(self, membership: Membership) -> None:
        """Start the grace period of a member whose connection was lost."""

    async def drained(self, event: Drained) -> None:
        """Report a drained sealed segment. When this returns, the leader has accepted the report."""


class Leaders(Protocol):
    """The owners of stores, and so the leaders of topics, as this broker knows them. May be outdated."""

    def owns(self, store: int) -> bool:
        """Return whether this broker owns the store, and so leads the topics whose home it is."""

    def remote(self, store: int, name: TopicName) -> TopicLeader | None:
        """Return a topic's leader on another broker, or None if no other broker owns its home store."""

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when owners may have changed. Returns an undo function."""
