"""The entrance of a producer: each message gets its sequence id and its place in a batch within the call.

`MessageIntake.add` is the only way in. What is added leaves in the order of sequence ids, also when segments
and connections change. `CompiledIntake` adds plain messages in compiled loops and leaves the others to `add`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.client.decide.producing.batcher import OpenBucket
from anabranch.client.decide.producing.outgoing import Extras, Outgoing
from anabranch.client.produce.futures import BulkFuture, SendFuture, follow
from anabranch.client.produce.memory import RoomWaits
from anabranch.client.produce.parts import ProducerParts
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.errors import AlreadyClosedError, MemoryBufferFullError, MessageTooBigError
from anabranch.model.hashing import stand_in_hash
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX
from anabranch.speedups import Counter, Enqueuer, add_items, add_rows

T = TypeVar("T")

Place = tuple[Outgoing, int]
"""The batch of a message, and the index of the message in it."""

NotPlain = tuple[bytes, str | bytes | None, Extras | None]
"""Value, key and extras of a message."""

PlainItem = tuple[Any, bytes, str | bytes | None]
"""A `SendOutcome` with the value and key of its message. A plain tuple, because compiled code reads it."""


@dataclass(slots=True)
class PlainRows:
    """Values and keys of many plain messages. Those before number `at` have been added."""

    values: list[bytes]
    keys: list[str | bytes | None] | None
    at: int = 0

    @classmethod
    def of(cls, values: Sequence[bytes], keys: Sequence[str | bytes | None] | None) -> PlainRows:
        return cls(_listed(values), None if keys is None else _listed(keys))


class MessageIntake:
    """Admits messages while there is room, numbers them, and adds them to open batches.

    A message is plain if it has neither extras nor a sequence id from its caller. `each_alone` says that no
    message of this producer is plain: the application numbers them, interceptors look at them, or the schema
    takes their keys from their values.
    """

    def __init__(
        self, parts: ProducerParts, routes: SegmentRoutes, counter: Counter, each_alone: bool
    ) -> None:
        self.each_alone = each_alone
        self.closed = False
        self.filled = False
        """Set when a plain message closes batches; the next caller that can wait clears it and lets the loop
        send. A caller that never waits would otherwise keep the loop from sending and listening."""
        self.known = -1
        """The highest sequence id that was stored under the producer's name before it was opened."""
        self.memory = parts.memory
        self._parts = parts
        self._routes = routes
        self._counter = counter
        self._room = RoomWaits(parts.memory, parts.options.send_timeout_s)
        self._run_max = parts.options.limits.max_messages
        self._numbers_given = parts.options.initial_sequence_id is not None

    # Admission.

    async def admit(self) -> None:
        """Return when there is room; raises when the producer cannot take messages.

        Callers skip this while neither `memory.full` nor `closed` is set.
        """
        self._parts.check_loop()
        self.check_open()
        if self.memory.full:
            if not self._parts.options.block_if_full:
                raise MemoryBufferFullError(
                    f"{self.memory.used} bytes wait to be stored; the client's limit is {self.memory.limit}"
                )
            await self._room.wait()

    def check_open(self) -> None:
        """Raise AlreadyClosedError when the producer takes no more messages."""
        if self.closed:
            raise AlreadyClosedError("the producer is closed")

    def close(self) -> None:
        """Take no more messages, and end the waits for room."""
        self.closed = True
        self._room.close()

    def check_size(self, size: int) -> None:
        """Raise MessageTooBigError if the broker would not take a message of this size."""
        chunking = self._parts.options.chunking
        limit = UNCOMPRESSED_BYTES_MAX if chunking else self._parts.message_bytes_max
        if size > limit:
            raise MessageTooBigError(f"the message has {size} bytes; the broker takes up to {limit}")

    # Adding.

    # This runs for every message of a producer with a schema, and for every message where the package was
    # built without a compiler, so the plain case stands here in full: one look-up by key, one append, three
    # numbers. A route holds the open bucket itself, so no segment, batcher or sender is asked on the way.
    # A message that does not fit closes the batches before it is added: its batch would exceed the limit of
    # the broker. A message that fills its batch closes the batches behind it, and all batches of the segment
    # close together, because the broker recognises repeated entries by a number that must only rise.
    def add(
        self,
        value: bytes,
        key: str | bytes | None,
        extras: Extras | None = None,
        sequence_id: int | None = None,
        bulk: BulkFuture | None = None,
    ) -> Place:
        """Add a message to the open batch of its bucket; `bulk` waits for the batch too."""
        if extras is not None or sequence_id is not None or self.each_alone:
            return self._add_alone(value, key, extras, sequence_id, bulk)
        routes = self._routes
        bucket, slot, overhead = routes.by_key.get(key) or routes.route(key)
        left = bucket.bytes_left - len(value) - overhead
        if left < 0:
            bucket, slot, left = self._make_room(value, key, bucket, bulk)
        batch: Outgoing = bucket.batch or bucket.batcher.owner.begin(bucket)
        counter = self._counter
        counter.last = sequence = counter.last + 1
        index = len(batch.rows)
        batch.rows.append((value, key, sequence, slot))
        bucket.bytes_left = left
        bucket.room = room = bucket.room - 1
        if room <= 0 or left <= 0:
            self._close_batches(bucket, bulk)
        return batch, index

    def _make_room(
        self, value: bytes, key: str | bytes | None, bucket: OpenBucket, bulk: BulkFuture | None
    ) -> tuple[OpenBucket, int, int]:
        """Close the batches that a large message does not fit into.

        Returns its bucket, its bucket hash, and the bytes that are left in the bucket's batches with it.
        """
        if bulk is None:
            # The sizes of a list were checked when its call began.
            self.check_size(len(value))
        self.filled = True
        if bucket.batch is not None:
            self._close_batches(bucket, bulk)
        # Closing batches changes the route of messages without a key.
        bucket, slot, overhead = self._routes.route(key)
        return bucket, slot, bucket.bytes_left - len(value) - overhead

    def _close_batches(self, bucket: OpenBucket, bulk: BulkFuture | None) -> None:
        self.filled = True
        if bulk is not None:
            # Compiled loops add to open batches without a word; closed batches could not be found again.
            self._routes.join_open(bulk)
        bucket.batcher.owner.close_batches()

    def _add_alone(
        self,
        value: bytes,
        key: str | bytes | None,
        extras: Extras | None,
        sequence_id: int | None,
        bulk: BulkFuture | None,
    ) -> Place:
        self.check_size(len(value))
        numbered, last = sequence_id is not None or self._numbers_given, self._counter.last
        if sequence_id is None:
            sequence_id = last + 1
        # A message that its caller numbered must take the same route when the caller repeats it.
        raw = stand_in_hash(self._parts.name, sequence_id) if key is None and numbered else None
        judged = sequence_id <= max(last, self.known)
        row = value, key, sequence_id, 0
        added = self._routes.place(row, extras, raw=raw, judged=judged, bulk=bulk)
        if extras is not None and extras.report is not None:
            extras.report.placed = True
            follow(*added, extras.report)
        self._counter.last = max(self._counter.last, sequence_id)
        return added

    # Adding many.

    def add_rows(self, rows: PlainRows, bulk: BulkFuture) -> bool:
        """Add plain messages until batches close; return whether more may follow."""
        bulk.after = self._counter.last
        self.filled = False
        try:
            while rows.at < len(rows.values) and not self.filled:
                self._add_row(rows, bulk)
            return self.filled
        finally:
            self._routes.join_open(bulk)

    def _add_row(self, rows: PlainRows, bulk: BulkFuture) -> None:
        at = rows.at
        rows.at = at + 1
        self.add(rows.values[at], None if rows.keys is None else rows.keys[at], bulk=bulk)

    def add_each(self, messages: Iterator[NotPlain], bulk: BulkFuture) -> bool:
        """Add messages that are not plain, about as many as a batch holds; return whether more may follow."""
        for count, (value, key, extras) in enumerate(messages, 1):
            self._add_alone(value, key, extras, None, bulk)
            if self.memory.full or count >= self._run_max:
                return True
        return False

    def add_items(self, items: deque[Any]) -> None:
        """Take plain items from the left until batches close, and give each outcome its place.

        Stops before anything else than a plain item. The caller has made sure that messages can be plain.
        """
        self.filled = False
        while items and type(items[0]) is tuple and not self.filled:
            self._add_item(items.popleft())

    def _add_item(self, item: PlainItem) -> None:
        outcome, value, key = item
        try:
            batch, index = self.add(value, key)
        except MessageTooBigError as error:
            outcome.fail(error)
        else:
            outcome.put(batch, index)

    def compiled_enqueue(self, slowly: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return a compiled `enqueue` for values that are encoded or need no encoding; None if there is none.

        It calls `slowly`, the form in Python, for each message that it cannot add.
        """
        return None


# Most of the 0.9 us that a message cost in bulk was spent in Python between two appends (docs/decisions.md).
# So the compiled functions take messages as long as each of them is plain and fits into an open batch without
# filling it. They stop in front of the first other message, which `add` takes: opening and closing batches is
# decided in one place, and costs a Python call per batch instead of one per message.
class CompiledIntake(MessageIntake):
    """Adds plain messages in compiled loops."""

    _enqueuer: Enqueuer | None = None

    def add_rows(self, rows: PlainRows, bulk: BulkFuture) -> bool:
        """As the Python form; the messages between two changes of open batches are added at once."""
        assert add_rows is not None
        bulk.after = self._counter.last
        self.filled = False
        by_key, values, keys, counter = self._routes.by_key, rows.values, rows.keys, self._counter
        try:
            while not self.filled:
                rows.at = add_rows(by_key, values, keys, rows.at, counter)
                if rows.at >= len(values):
                    break
                self._add_row(rows, bulk)
            return self.filled
        finally:
            self._routes.join_open(bulk)

    def add_items(self, items: deque[Any]) -> None:
        """As the Python form; the items between two changes of open batches are added at once."""
        assert add_items is not None
        self.filled = False
        while items and type(items[0]) is tuple and not self.filled:
            # An outcome that is returned has its place already, and a caller waits for it.
            while (watched := add_items(self._routes.by_key, items, self._counter)) is not None:
                batch, index = watched.placed()
                follow(batch, index, watched)
            if items and type(items[0]) is tuple:
                self._add_item(items.popleft())

    def compiled_enqueue(self, slowly: Callable[..., Any]) -> Callable[..., Any] | None:
        if self.each_alone:
            return None
        parts = self._parts
        self._enqueuer = Enqueuer(
            self._routes.by_key, parts.memory, self._counter, SendFuture, parts.loop, slowly
        )
        return self._enqueuer.enqueue

    def close(self) -> None:
        if self._enqueuer is not None:
            self._enqueuer.closed = True
        super().close()


def new_intake(
    parts: ProducerParts, routes: SegmentRoutes, counter: Counter, each_alone: bool
) -> MessageIntake:
    """Return the compiled form of an intake, or the Python form if there is no compiled one."""
    kind = MessageIntake if add_rows is None else CompiledIntake
    return kind(parts, routes, counter, each_alone)


def _listed(items: Sequence[T]) -> list[T]:
    return items if type(items) is list else list(items)
