"""Asks brokers for the last message of a segment until one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.aio import is_transient
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.connection_pool import RECONNECT
from anabranch.errors import AlreadyClosedError, AnabranchError
from anabranch.model.ids import MessageId


async def last_message(source: SegmentConsumer, reads: Callable[[SegmentConsumer], bool]) -> MessageId:
    """The last message now; raises AlreadyClosedError when the segment is not read any more."""
    failures = 0
    while True:
        last: MessageId | None = None
        try:
            last = await source.last_message()
        except AnabranchError as error:
            if not is_transient(error):
                raise
        if not reads(source):
            raise AlreadyClosedError(f"this consumer does not read {source.topic} any more")
        if last is not None:
            return last
        await asyncio.sleep(RECONNECT.delay(failures, source.home._pool.rng))
        failures += 1
