"""The requests of administrators during a cluster run: changes of layouts, subscriptions and topics.

A request may be interrupted at any point; then its effect is unknown. Knows nothing of faults.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from anabranch.broker.broker import Broker
from anabranch.control.quiet_periods import LATE_S
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import (
    AnabranchError,
    ConflictError,
    LayoutError,
    NotFoundError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from anabranch.metadata.records import InitialPosition, SubscriptionKind
from anabranch.model.hashing import key_hash
from anabranch.model.names import TopicName
from anabranch.model.ranges import FULL, HashRange
from anabranch.model.routing import Router
from anabranch.model.scaling.weights import Cells, balanced_bucket_splits, balanced_points
from simulation.cluster.cluster import Cluster
from simulation.judges.checkers import SendResult
from simulation.judges.witness import Witness
from simulation.runs.reader_kinds import STREAM
from simulation.runs.readers import TOPIC
from simulation.runs.shape import OPERATIONS, Shape

KINDS: tuple[SubscriptionKind, ...] = ("STREAM", "QUEUE")
STARTS: tuple[InitialPosition, ...] = ("earliest", "latest")

OTHER = TopicName("topic", "public", "default", "comes-and-goes")

OVERTAKEN = (
    TopicExistsError,
    TopicNotFoundError,
    NotFoundError,
    ConflictError,
    LayoutError,
    SegmentNotFoundError,
)
"""Errors of a retry whose earlier, interrupted attempt took effect."""

AGAIN = "again"
"""The subscription whose name is used again and again."""

ANSWER_S = 3.0
"""How long an insistent administrator waits for an answer, which a paused process does not give."""

ATTEMPTS_MAX = 60

REWIND_S = 20.0
"""The consequences of a seek are over when none has been under way for this time."""


class Requests:
    """The requests of one run; set `witness` before the first request."""

    def __init__(
        self, cluster: Cluster, shape: Shape, rng: random.Random, counts: Counter[str], step: str | None
    ) -> None:
        self.witness: Witness
        self.late: dict[str, int] = {}
        """Subscriptions created during the run, with the epoch of their confirmation."""
        self.attempted: dict[str, None] = {}
        """Subscriptions that may exist."""
        self._cluster = cluster
        self._shape = shape
        self._rng = rng
        self._counts = counts
        self._step = step

    async def change_layouts(self) -> None:
        if self._step:
            # Another change or a refused store call may prevent the operation, and slow links may keep the
            # parents empty; retry until the broker died at the step.
            for _ in range(ATTEMPTS_MAX):
                await self._change(self._step.partition(".")[0])
                if self._counts[f"died at {self._step}"]:
                    break
        async with asyncio.TaskGroup() as askers:
            for _ in range(self._shape.askers):
                askers.create_task(self._ask_for_changes())

    async def _ask_for_changes(self) -> None:
        for _ in range(self._shape.operations):
            await self._change(self._rng.choice(OPERATIONS))

    async def _change(self, kind: str) -> None:
        await asyncio.sleep(self._rng.uniform(0, self._shape.busy_s / (self._shape.operations + 1)))
        self._counts[f"{kind} asked for"] += 1
        try:
            await self._cluster.with_controller(TOPIC, partial(self._operate, kind))
        except (LayoutError, SegmentNotFoundError):
            self._counts["operation overtaken"] += 1
        except AnabranchError as error:
            # The store refused a call; the leader finishes the operation later.
            if not error.retryable:
                raise
            self._counts["operation interrupted"] += 1

    async def _operate(self, kind: str, controller: TopicLeader) -> None:
        key = await self._stored_key() if self._step and "inherited" in self._step else None
        assert self.witness.layout is not None
        active = self.witness.layout.active
        if kind == "merge" and len(active) == 1:
            active = (await controller.split(active[0].id)).active
        chosen = self._rng.randrange(len(active) - (kind == "merge"))
        segment = active[chosen]
        if key is not None:
            segment = Router(self.witness.layout).segment_for(key_hash(key))
        if kind == "split":
            parts = self._rng.randrange(2, 5)
            points = balanced_points(segment.range, self._load_of(segment.range), parts)
            await controller.split(segment.id, points)
        elif kind == "merge":
            run = active[chosen : chosen + self._rng.randrange(2, 4)]
            await controller.merge([one.id for one in run])
        else:
            buckets = segment.bucket_count % 8 + 1
            splits = balanced_bucket_splits(self._load_of(FULL), buckets)
            await controller.rebucket(segment.id, splits)

    def _load_of(self, whole: HashRange) -> Cells:
        """An even load, or one with a hot slot."""
        hot = self._rng.randrange(whole.start, whole.end + 1)
        return [(whole, 1.0), (HashRange(hot, hot), self._rng.choice((0.0, 0.0, 1.0, 20.0)))]

    async def _stored_key(self) -> str:
        """A key with stored messages: only its segment has ids that children inherit."""
        for _ in range(ATTEMPTS_MAX):
            sent = self._cluster.history.sent.values()
            # A repetition of a stored message has a receipt without a place.
            stored = [message.key for message in sent if message.outcome is SendResult.OK]
            if stored:
                return stored[0]
            await asyncio.sleep(0.5)
        raise LayoutError("no message is stored")

    async def change_subscriptions(self) -> None:
        for number in range(self._shape.late_subscriptions):
            await asyncio.sleep(self._rng.uniform(0, self._shape.busy_s / self._shape.late_subscriptions))
            name = f"late-{number}"
            self.attempted[name] = None
            if await self._ask(partial(_make, name, self._rng.choice(KINDS), self._rng.choice(STARTS))):
                self._counts["late subscription made"] += 1
                self.late[name] = self.witness.layout.epoch if self.witness.layout else 0
            if self._rng.random() < 0.3:
                await self._ask(partial(_skip if self._rng.random() < 0.5 else _rewind, name))
            if self._rng.random() < 0.3:
                self.late.pop(name, None)
                if await self._ask(partial(_unmake, name)):
                    self._counts["late subscription deleted"] += 1
                    self.attempted.pop(name)

    async def reuse_name(self, rounds: int) -> None:
        """Delete a subscription and make it again; a late call of the deletion must not hit the new one."""
        for _ in range(rounds):
            await asyncio.sleep(self._rng.uniform(0, self._shape.busy_s / rounds))
            self.late.pop(AGAIN, None)
            self.attempted[AGAIN] = None
            former = self.witness.subscriptions.get(AGAIN)
            if former is not None:
                await self._insist(partial(_unmake_this, AGAIN, former.created_at_ms))
            made = await self._insist(partial(_make, AGAIN, "QUEUE", "earliest"))
            if made:
                self._counts["name used again"] += former is not None
                await asyncio.sleep(LATE_S)
                self.witness.check_cursors(AGAIN)
                self.late[AGAIN] = self.witness.layout.epoch if self.witness.layout else 0

    async def _insist(self, work: Callable[[TopicLeader], Awaitable[bool]]) -> bool:
        """Repeat a request until it certainly took effect; False if it never did."""
        for _ in range(ATTEMPTS_MAX):
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    if await self._ask(work):
                        return True
            await asyncio.sleep(0.5)
        return False

    async def churn(self) -> None:
        """Create and delete a topic repeatedly; an interrupted attempt may have taken effect."""
        for _ in range(self._shape.churn):
            await asyncio.sleep(self._rng.uniform(0, self._shape.busy_s / self._shape.churn))
            segments = self._rng.randrange(1, 4)
            await self._in_broker(partial(_create_other, segments))
            await self._in_broker(_change_other)
            await self._in_broker(lambda broker: broker.controllers.delete_topic(OTHER, True))
            self._counts["topic deleted"] += await self._cluster.record(OTHER) is None

    async def _in_broker(self, work: Callable[[Broker], Awaitable[None]]) -> None:
        try:
            await self._cluster.in_broker(work)
        except OVERTAKEN:
            self._counts["topic change overtaken"] += 1
        except AnabranchError as error:
            if not error.retryable:
                raise

    async def seek(self) -> None:
        for _ in range(self._shape.seeks):
            await asyncio.sleep(self._rng.uniform(0, self._shape.busy_s / self._shape.seeks))
            self._cluster.history.rewind(STREAM)
            self.witness.rewind(STREAM)
            if await self._ask(partial(_rewind, STREAM)):
                self._counts["stream sent back"] += 1
            # An unanswered seek still takes effect, and so do acknowledgements under way.
            while self.witness.is_unfinished(STREAM):  # noqa: ASYNC110
                await asyncio.sleep(1.0)
            await asyncio.sleep(REWIND_S)
            self.witness.rewind(STREAM)
            self._cluster.history.rewound.discard(STREAM)

    async def _ask(self, work: Callable[[TopicLeader], Awaitable[bool]]) -> bool:
        """Send a request to the leader; return whether it certainly took effect."""
        try:
            return bool(await self._cluster.with_controller(TOPIC, work))
        except AnabranchError as error:
            if not error.retryable:
                raise
            return False


async def _create_other(segments: int, broker: Broker) -> None:
    await broker.controllers.create_topic(OTHER, segments)


async def _change_other(broker: Broker) -> None:
    controller = await broker.controllers.controller(OTHER)
    await controller.ensure_subscription("s", "STREAM", "earliest")
    await controller.split(0)


async def _make(name: str, kind: SubscriptionKind, start: InitialPosition, controller: TopicLeader) -> bool:
    try:
        await controller.ensure_subscription(name, kind, start)
    except ConflictError:
        return False
    return True


async def _found(call: Awaitable[object]) -> bool:
    """Return whether the subscription of this call existed."""
    try:
        await call
    except SubscriptionNotFoundError:
        return False
    return True


async def _rewind(name: str, controller: TopicLeader) -> bool:
    return await _found(controller.seek(name, 0))


async def _skip(name: str, controller: TopicLeader) -> bool:
    return await _found(controller.skip_all(name))


async def _unmake_this(name: str, created_at_ms: int, controller: TopicLeader) -> bool:
    """Delete a subscription unless it was made again since, so that a late request does no harm."""
    await _found(controller.delete_subscription(name, created_at_ms=created_at_ms))
    return True


async def _unmake(name: str, controller: TopicLeader) -> bool:
    return await _found(controller.delete_subscription(name))
