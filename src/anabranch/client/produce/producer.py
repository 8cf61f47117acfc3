"""The producer: takes messages in the order of the calls and reports the outcome of each.

A message gets its sequence id, its segment and its place in a batch before the call returns; later changes of
segments and connections keep that order.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast

from anabranch.client.decide.batcher import BucketFill
from anabranch.client.decide.outgoing import Outgoing
from anabranch.client.figures import ProducerFigures, State, described
from anabranch.client.net.closing import Deadline
from anabranch.client.options import Seconds, optional_seconds
from anabranch.client.produce.futures import BulkFuture, SendFuture
from anabranch.client.produce.intercepting import give_up
from anabranch.client.produce.preparing import Prepared
from anabranch.client.produce.publisher import Publisher
from anabranch.errors import OperationTimeoutError, SendTimeoutError
from anabranch.model.ids import MessageId
from anabranch.speedups import Enqueuer, add_rows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """The waits of a producer for credit: a broker takes more entries only as fast as it stores them."""

    credit_waits: int
    """How often a segment's entries had to wait."""
    credit_wait_s: float
    """The waits of all segments together."""
    waiting_bytes: int
    """Bytes of entries that wait now."""


class AsyncProducer(Publisher[T]):
    """Publishes to one topic; made by `AsyncClient.create_producer`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            producer = await client.create_producer("orders")
            await producer.send(b"one tea", key="alice")
    """

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return str(self._routes.layout.name)

    @property
    def state(self) -> State:
        """Whether the producer is open or closed."""
        return "closed" if self._closed else "open"

    def __repr__(self) -> str:
        return described(self, self.state, topic=str(self._watch.topic), name=self.name)

    def _figures(self) -> ProducerFigures:
        """The numbers of `AsyncClient.stats`."""
        segments = list(self._routes.segments.values()) if hasattr(self, "_routes") else []
        waiting = sum(len(segment.sent) + len(segment.unsent) for segment in segments)
        topic, credit_waits = str(self._watch.topic), self._credit_waits.count
        return ProducerFigures(topic, self.name, self.state, self._counter.last, waiting, credit_waits)

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message; -1, or the initial one, before the first."""
        return self._counter.last

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker takes."""
        return self._message_bytes_max

    @property
    def is_connected(self) -> bool:
        """Whether every segment in use has a connection."""
        return all(segment.is_attached for segment in self._routes.segments.values())

    @property
    def bucket_fills(self) -> dict[tuple[int, int], BucketFill]:
        """How full the batches were, by segment and bucket, of the segments in use (PIP-486)."""
        return {
            (id_, number): replace(bucket.fill)
            for id_, segment in list(self._routes.segments.items())
            for number, bucket in enumerate(segment.batcher.buckets)
        }

    @property
    def stats(self) -> ProducerStats:
        """How long the producer has waited for credit of its brokers, and what waits now."""
        return ProducerStats(
            credit_waits=self._credit_waits.count,
            credit_wait_s=self._credit_waits.seconds(self._loop.time()),
            waiting_bytes=sum(segment.waiting_bytes for segment in list(self._routes.segments.values())),
        )

    async def send(
        self,
        value: T | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
        sequence_id: int | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: datetime | None = None,
    ) -> MessageId:
        """Publish one message and return its id when the broker has stored it.

        Raises SendTimeoutError after the producer's `send_timeout`, counted from the call. A cancelled call
        stops waiting; the message is sent nevertheless.
        """
        waiting_since = self._loop.time() if self._memory.full else None
        future = await self.enqueue(
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
        )
        if waiting_since is not None:
            await self._stored_since(waiting_since, future)
        return await future

    async def _stored_since(self, began: float, future: SendFuture) -> None:
        """Wait for a message that had to wait for room, no longer than the send timeout in total."""
        timeout_s = self._options.send_timeout_s or math.inf
        deadline = Deadline(began + timeout_s - self._loop.time())
        if not future.done() and not await deadline.allow(asyncio.wait(cast(Any, [future]))):
            raise SendTimeoutError(f"not stored within {timeout_s:g} s; it may still be stored")

    async def enqueue(
        self,
        value: T | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
        sequence_id: int | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: datetime | None = None,
    ) -> SendFuture:
        """Give a message its place in the order and return a future for its id; waits for room only."""
        if self._memory.full or self._closed:
            await self._admit()
        if (
            properties is not None
            or event_time is not None
            or sequence_id is not None
            or deliver_after is not None
            or deliver_at is not None
            or value is None
            or self._each_alone
        ):
            row = self._preparing.one(
                value, key, properties, event_time, sequence_id, deliver_after, deliver_at
            )
            return SendFuture(*self._add_one(row), self._loop)
        data: bytes = value if type(value) is self._plain else self._preparing.encode(value)  # type: ignore[assignment]
        bucket, slot, overhead = self._routes.by_key.get(key) or self._routes.route(key)
        left = bucket.bytes_left - len(data) - overhead
        if rolled := left < 0:
            bucket, slot, left = self._make_room(data, key, bucket)
        batch: Outgoing = bucket.batch or bucket.batcher.owner.begin(bucket)
        self._counter.last = sequence = self._counter.last + 1
        index = len(batch.rows)
        batch.rows.append((data, key, sequence, slot))
        bucket.bytes_left = left
        bucket.room = room = bucket.room - 1
        if full := room <= 0 or left <= 0:
            bucket.batcher.owner.close_batches()
        if full or rolled:
            # A caller that never waits must let the loop send and listen now and then.
            await asyncio.sleep(0)
        return SendFuture(batch, index, self._loop)

    def _quicken(self) -> None:
        if add_rows is not None and self._plain is not None and not self._each_alone:
            routes, slow = self._routes.by_key, partial(AsyncProducer.enqueue, self)
            self._enqueuer = Enqueuer(routes, self._memory, self._counter, SendFuture, self._loop, slow)
            # The signature and the documentation are those of the method.
            self.enqueue = self._enqueuer.enqueue  # type: ignore[method-assign]

    def _add_one(self, message: Prepared) -> tuple[Outgoing, int]:
        """Add a message that has unusual parts; interceptors learn of a message that cannot be added."""
        try:
            return self._add_numbered(message)
        except BaseException as error:
            give_up((message[2],), error)
            raise

    async def send_many(self, values: Sequence[T], keys: Sequence[str | bytes | None] | None = None) -> None:
        """Publish many messages, in order, and return when all are stored; raises the first failure.

        When a message fails, those that were not added yet are not sent. So a list that does not fit
        `memory_limit` fails within twice the `send_timeout`.
        """
        await (await self.enqueue_many(values, keys))

    async def enqueue_many(
        self, values: Sequence[T], keys: Sequence[str | bytes | None] | None = None
    ) -> BulkFuture:
        """Give many messages their place in the order and return one future for all of them.

        The cheapest way to publish: a message costs no more than its row in a batch.
        """
        datas, keys, extras = self._preparing.many(values, keys)
        if extras is None:
            return await self._enqueue_many_prepared(datas, keys)
        failure: BaseException | None = None
        try:
            return await self._enqueue_many_prepared(datas, keys, extras)
        except BaseException as error:
            failure = error
            raise
        finally:
            give_up(extras, failure)

    async def flush(self, timeout: Seconds | None = None) -> None:
        """Send all batches and wait for every message enqueued before; each fails after its send timeout.

        Raises the failures whose futures no caller has looked at: one error as itself, several as a group.
        Raises OperationTimeoutError if messages are still pending after `timeout`.
        """
        self._check_loop()
        limit = optional_seconds("timeout", timeout)
        if not await Deadline(math.inf if limit is None else limit).allow(self._drain()):
            raise OperationTimeoutError(f"{self.topic}: messages are not stored after {limit:g} s")
        errors = self._failures.take()
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} batches of messages were not stored", errors)

    async def close(self, timeout: Seconds | None = None) -> None:
        """Complete accepted messages, then disconnect, within `timeout`; by default the operation timeout.

        The producer is closed then in any case. The futures of messages that were not stored raise, and
        failures that no caller has looked at are logged. A cancelled call closes at once.
        """
        limit = optional_seconds("timeout", timeout)
        self._check_loop()
        await self._close_by(Deadline(self._pool.operation_timeout_s if limit is None else limit))

    async def __aenter__(self) -> AsyncProducer[T]:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        # A coroutine that is destroyed can wait for nothing.
        if kind is not GeneratorExit:
            await self.close()
