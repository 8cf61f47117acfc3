"""An alarm rings once, at the earliest time that it was set to."""

from __future__ import annotations

import asyncio
import math

from anabranch.client.consume.alarm import Alarm


async def test_the_earliest_time_counts_and_a_due_alarm_can_be_set_again() -> None:
    loop = asyncio.get_running_loop()
    rung: list[float] = []
    began = loop.time()
    alarm = Alarm(loop, lambda: rung.append(loop.time() - began))
    alarm.set(math.inf)
    alarm.set(began + 3)
    alarm.set(began + 1)
    alarm.set(began + 2)
    await asyncio.sleep(5)
    alarm.set(began)
    alarm.set(began + 6)
    await asyncio.sleep(0.5)
    alarm.set(began + 6)
    alarm.cancel()
    await asyncio.sleep(5)
    assert [round(at) for at in rung] == [1, 5]
