"""How two hosts reach each other, and the port of an observer of their connections."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anabranch.testing.simtransport import SimTransport

LATENCY_S = (0.0001, 0.002)
PIECES = 0.1


class Mode(Enum):
    """How a link treats bytes."""

    OPEN = "open"
    HELD = "held"
    """Bytes wait and arrive after the link opens again: a short partition."""
    BLACK_HOLE = "black hole"
    """Bytes are lost without an error; a connection that lost bytes is reset at its next use."""


@dataclass(slots=True)
class SimLink:
    """The latency and mode between two hosts, in both directions."""

    rng: random.Random
    latency_s: tuple[float, float] = LATENCY_S
    pieces: float = PIECES
    """Probability that a chunk arrives in two pieces."""
    mode: Mode = Mode.OPEN
    ends: dict[SimTransport, None] = field(default_factory=dict)
    """Both ends of every open connection, oldest first."""

    def delay_s(self) -> float:
        return self.rng.uniform(*self.latency_s)


class Tap(Protocol):
    """Observes every connection and changes nothing; `end` is the side of the event."""

    def sending(self, end: SimTransport, data: bytes) -> None:
        """The process of this end has written bytes; they may still be lost."""
        ...

    def receiving(self, end: SimTransport, data: bytes) -> None:
        """The process of this end is about to receive bytes."""
        ...

    def received(self, end: SimTransport) -> None:
        """The process of this end has handled the bytes."""
        ...

    def ended(self, end: SimTransport) -> None:
        """The connection has ended at this end."""
        ...
