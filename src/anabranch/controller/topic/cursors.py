"""Cursors of subscriptions on segments. Does not know how records are stored, nor which consumers read."""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

from anabranch.aio import together
from anabranch.controller.decide import groups
from anabranch.controller.ports.segments import Aim
from anabranch.controller.topic.leadership import Leadership
from anabranch.errors import TopicNotFoundError
from anabranch.metadata.records import SubscriptionRecord, UnfinishedRecord
from anabranch.model.drains import ALL, Ranges
from anabranch.model.layout import Segment

T = TypeVar("T")


class Cursors:
    """The cursors on all segments of the topic that `lead` leads."""

    def __init__(self, lead: Leadership) -> None:
        self._lead = lead

    async def carry_out(self, sub: str, record: SubscriptionRecord) -> None:
        """Carry out the record's unfinished operation on every segment that it affects."""
        unfinished = record.unfinished
        if unfinished is not None and record.initial_position is not None:
            only = unfinished.segment_id
            segments = [s for s in self._lead.layout.segments.values() if only is None or s.id == only]
            await together(
                self._unless_lost(segment, self._apply(sub, record, unfinished, segment), None)
                for segment in segments
            )

    async def _apply(
        self, sub: str, record: SubscriptionRecord, unfinished: UnfinishedRecord, segment: Segment
    ) -> None:
        segments, term = self._lead.context.segments, self._lead.term
        place = self._lead.place(segment)
        if unfinished.kind == "delete":
            await segments.delete_subscription(place, sub, term)
        elif unfinished.kind == "skip":
            await segments.skip_all(place, sub, term)
        elif unfinished.aim is not None:
            aim = Aim(unfinished.aim.ledger, unfinished.aim.entry, unfinished.aim.ack_set)
            await segments.seek_to(place, sub, aim, term)
        elif unfinished.kind == "seek":
            if record.initial_position == "latest" and not segment.active:
                # The subscription was not created on segments sealed earlier, but may have to read them now.
                await segments.create_subscription(place, sub, "latest", term)
            # A segment created after that time holds only later messages, even if clients' clocks were wrong.
            after = segment.created_ms >= unfinished.timestamp_ms
            await segments.seek(place, sub, 0 if after else unfinished.timestamp_ms, term)
        elif segment.active or record.initial_position == "earliest":
            assert record.initial_position is not None
            await segments.create_subscription(place, sub, record.initial_position, term)

    async def _unless_lost(self, segment: Segment, call: Coroutine[Any, Any, T], lost: T) -> T:
        """Return the result of a call, or `lost` if the log of a sealed segment is gone.

        A missing log has nothing left to read or to acknowledge; consumers continue after it.
        """
        try:
            return await call
        except TopicNotFoundError:
            if segment.active:
                raise
            self._lead.report_lost(segment.id, "its log is gone; its messages are lost and passed over")
            return lost

    async def in_use(self, sub: str) -> bool:
        """Return whether any consumer is attached, registered or not."""
        segments = self._lead.context.segments
        places = [self._lead.place(segment) for segment in self._lead.layout.segments.values()]
        return any(await together(segments.consumers(place, sub) for place in places))

    async def drained(
        self, sub: str, record: SubscriptionRecord, only: Collection[int] | None = None
    ) -> tuple[list[int], dict[int, Ranges]]:
        """Return the drained sealed segments, including those recorded, and the drained parts of others.

        Owners are asked even right after they reported a drain, because the report may be older than a seek.
        """
        known = record.drained
        if not groups.has_cursors(record):
            return [*known], {}
        unsure = [
            segment
            for segment in self._lead.layout.sealed
            if segment.id not in known and (only is None or segment.id in only)
        ]
        segments = self._lead.context.segments
        answers = await together(
            self._unless_lost(s, segments.drained(self._lead.place(s), sub), ALL) for s in unsure
        )
        # A subscription at latest is not created on segments sealed before it, so those count as drained.
        absent = ALL if record.initial_position == "latest" and record.unfinished is not None else ()
        found = {
            s.id: absent if answer is None else answer for s, answer in zip(unsure, answers, strict=True)
        }
        whole = [id_ for id_, slots in found.items() if slots == ALL]
        return [*known, *whole], {id_: slots for id_, slots in found.items() if slots and slots != ALL}
