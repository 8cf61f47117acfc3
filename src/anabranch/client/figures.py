"""Figures of a client, as its application sees them, and the short descriptions of its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["open", "paused", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    """A producer of a client now."""

    topic: str
    name: str
    state: State
    last_sequence_id: int
    waiting_entries: int
    """Entries that are sent or ready, and not stored yet."""
    credit_waits: int
    """How often entries waited because the broker took no more."""


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """A consumer of a client now."""

    topic: str
    subscription: str | None
    """None for a checkpoint consumer."""
    name: str
    state: State
    segments: int
    """Segments that it is attached to."""
    received: int
    """Messages that the application got so far."""
    buffered: int
    """Messages that wait in the client for the application."""
    bad_entries: int


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """All producers and consumers of a client, and what they use together."""

    connections: int
    waiting_bytes: int
    """Bytes of messages that wait to be stored, against `memory_limit`."""
    producers: tuple[ProducerFigures, ...]
    consumers: tuple[ConsumerFigures, ...]


def described(thing: object, state: str, **parts: str | None) -> str:
    """A `repr`: the class, the parts that are known, and the state."""
    known = "".join(f" {name}={value}" for name, value in parts.items() if value)
    return f"<{type(thing).__name__}{known} {state}>"
