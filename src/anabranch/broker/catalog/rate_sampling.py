"""Samples the rates of all served logs at a steady pace."""

from __future__ import annotations

import asyncio

from anabranch.aio import in_slices
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.serving.served_log import RateMeter

SAMPLED_AT_ONCE = 200
"""Logs whose rates are sampled in one turn of the event loop; more would delay other work."""


async def sample_rates(logs: ServedLogs, interval_s: float) -> None:
    """Sample for ever; rates are averaged over `interval_s`."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(interval_s / RateMeter.SAMPLES)
        async for segment in in_slices(logs.served, SAMPLED_AT_ONCE):
            segment.sample(loop.time())
