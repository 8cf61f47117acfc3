"""How messages get their sequence ids and their places in batches; the hot paths of a producer.

A message that is added leaves in the order of its sequence id, also when segments and connections change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.client.decide.batcher import OpenBucket
from anabranch.client.decide.outgoing import Outgoing
from anabranch.client.options import Batching, PublishOptions
from anabranch.client.produce.futures import BulkFuture, follow
from anabranch.client.produce.memory import Memory
from anabranch.client.produce.preparing import Prepared
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.errors import MessageTooBigError
from anabranch.model.hashing import stand_in_hash
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX
from anabranch.speedups import Counter, add_items, add_rows

T = TypeVar("T")


@dataclass(slots=True)
class PlainRows:
    """Values and keys of many messages without rarely used parts; those before number `at` are added."""

    values: list[bytes]
    keys: list[str | bytes | None] | None
    at: int = 0

    @classmethod
    def of(cls, values: Sequence[bytes], keys: Sequence[str | bytes | None] | None) -> PlainRows:
        return cls(_listed(values), None if keys is None else _listed(keys))


PlainItem = tuple[Any, bytes, str | bytes | None]
"""A message without rarely used parts: its `SendOutcome`, its value and its key."""


class MessageAdding:
    """The half of a producer that adds messages to batches."""

    name: str
    _options: PublishOptions
    _limits: Batching
    _memory: Memory
    _routes: SegmentRoutes
    _counter: Counter
    _sequence_was_given: bool
    _each_alone: bool
    """Whether each message is looked at by itself, for its number or for interceptors."""
    _known: int
    """The highest sequence id that was stored under this name before."""
    _message_bytes_max: int

    def _quicken(self) -> None:
        """Take plain messages without the steps of Python from now on, if the producer can."""

    @property
    def _takes_plain(self) -> bool:
        """Whether the producer alone numbers its messages, so that `_add_placed` may add them."""
        return not self._each_alone

    def _add_placed(self, items: deque[Any]) -> None:
        """Take plain messages from the left of `items` until a batch closes, and tell outcomes their places.

        Returns as well before an item of another length than a PlainItem.
        """
        routes = self._routes
        by_key = routes.by_key
        while items and len(items[0]) == 3:
            if self._add_quickly(items):
                continue
            item: PlainItem = items.popleft()
            outcome, value, key = item
            bucket, slot, overhead = by_key.get(key) or routes.route(key)
            size = len(value) + overhead
            rolled = size > bucket.bytes_left
            if rolled:
                try:
                    bucket, slot, _ = self._make_room(value, key, bucket)
                except MessageTooBigError as error:
                    outcome.fail(error)
                    continue
            batch: Outgoing = bucket.batch or bucket.batcher.owner.begin(bucket)
            self._counter.last = sequence = self._counter.last + 1
            outcome._index = len(batch.rows)
            outcome._batch = batch
            if outcome._watch is not None:
                follow(batch, outcome._index, outcome)
            if bucket.add(batch, (value, key, sequence, slot), size):
                bucket.batcher.owner.close_batches()
                return
            if rolled:
                return

    def _add_quickly(self, items: deque[Any]) -> bool:
        """Let the compiled form take items; False if it left the first one to this producer."""
        if add_items is None:
            return False
        left = len(items)
        while (watched := add_items(self._routes.by_key, items, self._counter)) is not None:
            follow(watched._batch, watched._index, watched)
        return len(items) < left

    def _make_room(
        self, value: bytes, key: str | bytes | None, bucket: OpenBucket
    ) -> tuple[OpenBucket, int, int]:
        """Close the batches that a large message does not fit into.

        Returns its bucket, its bucket hash, and the bytes that are left in the bucket's batches with it.
        """
        self._check_size(len(value))
        if bucket.batch is not None:
            bucket.batcher.owner.close_batches()
        # Closing batches changes the route of messages without a key.
        bucket, slot, overhead = self._routes.route(key)
        return bucket, slot, bucket.bytes_left - len(value) - overhead

    def _check_size(self, size: int) -> None:
        limit = UNCOMPRESSED_BYTES_MAX if self._options.chunking else self._message_bytes_max
        if size > limit:
            raise MessageTooBigError(f"the message has {size} bytes; the broker takes up to {limit}")

    def _add_numbered(self, message: Prepared, bulk: BulkFuture | None = None) -> tuple[Outgoing, int]:
        """Add a message that may have a sequence id of the caller's; return its batch and index."""
        value, key, extras, sequence_id = message
        self._check_size(len(value))
        numbered = sequence_id is not None or self._sequence_was_given
        if sequence_id is None:
            sequence_id = self._counter.last + 1
        # A message with a number of the caller's must take the same route when the caller repeats it.
        raw = stand_in_hash(self.name, sequence_id) if key is None and numbered else None
        judged = sequence_id <= max(self._counter.last, self._known)
        added = self._routes.add((value, key, sequence_id, 0), extras, raw=raw, judged=judged, bulk=bulk)
        if extras is not None and extras.report is not None:
            extras.report.placed = True
            follow(*added, extras.report)
        self._counter.last = max(self._counter.last, sequence_id)
        return added

    def _add_numbered_run(self, rows: Iterator[Any], bulk: BulkFuture) -> bool:
        """Add messages one by one, with their extras; return whether more may follow."""
        for count, (value, key, extras) in enumerate(rows, 1):
            self._add_numbered((value, key, extras, None), bulk)
            if self._memory.full or count >= self._limits.max_messages:
                return True
        return False

    def _add_run(self, rows: PlainRows, bulk: BulkFuture) -> bool:
        """Add messages until a segment's batches close; return whether more may follow."""
        routes, first = self._routes, self._counter.last
        values, keys = rows.values, rows.keys
        try:
            while rows.at < len(values):
                if add_rows is not None:
                    rows.at = add_rows(routes.by_key, values, keys, rows.at, self._counter)
                    if rows.at >= len(values):
                        break
                value, key = values[rows.at], None if keys is None else keys[rows.at]
                rows.at += 1
                if self._add_row(value, key, first, bulk):
                    return True
            return False
        finally:
            routes.join_open(first, bulk)

    def _add_row(self, value: bytes, key: str | bytes | None, first: int, bulk: BulkFuture) -> bool:
        """Add one message of a run that began after sequence id `first`; return whether batches closed."""
        routes = self._routes
        bucket, slot, overhead = routes.by_key.get(key) or routes.route(key)
        batcher = bucket.batcher
        size = len(value) + overhead
        if rolled := size > bucket.bytes_left and bucket.batch is not None:
            routes.join_open(first, bulk)
            batcher.owner.close_batches()
            # Closing batches changes the route of messages without a key.
            bucket, slot, overhead = routes.route(key)
            batcher = bucket.batcher
        batch: Outgoing = bucket.batch or batcher.owner.begin(bucket)
        self._counter.last += 1
        if full := bucket.add(batch, (value, key, self._counter.last, slot), size):
            routes.join_open(first, bulk)
            batcher.owner.close_batches()
        return full or rolled


def _listed(items: Sequence[T]) -> list[T]:
    return items if type(items) is list else list(items)
