"""Where messages go: the segments in use, the lane of each key, and what happens when a segment is sealed.

A sealed segment's lanes keep taking messages of its range while it finds out what was stored. Once a layout
without it is known, everything left is routed again in the order of sequence ids, in one step that nothing
can overtake. A successor is opened only when all sealed segments it overlaps are settled, because its broker
takes a sequence id below one it has stored for a repetition. Knows nothing of callers, values or futures'
holders.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anabranch.client.decide.batcher import Extras, OpenBucket, Outgoing, Row, message_size
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.produce.futures import BulkFuture, move
from anabranch.client.produce.segment_producer import SegmentHome, SegmentProducer
from anabranch.model.hashing import key_hash, stand_in_hash
from anabranch.model.layout import Segment

Route = tuple[OpenBucket, int, int]
"""Lane, bucket hash, and what the key adds to a message's size."""

ROUTES_CACHED_MAX = 65_536


class SegmentRoutes:
    """All segments a producer sends to, by key."""

    def __init__(
        self,
        home: SegmentHome,
        layout: TopicLayout,
        begin: Callable[[OpenBucket], Outgoing],
        eager: bool,
        turn: int,
    ) -> None:
        self.layout = layout
        self.routes: dict[str | bytes | None, Route] = {}
        """Where the keys seen lately go; a hot path looks here first."""
        self.segments: dict[int, SegmentProducer] = {}
        self._home = home
        self._begin = begin
        self._eager = eager
        self._leaving: list[SegmentProducer] = []
        self._router = layout.router
        self._keyless_turn = turn

    @property
    def active(self) -> tuple[Segment, ...]:
        return self._router.segments

    def route(self, key: str | bytes | None) -> Route:
        """Where messages of a key go, remembered until the layout changes."""
        routes = self.routes
        found = routes.get(key)
        if found is not None:
            return found
        if len(routes) >= ROUTES_CACHED_MAX:
            routes.clear()
        if key is None:
            found = self._keyless_route(self._router.segments)
        else:
            if not isinstance(key, (str, bytes)):
                raise TypeError(f"a key is text or bytes, not {type(key).__name__}")
            found = self.route_by(key_hash(key), key)
        routes[key] = found
        return found

    def route_by(self, raw: int, key: str | bytes | None = None) -> Route:
        """Where a raw hash belongs."""
        slot = raw & 0xFFFF
        segment = self.holder(self._router.segment_for(raw), raw >> 16)
        return segment.batcher.lane_for(slot), slot, message_size(b"", key)

    def _keyless_route(self, segments: Sequence[Segment]) -> Route:
        # One segment and bucket until its batch closes, then the next: full batches, all buckets used.
        self._keyless_turn += 1
        turn, place = divmod(self._keyless_turn, len(segments))
        segment = self.holder(segments[place], segments[place].range.start)
        lane = segment.batcher.lanes[turn % len(segment.batcher.lanes)]
        return lane, lane.slot, message_size(b"", None)

    def holder(self, target: Segment, slot: int) -> SegmentProducer:
        """Who takes messages for an active segment: itself, or a sealed one whose messages must go first."""
        holder: SegmentProducer | None = None
        for sealed in self._leaving:
            if _overlap(sealed.segment, target):
                holder = sealed
                if slot in sealed.segment.range:
                    break
        return holder or self.segment(target)

    def segment(self, segment: Segment) -> SegmentProducer:
        found = self.segments.get(segment.id)
        if found is None:
            topic = self.layout.segment_topic(segment)
            found = SegmentProducer(self._home, segment, topic, self.layout.owners.get(segment.id))
            self.segments[segment.id] = found
        return found

    def batches_closed(self, segment: SegmentProducer) -> None:
        """Messages without a key go elsewhere from now on."""
        sticky = self.routes.get(None)
        if sticky is not None and sticky[0].batcher is segment.batcher:
            del self.routes[None]

    def forget(self, segment: SegmentProducer) -> None:
        """The segment gave up; the next message for it starts anew."""
        if self.segments.get(segment.segment.id) is segment:
            del self.segments[segment.segment.id]
        self._leaving = [leaving for leaving in self._leaving if leaving is not segment]
        self.routes.clear()

    def join_open(self, first: int, bulk: BulkFuture) -> None:
        """Let a bulk wait for the open batches that hold messages after sequence id `first`."""
        for segment in self.segments.values():
            for lane in segment.batcher.opened:
                if lane.batch is not None and lane.batch.rows and lane.batch.rows[-1][2] > first:
                    bulk.join(lane.batch)

    def join_all(self, bulk: BulkFuture) -> None:
        """Close all open batches and let a bulk wait for everything that is under way."""
        for segment in list(self.segments.values()):
            segment.close_batches()
            for batch in segment.pending():
                bulk.join(batch)

    def expire(self, now: float, timeout_s: float) -> float | None:
        """Fail what has waited for so long; returns when the oldest message that is left was added."""
        oldest: float | None = None
        for segment in list(self.segments.values()):
            segment.expire(now, timeout_s)
            begun_at = segment.oldest_at()
            if begun_at is not None and (oldest is None or begun_at < oldest):
                oldest = begun_at
        return oldest

    def layout_changed(self, layout: TopicLayout) -> None:
        """Follow a newer layout."""
        self.layout = layout
        self._router = layout.router
        self.routes.clear()
        known = layout.layout.segments
        self._leaving = [
            producer
            for id_, producer in self.segments.items()
            if (listed := known.get(id_)) is None or not listed.active
        ]
        for id_, producer in self.segments.items():
            producer.owned_by(layout.owners.get(id_))
        for segment in list(self._leaving):
            segment.depart()
        self.transfer()
        if self._eager:
            for active in self.active:
                self.holder(active, active.range.start)

    def transfer(self) -> None:
        """Route the messages of sealed segments to their successors, wherever all concerned are settled."""
        active = self.layout.layout.active
        waiting = list(self._leaving)
        while waiting:
            # Segments that share a successor, directly or through others, go together.
            group = [waiting.pop(0)]
            targets: list[Segment] = []
            grown = True
            while grown:
                targets = [target for target in active if any(_overlap(s.segment, target) for s in group)]
                near = [s for s in waiting if any(_overlap(s.segment, target) for target in targets)]
                waiting = [s for s in waiting if s not in near]
                group += near
                grown = bool(near)
            if all(segment.settled for segment in group):
                self._move_on(group, targets)

    def _move_on(self, group: list[SegmentProducer], successors: list[Segment]) -> None:
        batches: list[tuple[Outgoing, SegmentProducer]] = []
        for segment in group:
            del self.segments[segment.segment.id]
            batches += [(batch, segment) for batch in segment.take_back()]
        self._leaving = [segment for segment in self._leaving if segment not in group]
        self.routes.clear()
        found = [
            (row, extras, batch, index, segment)
            for batch, segment in batches
            for index, (row, extras) in enumerate(batch.messages(sys.maxsize))
        ]
        found.sort(key=lambda message: message[0][2])
        places: dict[int, list[Any]] = {id(batch): [None] * batch.count for batch, _ in batches}
        for row, extras, batch, index, segment in found:
            judged = batch.judged or (segment.in_doubt and batch.tried)
            raw = None if row[1] is not None else self._stand_in(row[2], segment.segment, judged)
            route = partial(self._route_again, row[1], raw, successors)
            slot = None if raw is None or not judged else raw >> 16
            places[id(batch)][index] = self._add_again(row, extras, batch.begun_at, route, judged, slot)
        for batch, _ in batches:
            move(batch, places[id(batch)])
            batch.entry = b""

    def _stand_in(self, sequence: int, former: Segment, judged: bool) -> int | None:
        """The hash by which a message without a key goes on from a sealed segment; None when any will do.

        One that was sent by its sequence id stays where that belongs. One that may be stored already is
        judged by what is known of the segment that may have done so.
        """
        raw = stand_in_hash(self._home.name, sequence)
        if raw >> 16 in former.range:
            return raw
        return former.range.start << 16 | raw & 0xFFFF if judged else None

    def _route_again(self, key: str | bytes | None, raw: int | None, successors: list[Segment]) -> Route:
        """As `route`, but a message without a key goes to a successor too.

        Any other segment may have stored a later sequence id, and would take this one for a repetition.
        """
        if raw is not None:
            return self.route_by(raw)
        if key is None and None not in self.routes:
            self.routes[None] = self._keyless_route(successors)
        return self.route(key)

    def _add_again(
        self,
        row: Row,
        extras: Extras | None,
        begun_at: float,
        route: Callable[[], Route],
        judged: bool,
        ring_slot: int | None,
    ) -> tuple[Outgoing, int]:
        value, key, sequence, _ = row
        lane, slot, overhead = route()
        lonely = judged or (extras is not None and extras.deliver_at_ms > 0)
        size = len(value) + overhead
        if lane.batcher.opened and (lonely or size > lane.batcher.bytes_left):
            lane.batcher.owner.close_batches()
            lane, slot, overhead = route()
        if lane.batch is None:
            self._begin(lane)
        batch = lane.batcher.add(lane, (value, key, sequence, slot), size, begun_at, extras)
        batch.judged, batch.slot = judged, ring_slot
        # The send timeout counts from the day the message was first accepted.
        batch.begun_at = min(batch.begun_at, begun_at)
        place = batch, len(batch.rows) - 1
        if lonely or lane.batcher.full:
            lane.batcher.owner.close_batches()
        return place


def _overlap(one: Segment, other: Segment) -> bool:
    # Keys of classic topics are spread over all of them, whatever ranges they show.
    return one.is_classic or one.range.overlaps(other.range)
