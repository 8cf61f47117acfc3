"""Drops old ledgers of logs that are still in use, once they are acknowledged and beyond retention.

The controller removes sealed segments as a whole. Active segments and classic topics lose their oldest
ledgers instead, by the same limits. The leader of a topic decides how many bytes a segment may keep. This
module must not know connections, commands or layouts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from anabranch.aio import in_slices
from anabranch.broker.catalog.policy_book import PolicyBook
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.catalog.side_logs import delete_garbage
from anabranch.broker.catalog.stores import Stores
from anabranch.clock import Clock
from anabranch.errors import AnabranchError
from anabranch.ledger.storage import SegmentLog
from anabranch.model.names import TopicName
from anabranch.model.policies.retention import Retention

_logger = logging.getLogger(__name__)

ROUND_S = 60.0
"""How often all logs are trimmed."""

LOGS_PER_TURN = 200
"""Logs trimmed in one turn of the event loop."""

SIDE_LOGS = "side logs"


def plan_trim(marks: Iterable[int], kept: int, next_ordinal: int) -> int:
    """Return the first ordinal to keep: the lower of all cursors' marks and what retention keeps.

    The last entry always stays, so that clients can ask for the last message id.
    """
    return max(0, min(kept, next_ordinal - 1, *marks))


def first_kept(log: SegmentLog, limits: Retention, now_ms: int) -> int:
    """Return the first ordinal within both limits of retention."""
    kept = log.extent.first_ordinal
    if limits.time_s is not None:
        kept = max(kept, log.extent.ordinal_at_time(now_ms - int(limits.time_s * 1000)))
    if limits.size_bytes is not None:
        kept = max(kept, log.extent.ordinal_keeping(limits.size_bytes))
    return kept


async def trim(log: SegmentLog, kept: int) -> None:
    """Drop the acknowledged entries below `kept`."""
    # The acknowledgements counted here were queued for the disk before the trim.
    marks = (cursor.acks.mark for cursor in log.cursors.values())
    ordinal = plan_trim(marks, kept, log.extent.next_ordinal)
    if ordinal > log.extent.first_ordinal:
        await log.trim(ordinal)


class Trimming:
    """Trims every log of the open stores, at intervals."""

    def __init__(self, stores: Stores, logs: ServedLogs, clock: Clock, policies: PolicyBook) -> None:
        self._stores = stores
        self._logs = logs
        self._clock = clock
        self._policies = policies
        self._failing: set[str] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.round()

    async def round(self) -> None:
        """Trim every log once; a log that cannot be trimmed is reported and skipped."""
        # All stored logs, including those that no client has used since the start.
        names = self._stores.names()
        self._failing.intersection_update([*names, *self._stores.side_names(), SIDE_LOGS])
        async for name in in_slices(names, LOGS_PER_TURN):
            log, parsed = self._stores.get(name), TopicName.parse(name)
            limits = self._policies.of(parsed).retention
            if log is not None:
                limits = Retention(limits.time_s) if parsed.is_segment else limits
                kept = first_kept(log, limits, self._clock.wall_ms())
                await self._attempt(name, trim(log, kept))
        await self._trim_side_logs()
        async for served in in_slices(self._logs.served, LOGS_PER_TURN):
            for subscription in tuple(served.subscriptions.values()):
                subscription.pass_trimmed()

    async def _trim_side_logs(self) -> None:
        """Trim side logs to their pending entries, without regard to retention; delete those not in use."""
        await self._attempt(SIDE_LOGS, delete_garbage(self._stores))
        for name in self._stores.side_names():
            if (log := self._stores.get(name)) is not None:
                await self._attempt(name, trim(log, log.extent.next_ordinal))

    async def _attempt(self, name: str, trimming: Coroutine[Any, Any, None]) -> None:
        try:
            await trimming
        except (AnabranchError, OSError) as error:
            if name not in self._failing:
                self._failing.add(name)
                _logger.error("%s: old entries cannot be dropped: %s", name, error)
        else:
            self._failing.discard(name)
