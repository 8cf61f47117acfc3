"""The parts of a broker that logs and subscriptions are made with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from anabranch.clock import Clock
from anabranch.ledger.storage import SegmentLog
from anabranch.model.drains import Ranges
from anabranch.model.names import TopicName

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
