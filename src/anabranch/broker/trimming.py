"""Gives the disk back what is old and acknowledged, in logs that are still written to.

Sealed segments go as a whole when the controller prunes them. An active segment and a classic topic stay, so
their beginning is dropped instead, a ledger at a time, by the same retention time. Must not know connections,
commands or layouts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from anabranch.broker.stores import Stores
from anabranch.broker.topics import Topics
from anabranch.clock import Clock
from anabranch.errors import AnabranchError
from anabranch.ledger.port import SegmentLog
from anabranch.model.names import TopicName

_logger = logging.getLogger(__name__)

ROUND_S = 60.0
"""How often all logs are looked at."""

LOOKED_AT_ONCE = 200
"""Logs looked at in one turn of the loop."""


def plan_trim(marks: Iterable[int], young: int, next_ordinal: int) -> int:
    """Below which ordinal a log may be dropped.

    `marks` are the lowest unacknowledged ordinals of its durable cursors, `young` is the first ordinal that
    the retention time still protects. The last entry always stays, and its ledger with it, so that everybody
    can still ask for the last message.
    """
    return max(0, min(young, next_ordinal - 1, *marks))


class Trimming:
    """Trims every log of the open stores, round after round."""

    def __init__(
        self,
        stores: Stores,
        topics: Topics,
        clock: Clock,
        retention_of: Callable[[str], Awaitable[float | None]],
    ) -> None:
        """`retention_of` says for how many seconds a namespace keeps everything; None for ever."""
        self._stores = stores
        self._topics = topics
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
        retention: dict[str, float | None] = {}
        for number, name in enumerate(names):
            log = self._stores.get(name)
            namespace = TopicName.parse(name).namespace_name
            if namespace not in retention:
                retention[namespace] = await self._find(namespace)
            keep_s = retention[namespace]
            if log is not None and keep_s is not None:
                await self._try(log, keep_s)
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for segment in self._topics.served:
            for subscription in tuple(segment.subscriptions.values()):
                subscription.pass_trimmed()

    async def _find(self, namespace: str) -> float | None:
        try:
            return await self._retention_of(namespace)
        except AnabranchError as error:
            _logger.warning("%s: how long to keep messages is not known: %s", namespace, error)
            return None

    async def _try(self, log: SegmentLog, keep_s: float) -> None:
        try:
            await self._trim(log, keep_s)
        except (AnabranchError, OSError) as error:
            if log.name not in self._failing:
                self._failing.add(log.name)
                _logger.error("%s: old entries cannot be dropped: %s", log.name, error)
        else:
            self._failing.discard(log.name)

    async def _trim(self, log: SegmentLog, keep_s: float) -> None:
        # An acknowledgement counted here is queued for the disk already, and so is never behind the trim.
        ordinal = plan_trim(
            (cursor.acks.mark for cursor in log.cursors.values()),
            log.ordinal_at_time(self._clock.wall_ms() - int(keep_s * 1000)),
            log.next_ordinal,
        )
        if ordinal > log.first_ordinal:
            await log.trim(ordinal)
