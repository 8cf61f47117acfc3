"""Values that logs, subscriptions, producers and consumers are made with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.clock import Clock
from anabranch.ledger.storage import SegmentLog
from anabranch.model.drains import Ranges
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb

Spawn = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Bounds of the read path, from the configuration."""

    batch_entries: int = 100
    batch_bytes: int = 5 * 2**20
    unacked_max: int = 200_000
    """Messages over all consumers of a shared subscription."""


@dataclass(frozen=True, slots=True)
class LogContext:
    """The clock, the limits, the tasks and the stored epochs that all logs of a broker share."""

    clock: Clock
    spawn: Spawn
    limits: SubscriptionLimits
    rate_window_s: float
    deduplicate: bool
    epoch_of: Callable[[TopicName], Awaitable[int]]
    """The number of the last exclusive producer of a topic, -1 when there was none."""
    next_epoch: Callable[[TopicName], Awaitable[int]]
    """Count one more exclusive producer, durably."""


@dataclass(frozen=True, slots=True)
class SubscriptionContext:
    """The log and the callbacks that all subscriptions of one log share."""

    log: SegmentLog
    partition: int
    broker: LogContext
    splits: Callable[[], tuple[int, ...]]
    """The bucket boundaries of the segment, as they are now."""
    report_drained: Callable[[str, Ranges], None]
    """Called with the name of a subscription and the slots that it has drained."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a client opens a producer."""

    epoch: int = 0
    mode: int = pb.Shared
    deduplicate: bool = True
    splits: tuple[int, ...] = ()
    """Bucket boundaries of the segment; an entry must lie within one bucket."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    connected_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a client attaches a consumer."""

    priority: int = 0
    unacked_max: int = 2**62
    epoch: int | None = None
    """Echoed in each MESSAGE; the client drops messages from before its last full redelivery."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    connected_at_ms: int = 0
    member: str | None = None
    """The registered consumer that attaches; None for a consumer that never registered."""
    generation: int = 0
    """The generation of the assignment that the member attaches with."""
