"""Events of one led topic that no caller waits for; the parts of the topic report them to its controller."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple


class GraceOver(NamedTuple):
    """The grace period of a lost consumer ended; reported again until the consumer is gone or back."""

    subscription: str
    token: int


class Happened(Enum):
    MEMBERS_CHANGED = auto()
    """A consumer joined or left a group."""
    DRAINS_REPORTED = auto()
    """Owners have reported drained segments."""
    ROSTERS_DUE = auto()
    """Rosters that owners did not take have to be sent again."""
    GARBAGE_FOUND = auto()
    """The topic's record lists segments whose storage has to be deleted."""
    LEADERSHIP_LOST = auto()
    """Another broker leads the topic, or the topic is gone."""


TopicEvent = GraceOver | Happened

Notify = Callable[[TopicEvent], None]
