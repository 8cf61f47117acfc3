"""Moves the cursors of a subscription after a reader that keeps its positions elsewhere, such as Spark.

A mirror is the only member of its stream subscription. It asks for no messages, and acknowledges what the
reader has read, parents before children, as the leader assigns segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from anabranch.client.consume.consumers.stream_parts import StreamParts
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.closing import Deadline
from anabranch.client.options import Seconds
from anabranch.errors import OperationTimeoutError

ASSIGNMENT_POLL_S = 0.01
"""Pause before looking again for segments that the leader assigns when their parents are acknowledged."""


class AckPlace(NamedTuple):
    """The last message that was read in a segment: its entry, its number in it, and the entry's size."""

    ledger: int
    entry: int
    batch_index: int
    message_count: int

    @property
    def remaining(self) -> int:
        """Bits of the messages of the entry that were not read."""
        read = self.batch_index + 1
        return ((1 << self.message_count) - 1) >> read << read


class CursorMirror:
    """The cursors of one subscription; made by `BulkClient.mirror_cursors`."""

    def __init__(self, parts: StreamParts[bytes]) -> None:
        self.parts = parts

    async def close(self, timeout: Seconds | None = None) -> None:
        """Leave the subscription within `timeout`, by default the operation timeout."""
        await self.parts.close_by(Deadline(self.parts.context.limit_s(timeout)))

    async def follow(
        self, places: Mapping[int, AckPlace], awaited: Collection[int], timeout_s: float
    ) -> None:
        """Acknowledge everything up to these places; return when the broker has confirmed it.

        `awaited` are the segments that the reader is in. Others may be acknowledged already, so the leader
        need not assign them. Raises OperationTimeoutError when the leader does not assign the awaited ones,
        because other consumers have them.
        """
        deadline = Deadline(timeout_s)
        if not await deadline.allow(self._follow(dict(places), set(awaited) & places.keys())):
            raise OperationTimeoutError(
                f"the cursors of {self.parts.subscription} on {self.parts.context.topic} could not be moved "
                f"within {timeout_s:g} s; another consumer may have its segments"
            )

    async def _follow(self, places: dict[int, AckPlace], awaited: set[int]) -> None:
        context, sources = self.parts.context, self.parts.segments.sources
        while True:
            for id_ in [id_ for id_, source in sources.items() if id_ in places and _is_ready(source)]:
                source, place = sources[id_], places.pop(id_)
                source.acks.add_up_to(place.ledger, place.entry, place.remaining)
                await source.acks_confirmed()
                awaited.discard(id_)
            if context.failure is not None:
                raise context.failure
            if not awaited:
                return
            await asyncio.sleep(ASSIGNMENT_POLL_S)


def _is_ready(source: SegmentConsumer) -> bool:
    return source.first_answer.accepted and not source.released and not source.attachment.bucket_ranges
