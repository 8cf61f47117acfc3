"""Admin calls to a simulated Pulsar: they take time, fail, or take effect late.

A late call arrives although its caller has given up, even if the caller is dead by then. Must not know what a
call does.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from anabranch.aio import mark_retrieved
from anabranch.broker.broker import Broker
from anabranch.control.quiet_periods import LATE_S
from anabranch.errors import ConnectError, OperationTimeoutError
from anabranch.model.names import TopicName
from simulation.world.process import PROCESS

if TYPE_CHECKING:
    from simulation.cluster.control_cluster import ControlCluster

T = TypeVar("T")

CALL_S = 5.0
TRAVEL_S = (0.001, 0.01)
WORK_S = 0.5
"""Longer than any call takes at Pulsar."""


@dataclass(slots=True)
class AdminTrouble:
    """Probabilities that an admin call does not reach Pulsar, or takes effect late without an answer.

    A late creation can leave a stray, if a second call created the topic meanwhile and it was deleted again.
    """

    refuse: float = 0.0
    late: float = 0.0
    late_creation: float = 0.0
    late_deletion: float = 0.0
    """For the deletion of a subscription, whose name may be in use again when the call takes effect."""
    fatal: float = 0.0
    """The probability that the caller of a late call dies before the call takes effect."""
    late_s: float = 20.0
    """The longest delay; callers give up earlier. Calls about subscriptions are never later than `LATE_S`."""


class SimCalls:
    """The admin calls of one control process; each works inside the broker of Pulsar that owns a topic."""

    def __init__(self, cluster: ControlCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng

    async def call(
        self,
        topic: TopicName,
        work: Callable[[Broker], Awaitable[T]],
        *,
        late: float | None = None,
        late_s: float = math.inf,
    ) -> T:
        cluster, rng, trouble = self.cluster, self.rng, self.cluster.admin_trouble
        travel_s = rng.uniform(*TRAVEL_S)
        if rng.random() < trouble.refuse:
            await asyncio.sleep(travel_s)
            raise ConnectError("the admin API did not answer")
        answer: asyncio.Future[T] = cluster.loop.create_future()
        # A call that has left its process arrives, also if the process is paused or dead by then.
        if rng.random() >= (trouble.late if late is None else late):
            cluster.loop.outside(cluster.loop.call_later, travel_s, self._arrive, topic, work, answer)
            async with asyncio.timeout(CALL_S):
                return await answer
        cluster.counts["late admin call"] += 1
        delay_s = rng.uniform(0.0, min(trouble.late_s, late_s))
        cluster.expect_trouble(delay_s)
        cluster.loop.outside(cluster.loop.call_later, delay_s, self._arrive, topic, work, answer)
        gives_up_s = CALL_S * rng.random() * rng.random()
        process = PROCESS.get()
        if process is not None and rng.random() < trouble.fatal:
            cluster.counts["died during a late call"] += 1
            cluster.loop.outside(cluster.loop.call_later, gives_up_s, lambda: process.kill())
        if rng.random() < 0.5:
            await asyncio.sleep(gives_up_s)
            raise ConnectError("the connection to the admin API was lost")
        await asyncio.sleep(CALL_S)
        raise OperationTimeoutError("the admin API did not answer in time")

    async def subscription_call(
        self, topic: TopicName, work: Callable[[Broker], Awaitable[T]], *, late: float | None = None
    ) -> T:
        return await self.call(topic, work, late=late, late_s=LATE_S - WORK_S)

    def _arrive(
        self, topic: TopicName, work: Callable[[Broker], Awaitable[T]], answer: asyncio.Future[T]
    ) -> None:
        async def carry_out() -> None:
            try:
                done = await self.cluster.in_pulsar(topic, work)
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
                    # A caller that gave up does not read the error.
                    mark_retrieved(answer)
            else:
                if not answer.done():
                    answer.set_result(done)

        self.cluster.loop.create_task(carry_out())
