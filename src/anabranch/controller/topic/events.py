"""Events of one led topic that no caller waits for; the parts of the topic report them to its controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The grace period of a lost consumer ended; reported again until the consumer is gone or back."""

    subscription: str
    token: int


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """A consumer joined or left a group."""


@dataclass(frozen=True, slots=True)
class DrainsReported:
    """Owners have reported drained segments."""


@dataclass(frozen=True, slots=True)
class RostersDue:
    """Rosters that owners did not take have to be sent again."""


@dataclass(frozen=True, slots=True)
class GarbageFound:
    """The topic's record lists segments whose storage has to be deleted."""


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """Another broker leads the topic, or the topic is gone."""


TopicEvent = GraceOver | MembersChanged | DrainsReported | RostersDue | GarbageFound | LeadershipLost

Notify = Callable[[TopicEvent], None]
