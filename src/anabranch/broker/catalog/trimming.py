"""Gives the disk back what is acknowledged and need not stay, in logs that are still written to.

Sealed segments go as a whole when the controller prunes them. An active segment and a classic topic stay, so
their beginning is dropped instead, a ledger at a time, by the same limits. How much of a segment may stay is
for the leader of its topic to say. Must not know connections, commands or layouts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.catalog.stores import Stores
from anabranch.clock import Clock
from anabranch.errors import AnabranchError
from anabranch.ledger.storage import SegmentLog
from anabranch.metadata.records import Retention
from anabranch.model.names import TopicName

_logger = logging.getLogger(__name__)

ROUND_S = 60.0
"""How often all logs are looked at."""

LOOKED_AT_ONCE = 200
"""Logs looked at in one turn of the loop."""


def plan_trim(marks: Iterable[int], kept: int, next_ordinal: int) -> int:
    """Below which ordinal a log may be dropped.

    `marks` are the lowest unacknowledged ordinals of its durable cursors, `kept` is the first ordinal that
    retention still protects. The last entry always stays, and its ledger with it, so that everybody can still
    ask for the last message.
    """
    return max(0, min(kept, next_ordinal - 1, *marks))


async def trim(log: SegmentLog, kept: int) -> None:
    """Drop what lies below `kept` and is acknowledged."""
    # An acknowledgement counted here is queued for the disk already, and so is never behind the trim.
    marks = (cursor.acks.mark for cursor in log.cursors.values())
    ordinal = plan_trim(marks, kept, log.extent.next_ordinal)
    if ordinal > log.extent.first_ordinal:
        await log.trim(ordinal)


class Trimming:
    """Trims every log of the open stores, round after round."""

    def __init__(
        self,
        stores: Stores,
        logs: ServedLogs,
        clock: Clock,
        retention_of: Callable[[str], Awaitable[Retention]],
    ) -> None:
        """`retention_of` says what a namespace keeps."""
        self._stores = stores
        self._logs = logs
        self._clock = clock
        self._retention_of = retention_of
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Look at all logs now and then, until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            await self.round()

    async def round(self) -> None:
        """Look at every log once; one that cannot be trimmed is logged and keeps nobody else waiting."""
        # Of all that are stored, not only those in use: what nobody has asked for since the start is old too.
        names = self._stores.names()
        self._failing.intersection_update(names)
        retention: dict[str, Retention] = {}
        for number, name in enumerate(names):
            log = self._stores.get(name)
            parsed = TopicName.parse(name)
            namespace = parsed.namespace_name
            if namespace not in retention:
                retention[namespace] = await self._find(namespace)
            limits = retention[namespace]
            if log is not None:
                await self._try(log, Retention(limits.time_s) if parsed.is_segment else limits)
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for segment in self._logs.served:
            for subscription in tuple(segment.subscriptions.values()):
                subscription.pass_trimmed()

    async def _find(self, namespace: str) -> Retention:
        try:
            return await self._retention_of(namespace)
        except AnabranchError as error:
            _logger.warning("%s: how long to keep messages is not known: %s", namespace, error)
            return Retention(None)

    async def _try(self, log: SegmentLog, limits: Retention) -> None:
        try:
            await trim(log, self._kept(log, limits))
        except (AnabranchError, OSError) as error:
            if log.name not in self._failing:
                self._failing.add(log.name)
                _logger.error("%s: old entries cannot be dropped: %s", log.name, error)
        else:
            self._failing.discard(log.name)

    def _kept(self, log: SegmentLog, limits: Retention) -> int:
        """The first ordinal that is within both limits."""
        kept = log.extent.first_ordinal
        if limits.time_s is not None:
            kept = max(kept, log.extent.ordinal_at_time(self._clock.wall_ms() - int(limits.time_s * 1000)))
        if limits.size_bytes is not None:
            kept = max(kept, log.extent.ordinal_keeping(limits.size_bytes))
        return kept
