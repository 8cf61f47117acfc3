"""Waits until no earlier call about a subscription can still take effect.

Names of subscriptions are used again, so a late call could undo a newer one: skip messages after a seek back,
or delete a subscription that was created again. This module assumes that a call without an answer takes
effect within `LATE_S` of its sending or not at all. So the next calls wait: those of the same topic after a
call without an answer, and all calls of a process that takes a home over whose holder did not give it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from anabranch.errors import ConnectError, OperationTimeoutError
from anabranch.model.names import TopicName

LATE_S: Final = 5.0
"""How long a call about a subscription may take."""


class QuietPeriods:
    """The waits of one process."""

    def __init__(self) -> None:
        self._all_until_s = 0.0
        self._until_s: dict[TopicName, float] = {}
        self._under_way = 0

    @property
    def is_over(self) -> bool:
        """Whether no call of this process is under way or may take effect late."""
        now_s = asyncio.get_running_loop().time()
        return self._under_way == 0 and all(until_s <= now_s for until_s in self._until_s.values())

    def begin(self) -> None:
        """Delay all calls, because a process that ended may have calls under way."""
        self._all_until_s = asyncio.get_running_loop().time() + LATE_S

    async def end(self, topic: TopicName) -> None:
        """Return when no earlier call about a subscription of the topic can take effect."""
        loop = asyncio.get_running_loop()
        while (left_s := self._ends_s(topic) - loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)

    @asynccontextmanager
    async def call(self, topic: TopicName) -> AsyncIterator[None]:
        """Make one call about a subscription once no earlier one can take effect, and limit its time."""
        await self.end(topic)
        self._until_s.pop(topic, None)
        sent_s = asyncio.get_running_loop().time()
        self._under_way += 1
        try:
            async with asyncio.timeout(LATE_S):
                yield
        except TimeoutError as error:
            if not isinstance(error, OperationTimeoutError):
                raise OperationTimeoutError(f"Pulsar did not answer a call about {topic} in time") from error
            self._until_s[topic] = sent_s + LATE_S
            raise
        except (ConnectError, asyncio.CancelledError):
            self._until_s[topic] = sent_s + LATE_S
            raise
        finally:
            self._under_way -= 1

    def _ends_s(self, topic: TopicName) -> float:
        return max(self._all_until_s, self._until_s.get(topic, 0.0))
