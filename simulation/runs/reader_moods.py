"""Behaviour of the readers of a cluster run besides reading: they think, pause, and seek back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from anabranch.client.consume.consumers.consumer import ReceivingConsumer
from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
from anabranch.errors import ConsumerBusyError, OperationTimeoutError
from simulation.judges.checkers import ClientHistory
from simulation.runs.reader_kinds import STREAM

SEEK_WITHIN_S = 2.0
"""A reader seeks back only within this time after the judges began to expect a seek."""


async def think(
    consumer: ReceivingConsumer[Any], rng: random.Random, stuck: float, counts: Counter[str]
) -> None:
    """Take some time before an acknowledgement, now and then a long time; or pause the consumer."""
    if rng.random() < stuck:
        counts["consumer hung"] += 1
        await asyncio.sleep(rng.uniform(0.5, 5.0))
    elif rng.random() < 0.3:
        await asyncio.sleep(rng.uniform(0, 0.1))
    elif rng.random() < 0.05:
        counts["consumer paused"] += 1
        consumer.pause()
        asyncio.get_running_loop().call_later(rng.uniform(0, 3.0), consumer.resume)


class SeekingBack:
    """Lets stream readers seek to the first message while the judges expect a seek."""

    def __init__(self, history: ClientHistory, counts: Counter[str]) -> None:
        self._history = history
        self._counts = counts
        self._since: float | None = None

    async def now_and_then(self, consumer: AsyncStreamConsumer[Any], rng: random.Random) -> bool:
        """Seek back, perhaps; return whether messages received so far may come again because of it."""
        now = asyncio.get_running_loop().time()
        if STREAM not in self._history.rewound:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        if now - self._since > SEEK_WITHIN_S or rng.random() > 0.2:
            return False
        self._counts["reader asked to seek"] += 1
        with suppress(OperationTimeoutError, ConsumerBusyError):
            await consumer.seek("earliest", timeout=5)
            self._counts["reader sought"] += 1
        return True
