"""The segments in use, the bucket of each key, and the routes of messages when a segment is sealed.

A sealed segment's batches keep taking messages of its range while its producer finds out which entries are
stored. Once a layout without the segment is known, every message left is routed again in the order of
sequence ids, in one step that no newer message can overtake. A successor is opened only when all sealed
segments that overlap it are settled, because its broker would take a sequence id below one it has stored for
a repetition. The module knows no caller, schema or holder of a future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from anabranch.client.decide.producing.batcher import OpenBucket, SegmentBatcher, message_size
from anabranch.client.decide.producing.outgoing import Extras, Outgoing, Places, Row
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.options import without_utf8
from anabranch.client.produce.futures import BulkFuture, move
from anabranch.client.produce.parts import ProducerParts
from anabranch.client.produce.segment_producer import SegmentProducer
from anabranch.model.hashing import key_hash, stand_in_hash
from anabranch.model.layout import Segment
from anabranch.model.routing import Router

Route = tuple[OpenBucket, int, int]
"""Bucket, bucket hash, and the share of key and header in a message's size."""

ROUTES_CACHED_MAX = 65_536


class SegmentRoutes:
    """All segments a producer sends to, by key; also the receiver of their reports (SegmentReports)."""

    def __init__(self, parts: ProducerParts, layout: TopicLayout, *, eager: bool) -> None:
        """`eager` opens every active segment at once instead of with its first message."""
        self.layout = layout
        self.by_key: dict[str | bytes | None, Route] = {}
        """The routes of recent keys; the hot paths look here first."""
        self.segments: dict[int, SegmentProducer] = {}
        self._parts = parts
        self._eager = eager
        self._timeout_s = parts.options.send_timeout_s
        self._expiry: asyncio.TimerHandle | None = None
        self._leaving: list[SegmentProducer] = []
        self._router = Router(layout.layout)
        self._keyless_turn = parts.pool.rng.randrange(2**16)
        self._keyless_segments: Sequence[Segment] = self._router.segments

    # Routes.

    def route(self, key: str | bytes | None) -> Route:
        """Return the route of a key, remembered until the layout changes."""
        found = self.by_key.get(key)
        if found is not None:
            return found
        if len(self.by_key) >= ROUTES_CACHED_MAX:
            self.by_key.clear()
        if key is None:
            found = self._keyless_route()
        else:
            if not isinstance(key, (str, bytes)):
                raise TypeError(f"a key must be text or bytes, not {type(key).__name__}")
            try:
                hashed = key_hash(key)
            except UnicodeEncodeError as error:
                raise without_utf8("a key", error) from None
            found = self.route_by(hashed, key)
        self.by_key[key] = found
        return found

    def route_by(self, raw: int, key: str | bytes | None = None) -> Route:
        """Return the route of a raw hash."""
        slot = raw & 0xFFFF
        segment = self.holder(self._router.segment_for(raw), self._router.slot_of(raw))
        return segment.sender.batcher.bucket_for(slot), slot, message_size(b"", key)

    def _keyless_route(self) -> Route:
        # One segment and bucket until its batch closes, then the next: full batches, all buckets used.
        self._keyless_turn += 1
        turn, place = divmod(self._keyless_turn, len(self._keyless_segments))
        target = self._keyless_segments[place]
        buckets = self.holder(target, target.range.start).sender.batcher.buckets
        bucket = buckets[turn % len(buckets)]
        return bucket, bucket.slot, message_size(b"", None)

    def holder(self, target: Segment, slot: int) -> SegmentProducer:
        """Return the producer of an active segment, or of an unsettled sealed segment that overlaps it."""
        holder: SegmentProducer | None = None
        for sealed in self._leaving:
            if sealed.segment.shares_keys(target):
                holder = sealed
                if slot in sealed.segment.range:
                    break
        return holder or self.segment(target)

    def segment(self, segment: Segment) -> SegmentProducer:
        """Return the producer of a segment, opened if there is none."""
        found = self.segments.get(segment.id)
        if found is None:
            topic = self.layout.segment_topic(segment)
            url = self.layout.owners.get(segment.id)
            found = SegmentProducer(self._parts, self, segment, topic, url)
            self.segments[segment.id] = found
        return found

    # Messages.

    def place(
        self,
        row: Row,
        extras: Extras | None = None,
        *,
        raw: int | None = None,
        judged: bool = False,
        bulk: BulkFuture | None = None,
    ) -> tuple[Outgoing, int]:
        """Add a message to the batch of its bucket; return the batch and the message's index in it.

        The row gets the bucket hash of its route, which `raw` decides instead of the key where it is given. A
        `judged` message may be stored already: only the broker can tell, and only of an entry of one message.
        A delayed message gets an entry of its own too, so that it does not delay others.
        """
        value, key, sequence_id, _ = row
        alone, size = judged, len(value)
        if extras is not None:
            alone, size = judged or extras.deliver_at_ms > 0, size + _properties_size(extras)
        while True:
            if raw is None:
                bucket, slot, overhead = self.by_key.get(key) or self.route(key)
            else:
                bucket, slot, overhead = self.route_by(raw)
            batcher = bucket.batcher
            if not batcher.opened or not (alone or (bucket.batch and size + overhead > bucket.bytes_left)):
                break
            # Closing batches may change the route of a message without a key.
            batcher.owner.close_batches()
        batch: Outgoing = bucket.batch or batcher.owner.begin(bucket)
        if judged:
            batch.judged, batch.slot = True, None if raw is None else self._router.slot_of(raw)
        index = len(batch.rows)
        full = bucket.add(batch, (value, key, sequence_id, slot), size + overhead, extras)
        if bulk is not None:
            # Before the batch closes: an entry that cannot be built has its outcome at once.
            bulk.join(batch)
        if alone or full:
            batcher.owner.close_batches()
        return batch, index

    def join_open(self, bulk: BulkFuture) -> None:
        """Let a bulk wait for the open batches that hold messages of its current run."""
        after = bulk.after
        for segment in self.segments.values():
            for batch in segment.sender.batcher.opened.values():
                if batch.rows and batch.rows[-1][2] > after:
                    bulk.join(batch)

    def join_all(self, bulk: BulkFuture) -> None:
        """Close all open batches and let a bulk wait for every entry that is under way."""
        for segment in list(self.segments.values()):
            segment.sender.close_batches()
            for batch in segment.sender.waiting:
                bulk.join(batch)

    def end(self) -> list[asyncio.Future[Any] | None]:
        """Give all registrations back; messages without an outcome fail. Returns the answers to come."""
        answers = [segment.hang_up() for segment in self.segments.values()]
        self.segments.clear()
        if self._expiry is not None:
            self._expiry.cancel()
        return answers

    def _expire(self) -> None:
        """Fail the messages whose send timeout is over, and come back for the oldest that is left."""
        self._expiry = None
        now, senders = self._parts.loop.time(), [segment.sender for segment in self.segments.values()]
        for sender in senders:
            sender.expire(now, self._timeout_s)
        oldest = min((at for sender in senders if (at := sender.oldest_at()) is not None), default=None)
        if oldest is not None:
            self._expiry = self._parts.loop.call_at(oldest + self._timeout_s, self._expire)

    # Reports of the segments' producers.

    def batch_opened(self, now: float) -> None:
        """Start the timer of the send timeout, unless it runs."""
        if self._expiry is None and self._timeout_s:
            self._expiry = self._parts.loop.call_at(now + self._timeout_s, self._expire)

    def batches_closed(self, batcher: SegmentBatcher) -> None:
        """Let messages without a key go elsewhere from now on."""
        sticky = self.by_key.get(None)
        if sticky is not None and sticky[0].batcher is batcher:
            del self.by_key[None]

    def failed(self, producer: SegmentProducer) -> None:
        """Drop a producer that failed; the next message for its segment opens another."""
        if self.segments.get(producer.segment.id) is producer:
            del self.segments[producer.segment.id]
        self._leaving = [leaving for leaving in self._leaving if leaving is not producer]
        self.by_key.clear()

    # Sealed segments.

    def layout_changed(self, layout: TopicLayout) -> None:
        """Follow a newer layout."""
        self.layout = layout
        self._router = Router(layout.layout)
        self._keyless_segments = self._router.segments
        self.by_key.clear()
        known = layout.layout.segments
        self._parts.access.follow(layout.layout.active)
        self._leaving = [
            producer
            for id_, producer in self.segments.items()
            if (listed := known.get(id_)) is None or not listed.active
        ]
        for id_, producer in self.segments.items():
            producer.owned_by(layout.owners.get(id_))
        for segment in list(self._leaving):
            segment.depart()
        self.settled()
        if self._eager:
            for active in layout.layout.active:
                self.holder(active, active.range.start)

    def settled(self) -> None:
        """Route the messages of sealed segments to their successors, group by group of settled segments."""
        active = self.layout.layout.active
        waiting = list(self._leaving)
        while waiting:
            # Segments that share a successor, directly or through others, go together.
            group: list[SegmentProducer] = []
            near = [waiting.pop(0)]
            while near:
                group += near
                targets = [target for target in active if any(s.segment.shares_keys(target) for s in group)]
                near = [s for s in waiting if any(s.segment.shares_keys(target) for target in targets)]
                waiting = [s for s in waiting if s not in near]
            if all(segment.life.settled for segment in group):
                self._move_on(group, targets)

    # All messages of all sealed segments that share a successor are routed in one step, merged by sequence
    # id. Segment by segment would be wrong after a merge: the child would see 7 (from the first parent)
    # before 4 (from the second), and drop 4 as a repetition, because a broker takes a lower id for one it has
    # stored. The step contains no await, so no newer message of the application can get in between. Futures
    # follow their messages: `places` says, for each old index, which batch and index it has now. These are
    # two columns instead of pairs, because thousands of tuples would prolong the next garbage collection.
    def _move_on(self, group: list[SegmentProducer], successors: list[Segment]) -> None:
        """Take the messages of settled segments back and add them to batches of their successors."""
        batches: list[tuple[Outgoing, SegmentProducer]] = []
        for segment in group:
            del self.segments[segment.segment.id]
            batches += [(batch, segment) for batch in segment.sender.take_back()]
        self._leaving = [segment for segment in self._leaving if segment not in group]
        self.by_key.clear()
        parts = [batch.messages() for batch, _ in batches]
        order = sorted(_numbered([rows for rows, _ in parts]))
        places = [Places([batch] * batch.count, [0] * batch.count) for batch, _ in batches]
        # Any other segment may have stored a later sequence id, and would take these for repetitions.
        self._keyless_segments = successors
        for _, number, index in order:
            batch, segment = batches[number]
            rows, extras = parts[number]
            row, extra = rows[index], None if extras is None else extras[index]
            if batch.judged or segment.in_doubt or extra is not None or row[1] is None:
                successor, place = self._move(row, extra, batch, segment)
            else:
                successor, place = self.place(row)
            # The send timeout counts from the moment the message was first accepted.
            successor.begun_at = min(successor.begun_at, batch.begun_at)
            places[number].batches[index] = successor
            places[number].indexes[index] = place
        self._keyless_segments = self._router.segments
        for (batch, _), went_to in zip(batches, places, strict=True):
            move(batch, went_to)
            batch.entry = b""

    def _move(
        self, row: Row, extras: Extras | None, batch: Outgoing, segment: SegmentProducer
    ) -> tuple[Outgoing, int]:
        """Add a message of a sealed segment's batch to the batch of a successor."""
        judged = batch.judged or (segment.in_doubt and batch.tried)
        raw = None if row[1] is not None else self._stand_in(row[2], segment.segment, judged)
        return self.place(row, extras, raw=raw, judged=judged)

    def _stand_in(self, sequence: int, former: Segment, judged: bool) -> int | None:
        """Return the hash that routes a keyless message away from a sealed segment; None if any will do.

        A message that its sequence id routed there keeps that hash. A message that may be stored already goes
        to a successor of the segment that may have stored it, because only such a successor can tell.
        """
        raw = stand_in_hash(self._parts.name, sequence)
        if self._router.slot_of(raw) in former.range:
            return raw
        return self._router.moved_to(raw, former.range.start) if judged else None


def _properties_size(extras: Extras) -> int:
    return sum(len(name) + len(text) + 8 for name, text in (extras.properties or {}).items())


def _numbered(batches: Iterable[Sequence[Row]]) -> Iterator[tuple[int, int, int]]:
    """Return the sequence id of each message, the number of its batch, and its index there."""
    for number, rows in enumerate(batches):
        for index, row in enumerate(rows):
            yield row[2], number, index
