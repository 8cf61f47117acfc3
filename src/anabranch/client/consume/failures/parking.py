"""Parking at the broker: the messages of a bucket go back and wait there until an operator releases them.

Only consumers that share a segment by buckets have a lane to park in. A consumer that reads a segment alone
keeps a parked key itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.message import Message
from anabranch.client.received import Received
from anabranch.errors import AnabranchError
from anabranch.protocol.outer import read_outer


def behind_in_lane(source: SegmentConsumer, first: Received) -> Callable[[Received], bool] | None:
    """Tells the entries of the bucket of `first` that begin there; None if the broker has no lane for it."""
    hash_ = _bucket_hash(first)
    lane = next((part for part in source.attachment.bucket_ranges if part.start <= hash_ <= part.end), None)
    if lane is None:
        return None

    def is_behind(entry: Received) -> bool:
        if entry.source is not source or entry.position < first.position:
            return False
        return lane.start <= _bucket_hash(entry) <= lane.end

    return is_behind


def _bucket_hash(entry: Received) -> int:
    try:
        return read_outer(entry.data).bucket_hash
    except AnabranchError:
        return -1


def park_at_broker(
    source: SegmentConsumer, message: Message[Any], is_behind: Callable[[Received], bool], reason: str
) -> None:
    """Send the entry of a message back to be parked, after all acknowledgements so far."""
    for entry in filter(is_behind, list(source.entries)):
        source.entries.remove(entry)
        source.unhold(entry.position, entry.wanted)
        source.give_back(entry.wanted.bit_count())
    source.flush_acks()
    # The broker may have sent more of the bucket before this command reaches it.
    source.stale.append(is_behind)
    source.redeliver([message._entry.position], park=reason)
    source.when_carried_out(lambda: source.stale.remove(is_behind))
