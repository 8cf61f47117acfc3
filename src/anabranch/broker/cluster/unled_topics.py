"""Finds leaders for the topics of segments that have clients; must not know which broker leads a topic.

A leader asks for the load of its active segments at every look. A segment with clients whose load was not
asked for long belongs to a topic that rests: its leader, maybe a new one, did not hear of the clients.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from anabranch.aio import in_slices
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.controller.service import ControllerService
from anabranch.errors import in_words

_logger = logging.getLogger(__name__)

LOOKS: Final = 2
"""How many looks of its leader a segment waits for."""

LEADER_S: Final = 5.0
"""How long a call waits for the leader; the next round repeats the call."""

CHECKED_AT_ONCE: Final = 200


class UnledTopics:
    """The topics whose leader does not look at a used segment of this broker."""

    def __init__(self, logs: ServedLogs, controllers: ControllerService) -> None:
        self._logs = logs
        self._controllers = controllers
        self._interval_s = controllers.context.settings.auto_scale_interval_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            async for log in in_slices(self._logs.served, CHECKED_AT_ONCE):
                if self._is_unled(log):
                    await self._call(log)

    def _is_unled(self, log: ServedLog) -> bool:
        waited_s = asyncio.get_running_loop().time() - log.observed_s
        late = waited_s > LOOKS * self._interval_s
        return late and log.name.segment is not None and not log.log.sealed and log.clients > 0

    async def _call(self, log: ServedLog) -> None:
        try:
            async with asyncio.timeout(LEADER_S):
                await self._controllers.ensure_led(log.name.topic)
            log.observed_s = asyncio.get_running_loop().time()
        except Exception as error:
            _logger.warning("%s has clients, but its topic has no leader yet: %s", log.name, in_words(error))
