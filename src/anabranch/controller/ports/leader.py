"""The leader of a topic, at this or another broker, and how to find it.

Any broker takes any request about a topic and passes it on to the leader through this port. The owner of a
topic's home store leads the topic. Must not know how brokers talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.decide.groups import PLAIN_REQUEST, RegistrationRequest
from anabranch.controller.decide.operation import LayoutVersion
from anabranch.controller.ports.segments import Aim, Drained, StartAt
from anabranch.controller.ports.verbs import ends_session, opens_session
from anabranch.metadata.records import SubscriptionKind
from anabranch.model.assignment import Assignment
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScaleOverride

Push = Callable[[Assignment | None], None]
"""Sends a consumer its assignment; None tells it to register again, because the leader has changed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A connection's hold on a member's name; the token distinguishes it from later connections."""

    token: int
    subscription: str
    consumer_name: str
    assignment: Assignment
    incarnation: int
    """Of the topic that the subscription belongs to."""


class TopicLeader(Protocol):
    """The requests to the leader of a topic; TopicController documents each verb."""

    async def settled(self) -> None: ...

    async def stats(self) -> dict[str, object]: ...

    async def explain(self) -> dict[str, object]: ...

    async def split(
        self, segment_id: int, points: Sequence[int] | None = None, expected: LayoutVersion | None = None
    ) -> Layout: ...

    async def merge(self, ids: Sequence[int], expected: LayoutVersion | None = None) -> Layout: ...

    async def rebucket(
        self, segment_id: int, splits: Sequence[int], expected: LayoutVersion | None = None
    ) -> Layout: ...

    async def set_policy(self, override: AutoScaleOverride | None) -> None: ...

    async def set_properties(self, properties: Mapping[str, str | None]) -> None: ...

    async def delete(self, *, force: bool = False, incarnation: int | None = None) -> None: ...

    async def ensure_subscription(
        self, sub: str, kind: SubscriptionKind, start: StartAt, opened_in: int | None = None
    ) -> None: ...

    async def admit(self, sub: str, request: AttachRequest) -> Admission: ...

    async def remind(self, sub: str) -> None: ...

    async def delete_subscription(
        self, sub: str, *, force: bool = False, created_at_ms: int | None = None
    ) -> None: ...

    async def seek(self, sub: str, timestamp_ms: int) -> None: ...

    async def seek_segment(self, sub: str, segment_id: int, to: Aim | int) -> None: ...

    async def skip_all(self, sub: str) -> None: ...

    @opens_session(push="push", lost="connection_lost")
    async def register(
        self,
        sub: str,
        consumer_name: str,
        push: Push,
        request: RegistrationRequest = PLAIN_REQUEST,
    ) -> Membership: ...

    @ends_session("registration")
    async def leave(self, registration: Membership) -> None: ...

    @ends_session("registration")
    def connection_lost(self, registration: Membership) -> None: ...

    async def drained(self, event: Drained) -> None:
        """Report a drained sealed segment; the leader has taken the report when this returns."""
        ...


class Leaders(Protocol):
    """The owners of stores, and so the leaders of topics, as this broker knows them; may be outdated."""

    def owns(self, store: int) -> bool:
        """Whether this broker owns the store, and so leads the topics that have it as home."""
        ...

    def remote(self, store: int, name: TopicName) -> TopicLeader | None:
        """The leader of a topic at another broker; None while no other broker owns its home store."""
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when owners may have changed; returns the undo."""
        ...


class Alone:
    """The only broker: it owns all stores."""

    def owns(self, store: int) -> bool:
        return True

    def remote(self, store: int, name: TopicName) -> TopicLeader | None:
        return None

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
