"""The leadership of one topic: its term and record, its events, and the context of its controller.

A leader raises the term in the record when it takes the topic over. From then on every write checks the term
and every command to a segment carries it, so writes and commands of earlier leaders have no effect. A lease
alone would not be enough: a process that is paused longer than its lease does not notice, and continues with
the command that it was about to send.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from anabranch.aio import Backoff
from anabranch.clock import Clock
from anabranch.config.broker import BrokerConfig
from anabranch.controller.decide.operation import Origin, segment_name
from anabranch.controller.ports.segments import SegmentLoad, Segments
from anabranch.errors import AnabranchError, StaleTermError
from anabranch.failpoints import Failpoints, NoFailpoints
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import TopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import Place, TopicName
from anabranch.model.scaling.policy import AutoScalePolicy

log = logging.getLogger(__name__)

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Limits and times of the controllers of one process."""

    auto_scale: AutoScalePolicy = field(default_factory=AutoScalePolicy)
    auto_scale_interval_s: float = 60.0
    auto_scale_settle_s: float = 0.2
    """How long to wait for further consumers after one came or went, before auto-scaling examines the
    topic."""
    consumer_grace_s: float = 60.0
    bucket_budget: int = 4
    retention_s: float | None = 7 * DAY_S
    """How long a drained sealed segment is kept, or None for ever."""
    waiting_changes_max: int = 1024
    """The maximum number of changes of one topic that callers may wait for."""
    retry_first_s: float = 0.1
    retry_max_s: float = 5.0

    @staticmethod
    def from_config(config: BrokerConfig) -> ControllerSettings:
        return ControllerSettings(
            auto_scale=config.auto_scale,
            auto_scale_interval_s=config.auto_scale_interval_s,
            consumer_grace_s=config.consumer_grace_s,
            bucket_budget=config.bucket_budget,
            retention_s=config.segment_retention_s if config.segment_retention_s >= 0 else None,
        )


def has_right() -> None:
    """A worker on one machine leads for as long as it holds the lock of its store."""


async def _admit_any(name: TopicName, known: int) -> None:
    """Admit any subscription, because there are no quotas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """The ports, clock and settings that all controllers of one process share."""

    topics: TopicStore
    segments: Segments
    clock: Clock
    rng: random.Random
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    failpoints: Failpoints = field(default_factory=NoFailpoints)
    stores: Callable[[], tuple[int, ...]] = lambda: (0,)
    """The stores that have an owner at the moment. New segments go there."""
    is_sound: Callable[[Place], bool] = lambda place: True
    """Whether the log of an active segment accepts messages, as far as this broker knows."""
    admit_subscription: Callable[[TopicName, int], Awaitable[None]] = _admit_any
    """Raises LimitExceededError if a topic with this many subscriptions may not get another one."""
    check_right: Callable[[], None] = has_right
    """Raises ServiceNotReadyError unless this process is known to still be the leader."""

    async def delete_log(self, place: Place, term: int) -> None:
        """Delete the storage of a segment that is gone from its layout, and its producer epoch."""
        await self.segments.delete(place, term)
        await self.topics.producer_epochs.forget(place.name)

    def jitter_s(self, delay_s: float) -> float:
        """Return the delay, up to a fifth longer, so that calls that failed together spread out."""
        return delay_s * self.rng.uniform(1.0, 1.2)

    def delays_s(self) -> Iterator[float]:
        """Yield the growing delays before each next attempt, up to a limit."""
        return Backoff(self.settings.retry_first_s, self.settings.retry_max_s, jitter=0.2).delays(self.rng)


class GraceOver(NamedTuple):
    """The grace period of a lost consumer ended. Reported again until the consumer is gone or back."""

    token: int


class Happened(Enum):
    """Events of one led topic that no caller waits for. Its parts report them to its controller."""

    MEMBERS_CHANGED = auto()
    """A consumer joined or left a group."""
    DRAINS_REPORTED = auto()
    """Owners have reported drained segments."""
    ROSTERS_DUE = auto()
    """Rosters that owners did not accept have to be sent again."""
    GARBAGE_FOUND = auto()
    """The topic's record lists segments whose storage has to be deleted."""
    LEADERSHIP_LOST = auto()
    """Another broker leads the topic, or the topic is gone."""


TopicEvent = GraceOver | Happened

Notify = Callable[[TopicEvent], None]


class Leadership:
    """One topic as its leader knows it. Created by `take_over`."""

    def __init__(self, context: ControllerContext, name: TopicName, record: TopicRecord) -> None:
        self.context = context
        self.name = name
        self.term = record.term
        self.record = record
        self.layout = layout_of(record)
        self.lost: dict[str, str] = {}
        """Segments whose logs are gone, as far as this leader has noticed."""
        # Cooldowns outlive processes, so records keep them in wall time. Within one leadership the loop's
        # clock measures them, because it never jumps.
        self._wall_offset_s = context.clock.wall_ms() / 1000 - asyncio.get_running_loop().time()

    @staticmethod
    async def take_over(context: ControllerContext, name: TopicName) -> Leadership:
        """Become the leader in a new term. Raises TopicNotFoundError if there is no such topic.

        A process without the right to lead raises no term: it would depose the leader that came after it.
        """
        context.check_right()
        record = await context.topics.update(name, raise_term)
        return Leadership(context, name, record)

    def now_s(self) -> float:
        """Return the seconds since 1970 by a clock that does not jump during this leadership."""
        return asyncio.get_running_loop().time() + self._wall_offset_s

    def origin(self, reason: str, *, automatic: bool = False) -> Origin:
        stores = self.context.stores() or (self.record.store,)
        return Origin(self.term, self.context.clock.wall_ms(), reason, automatic, stores)

    def segment_name(self, segment: Segment) -> TopicName:
        return segment_name(self.name, segment)

    def find(self, name: TopicName) -> Segment | None:
        """Return the segment of that name, or None if the layout has none."""
        if name.segment is not None:
            listed = self.layout.segments.get(name.segment.id)
            return listed if listed is not None and self.segment_name(listed) == name else None
        # The name of a classic topic does not contain the id of its segment.
        return next((s for s in self.layout.segments.values() if s.legacy_topic == str(name)), None)

    def place(self, segment: Segment) -> Place:
        return Place(self.segment_name(segment), segment.store)

    def report_lost(self, segment_id: int, what: str) -> None:
        """Report a log that is gone, once per leadership."""
        if f"segment {segment_id}" not in self.lost:
            self.lost[f"segment {segment_id}"] = what
            log.error("%s: segment %d: %s", self.name, segment_id, what)

    def report_begun_empty(self, segment_id: int) -> None:
        self.report_lost(segment_id, "its log was gone and began empty; its earlier messages are lost")

    async def load(self, segment: Segment) -> SegmentLoad | None:
        """Return the segment's load as its owner measures it, or None if the owner does not answer."""
        try:
            return await self.context.segments.load(self.place(segment))
        except AnabranchError:
            return None

    async def update(self, change: Callable[[TopicRecord], TopicRecord]) -> Layout:
        """Change the record and return its layout.

        Raises StaleTermError if another leader raised the term.
        """

        def fenced(record: TopicRecord) -> TopicRecord:
            self.check_term(record.term)
            return change(record)

        self._install(await self.context.topics.update(self.name, fenced))
        return self.layout

    async def reload(self) -> None:
        """Read the record, after a write whose outcome is unknown. Raises StaleTermError like `update`."""
        record = await self.context.topics.load(self.name)
        self.check_term(record.term)
        self._install(record)

    def check_term(self, term: int) -> None:
        """Raise StaleTermError unless this term of a record of the topic belongs to this leadership."""
        if term != self.term:
            raise StaleTermError(f"{self.name} is led in term {term}; this was term {self.term}")

    def _install(self, record: TopicRecord) -> None:
        changed = (record.epoch, record.next_segment_id) != (self.record.epoch, self.record.next_segment_id)
        self.record = record
        if changed:
            self.layout = layout_of(record)


def raise_term(record: TopicRecord) -> TopicRecord:
    """Return the record of a topic in the term of its next leader."""
    return msgspec.structs.replace(record, term=record.term + 1)
