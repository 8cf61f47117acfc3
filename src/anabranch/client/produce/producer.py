"""The producer: takes messages in the order of the calls and reports the outcome of each.

A message gets its sequence id, its segment and its place in a batch before the call returns; later changes of
segments and connections keep that order.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar, cast

from anabranch.client.decide.producing.batcher import BucketFill
from anabranch.client.figures import State, described
from anabranch.client.net.closing import Deadline
from anabranch.client.options import Seconds, optional_seconds
from anabranch.client.produce.futures import BulkFuture, SendFuture
from anabranch.client.produce.intercepting import give_up
from anabranch.client.produce.publisher import Publisher
from anabranch.errors import OperationTimeoutError, SendTimeoutError
from anabranch.model.ids import MessageId

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


class AsyncProducer(Generic[T]):
    """Publishes to one topic; made by `AsyncClient.create_producer`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            producer = await client.create_producer("orders")
            await producer.send(b"one tea", key="alice")
    """

    def __init__(self, publisher: Publisher[T]) -> None:
        """Send with a publisher that is open."""
        self.publisher = publisher
        self.name = publisher.parts.name
        """Never None; a name that the caller chose lets deduplication span restarts."""
        self._parts, self._routes, self._intake = publisher.parts, publisher.routes, publisher.intake
        self._memory = publisher.parts.memory
        self._preparing, self._encode = publisher.preparing, publisher.preparing.encode
        # Bytes need no encoding, and most producers send bytes.
        self._plain = publisher.preparing.plain
        # The compiled form is chosen here, once. If values need no encoding, it stands for the whole method:
        # an attribute of the instance comes before the method of its class, which it calls for the messages
        # that it cannot add. Choosing in each call would cost a Python call per message. If values have to be
        # encoded, the compiled form takes what the method has encoded.
        self._enqueue_encoded: Callable[..., Awaitable[SendFuture]] = self._add_encoded
        slowly = self._add_encoded if self._plain is None else partial(AsyncProducer.enqueue, self)
        if (compiled := self._intake.compiled_enqueue(slowly)) is None:
            return
        if self._plain is None:
            self._enqueue_encoded = compiled
        else:
            self.enqueue = compiled  # type: ignore[method-assign]

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return str(self._routes.layout.name)

    @property
    def state(self) -> State:
        """Whether the producer is open or closed."""
        return self.publisher.state

    def __repr__(self) -> str:
        return described(self, self.state, topic=self.publisher.topic, name=self.name)

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message; -1, or the initial one, before the first."""
        return self.publisher.counter.last

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker takes."""
        return self._parts.message_bytes_max

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
            for number, bucket in enumerate(segment.sender.batcher.buckets)
        }

    @property
    def stats(self) -> ProducerStats:
        """How long the producer has waited for credit from its brokers, and what waits now."""
        waits, segments = self._parts.credit_waits, list(self._routes.segments.values())
        return ProducerStats(
            credit_waits=waits.count,
            credit_wait_s=waits.seconds(self._parts.loop.time()),
            waiting_bytes=sum(segment.sender.waiting_bytes for segment in segments),
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
        stops waiting; the message is sent all the same.
        """
        waiting_since = self._parts.loop.time() if self._memory.full else None
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
        timeout_s = self._parts.options.send_timeout_s or math.inf
        deadline = Deadline(began + timeout_s - self._parts.loop.time())
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
        intake = self._intake
        if self._memory.full or intake.closed:
            await intake.admit()
        if (
            properties is not None
            or event_time is not None
            or sequence_id is not None
            or deliver_after is not None
            or deliver_at is not None
            or value is None
            or intake.each_alone
        ):
            row = self._preparing.one(
                value, key, properties, event_time, sequence_id, deliver_after, deliver_at
            )
            try:
                batch, index = intake.add(*row)
            except BaseException as error:
                give_up((row[2],), error)
                raise
            return SendFuture(batch, index, self._parts.loop)
        data: bytes = value if type(value) is self._plain else self._encode(value)  # type: ignore[assignment]
        return await self._enqueue_encoded(data, key=key)

    async def _add_encoded(self, data: bytes, *, key: str | bytes | None) -> SendFuture:
        """Add a plain message; the caller has waited for room."""
        intake = self._intake
        batch, index = intake.add(data, key)
        if intake.filled:
            intake.filled = False
            # A caller that never waits must let the loop send and listen now and then.
            await asyncio.sleep(0)
        return SendFuture(batch, index, self._parts.loop)

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
            return await self.publisher.enqueue_many(datas, keys)
        failure: BaseException | None = None
        try:
            return await self.publisher.enqueue_many(datas, keys, extras)
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
        self._parts.check_loop()
        limit = optional_seconds("timeout", timeout)
        if not await Deadline(math.inf if limit is None else limit).allow(self.publisher.drain()):
            raise OperationTimeoutError(f"{self.topic}: messages are not stored after {limit:g} s")
        errors = self._parts.failures.take()
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
        self._parts.check_loop()
        limit_s = self._parts.pool.operation_timeout_s if limit is None else limit
        await self.publisher.close_by(Deadline(limit_s))

    async def __aenter__(self) -> AsyncProducer[T]:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        # A coroutine that is destroyed can wait for nothing.
        if kind is not GeneratorExit:
            await self.close()
