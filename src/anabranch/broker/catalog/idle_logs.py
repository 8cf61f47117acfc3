"""Looks at all served logs at intervals: samples their rates, and unloads those that are not used.

Must not know connections, commands or the records of topics.
"""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.aio import in_slices
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.serving.log_use import may_unload
from anabranch.broker.serving.served_log import RateMeter

LOGS_AT_ONCE: Final = 200
"""Logs looked at in one turn of the event loop; more would delay other work."""


class IdleLogs:
    """The logs of one broker, which stay loaded for `idle_s` after their last use."""

    def __init__(self, logs: ServedLogs, window_s: float, idle_s: float) -> None:
        """`window_s` is the time over which rates are averaged."""
        self._logs = logs
        self._interval_s = window_s / RateMeter.SAMPLES
        self._idle_s = idle_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Look at every served log once."""
        now_s = asyncio.get_running_loop().time()
        async for log in in_slices(self._logs.served, LOGS_AT_ONCE):
            log.sample(now_s)
            if may_unload(log.activity(now_s), self._idle_s):
                self._logs.unload(log)
