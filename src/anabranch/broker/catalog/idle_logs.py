"""Looks at all served logs at intervals: samples their rates, and unloads those that are not used.

Must not know connections, commands or the records of topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.aio import in_slices
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.serving.log.served_log import may_unload
from anabranch.broker.serving.rates.rate_meter import RateMeter
from anabranch.config.broker import BrokerConfig
from anabranch.model.names import TopicName

LOGS_AT_ONCE: Final = 200
"""Logs looked at in one turn of the event loop; more would delay other work."""


class IdleLogs:
    """The logs of one broker, which stay loaded for a while after their last use."""

    def __init__(self, logs: ServedLogs, config: BrokerConfig, unloaded: Callable[[TopicName], None]) -> None:
        """`unloaded` is called with each log after its unloading."""
        self._logs = logs
        self._unloaded = unloaded
        self._interval_s = config.load_report_interval_s / RateMeter.SAMPLES
        self._idle_s = config.log_idle_s

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
                self._unloaded(log.name)
