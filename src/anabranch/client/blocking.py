"""The same API for code without an event loop.

One daemon thread runs one event loop for a client; it starts with the first call, in the process that makes
it. Every object here holds its asyncio twin and forwards, and may be used from any thread. There is no logic
of its own beyond two buffers that save crossing threads for each message: sends queue up in the caller's
thread, and iteration takes messages in handfuls. The module is long because every signature is written out; a
test holds them equal to those of the twins.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from anabranch.aio import Backoff, new_event_loop
from anabranch.client.api import BYTES, AsyncClient
from anabranch.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.consume.inbox import Inbox
from anabranch.client.consume.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.segment_reader import RawEntry, SegmentTail
from anabranch.client.consume.segment_reader import SegmentReader as AsyncSegmentReader
from anabranch.client.consume.segment_reader import SegmentTails as AsyncSegmentTails
from anabranch.client.consume.stream_consumer import AsyncStreamConsumer, OnAssignment
from anabranch.client.decide.batcher import BucketFill, Outgoing
from anabranch.client.message import Message
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.options import (
    MEMORY_LIMIT,
    AccessMode,
    Batching,
    CompressionName,
    DeadLetter,
    InitialPosition,
    Seconds,
    positive,
)
from anabranch.client.produce.futures import BulkFuture, message_id
from anabranch.client.produce.preparing import Prepared
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import Codec, V
from anabranch.clock import Clock
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError, ReceiveTimeoutError
from anabranch.model.ids import Checkpoint, MessageId

T = TypeVar("T")
R = TypeVar("R")

QUEUED_SENDS_MAX = 500
"""Messages that may wait for the loop's thread before a caller does; with more, the two threads would only
fight for the interpreter."""

HANDFUL = 256
"""Messages an iteration takes at a time."""


_forks = 0
"""How often this process has been forked since it was started."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Portal:
    """The loop's thread; made on first use."""

    def __init__(self) -> None:
        self._forks = _forks
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop of the thread."""
        # Asking for the process id would be a system call for each message.
        if self._forks != _forks:
            raise InvalidConfigurationError("this client was made before fork; make one in the new process")
        loop = self._loop
        return self._start() if loop is None else loop

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="anabranch client", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def check(self, name: str) -> asyncio.AbstractEventLoop:
        """The loop, unless the caller is inside one of its own."""
        if asyncio._get_running_loop() is not None:
            raise InvalidConfigurationError(
                f"{name} would block the running event loop; await Async{name} instead"
            )
        return self.loop()

    def run(self, name: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine in the loop's thread and wait; an interrupt cancels it."""
        loop = self.check(name)
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class Handle:
    """What blocking objects share."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def _run(self, method: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._portal.run(f"{type(self).__name__}.{method}", work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the object; a second time does nothing."""
        raise NotImplementedError


class Producer(Handle, Generic[T]):
    """Publishes to one topic; the blocking face of AsyncProducer."""

    def __init__(self, portal: Portal, twin: AsyncProducer[T]) -> None:
        super().__init__(portal)
        self._twin = twin
        self._outbox: deque[_Item] = deque()
        self._emptying = False
        self._turn = asyncio.Lock()

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return self._twin.topic

    @property
    def name(self) -> str:
        """The producer's name, never None."""
        return self._twin.name

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message; -1, or the initial one, before the first."""
        return self._twin.last_sequence_id

    @property
    def is_connected(self) -> bool:
        """Whether no segment in use is without a connection."""
        return self._twin.is_connected

    @property
    def bucket_fills(self) -> dict[tuple[int, int], BucketFill]:
        """How full the batches were, by segment and bucket, of the segments in use (PIP-486)."""
        return self._twin.bucket_fills

    def send(
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
        """Publish one message and return its id when the broker has stored it."""
        self._portal.check("Producer.send")
        return self.enqueue(
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
        ).result()

    def enqueue(
        self,
        value: T | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
        sequence_id: int | None = None,
        deliver_after: Seconds | None = None,
        deliver_at: datetime | None = None,
    ) -> SendOutcome[MessageId]:
        """Give a message its place in the order and return a future for its id; waits for room only."""
        data, extras = self._twin.preparing.one(
            value, key, properties, event_time, sequence_id, deliver_after, deliver_at
        )
        outcome: SendOutcome[MessageId] = SendOutcome()
        self._put("enqueue", (outcome, (data, key, extras, sequence_id)))
        return outcome

    def send_many(self, values: Sequence[T], keys: Sequence[str | bytes | None] | None = None) -> None:
        """Publish many messages, in order, and return when all are stored; raises the first failure."""
        self._portal.check("Producer.send_many")
        self.enqueue_many(values, keys).result()

    def enqueue_many(
        self, values: Sequence[T], keys: Sequence[str | bytes | None] | None = None
    ) -> SendOutcome[None]:
        """Give many messages their place in the order and return one future for all of them."""
        datas = self._twin.preparing.many(values, keys)
        outcome: SendOutcome[None] = SendOutcome()
        self._put("enqueue_many", (outcome, datas, keys))
        return outcome

    def flush(self) -> None:
        """Send what is batched and wait for everything enqueued before; raises failures nobody looked at."""
        self._run("flush", self._flush)

    def close(self, timeout: Seconds | None = None) -> None:
        """Complete what was accepted, then give everything back; after `timeout` the rest fails."""
        self._run("close", lambda: self._close(timeout))

    async def _flush(self) -> None:
        await self._empty_outbox()
        await self._twin.flush()

    async def _close(self, timeout: Seconds | None) -> None:
        await self._empty_outbox()
        await self._twin.close(timeout)

    def _put(self, method: str, item: _Item) -> None:
        loop = self._portal.check(f"Producer.{method}")
        self._twin.check_open()
        if len(self._outbox) >= QUEUED_SENDS_MAX or not self._twin.options.block_if_full:
            self._run(method, self._empty_outbox)
        self._outbox.append(item)
        if not self._emptying:
            self._emptying = True
            loop.call_soon_threadsafe(self._start_emptying)

    def _start_emptying(self) -> None:
        self._twin.tasks.start(self._empty_outbox(), f"outbox of {self._twin.name}")

    async def _empty_outbox(self) -> None:
        outbox = self._outbox
        async with self._turn:
            while outbox:
                if len(outbox[0]) == 2:
                    await self._send_singles()
                else:
                    await self._send_list(*outbox.popleft())
            # A caller that saw the flag still set has left its message to this very check.
            self._emptying = False
            if outbox:
                self._emptying = True
                self._start_emptying()

    async def _send_singles(self) -> None:
        outbox = self._outbox
        rows: list[Prepared] = []
        outcomes: list[SendOutcome[Any]] = []
        while outbox and len(outbox[0]) == 2 and len(rows) < HANDFUL:
            outcome, row = cast(tuple[SendOutcome[Any], Prepared], outbox.popleft())
            outcomes.append(outcome)
            rows.append(row)
        try:
            await self._twin.enqueue_prepared(rows, outcomes)
        except Exception as error:
            for outcome in outcomes:
                # Those that were taken before have their own end.
                outcome.fail(error)

    async def _send_list(self, outcome: SendOutcome[None], datas: Any, keys: Any) -> None:
        try:
            sent = await self._twin.enqueue_many_prepared(datas, keys)
        except Exception as error:
            outcome.fail(error)
        else:
            sent.add_done_callback(outcome.follow)


class SendOutcome(Future[R]):
    """A future of concurrent.futures that remembers whether anybody looked at its failure."""

    def __init__(self) -> None:
        super().__init__()
        self._bulk: BulkFuture | None = None
        self._batch: Outgoing | None = None
        self._index = 0

    def settle(self, batch: Outgoing, index: int) -> None:
        """The batch that holds the message has its outcome."""
        self._batch, self._index = batch, index
        if self.set_running_or_notify_cancel():
            if batch.error is None:
                # The id is made when somebody asks for it.
                self.set_result(cast(R, None))
            else:
                self.set_exception(batch.error)

    def follow(self, bulk: BulkFuture) -> None:
        """All messages of a list have their outcome."""
        self._bulk = bulk
        if self.set_running_or_notify_cancel():
            error = bulk.peek()
            if error is None:
                self.set_result(cast(R, None))
            else:
                self.set_exception(error)

    def fail(self, error: Exception) -> None:
        """The message was not even taken."""
        if self._batch is None and not self.done() and self.set_running_or_notify_cancel():
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> R:
        """The outcome, waited for; raises why the message failed, or TimeoutError."""
        try:
            result = super().result(timeout)
        finally:
            self._look()
        return result if self._batch is None else cast(R, message_id(self._batch, self._index))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the message failed, waited for; None when it was stored."""
        try:
            return super().exception(timeout)
        finally:
            self._look()

    def _look(self) -> None:
        if self.done():
            if self._batch is not None:
                self._batch.seen = True
            if self._bulk is not None:
                self._bulk.mark_seen()


_Item = tuple[SendOutcome[Any], Prepared] | tuple[SendOutcome[Any], Any, Any]
"""A message, or a list of values and a list of keys."""


class Consumer(Handle, Generic[T]):
    """What blocking consumers share."""

    _twin: Inbox[T]

    def __init__(self, portal: Portal) -> None:
        super().__init__(portal)
        self._handful: deque[Message[T]] = deque()
        self._lock = threading.Lock()

    def receive(self, timeout: Seconds | None = None) -> Message[T]:
        """The next message; raises ReceiveTimeoutError when none came in time."""
        with self._lock:
            if self._handful:
                return self._handful.popleft()
        return self._run("receive", lambda: self._twin.receive(timeout))

    def receive_many(self, max_messages: int, timeout: Seconds | None = None) -> list[Message[T]]:
        """Wait for a message, then take what is there, up to `max_messages`; empty when the time ran out."""
        positive("max_messages", max_messages)
        with self._lock:
            if self._handful:
                return [self._handful.popleft() for _ in range(min(max_messages, len(self._handful)))]
        return self._run("receive_many", lambda: self._twin.receive_many(max_messages, timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[T]:
        try:
            return self._handful.popleft()
        except IndexError:
            pass
        try:
            taken = self._run("__next__", lambda: self._twin.receive_many(HANDFUL))
        except AlreadyClosedError:
            raise StopIteration from None
        if not taken:
            raise ReceiveTimeoutError("no message came")
        with self._lock:
            self._handful.extend(taken)
            return self._handful.popleft()

    def close(self) -> None:
        """End waiting receives and iterations, and leave the topic."""
        self._run("close", self._twin.close)
        self._handful.clear()


class StreamConsumer(Consumer[T]):
    """Reads a share of a topic in key order; the blocking face of AsyncStreamConsumer."""

    _twin: AsyncStreamConsumer[T]

    def __init__(self, portal: Portal, twin: AsyncStreamConsumer[T]) -> None:
        super().__init__(portal)
        self._twin = twin

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return self._twin.topic

    @property
    def subscription(self) -> str:
        return self._twin.subscription

    @property
    def name(self) -> str:
        """The consumer's identity in its subscription."""
        return self._twin.name

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments this consumer reads now."""
        return self._twin.assignment

    def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge everything handed out up to a message, in every segment."""
        self._run("acknowledge_cumulative", lambda: self._twin.acknowledge_cumulative(message))

    def flush_acks(self) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them."""
        self._run("flush_acks", self._twin.flush_acks)


class QueueConsumer(Consumer[T]):
    """Reads all segments in parallel; the blocking face of AsyncQueueConsumer."""

    _twin: AsyncQueueConsumer[T]

    def __init__(self, portal: Portal, twin: AsyncQueueConsumer[T]) -> None:
        super().__init__(portal)
        self._twin = twin

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return self._twin.topic

    @property
    def subscription(self) -> str:
        return self._twin.subscription

    @property
    def name(self) -> str:
        return self._twin.name

    def acknowledge(self, message: Message[T] | MessageId | Iterable[Message[T] | MessageId]) -> None:
        """Acknowledge one message or several; they never come again."""
        self._run("acknowledge", lambda: self._twin.acknowledge(message))

    def negative_acknowledge(self, message: Message[T] | MessageId, *, delay: Seconds | None = None) -> None:
        """Give a message back; it comes again after `delay`, by default as `redelivery` says."""
        self._run("negative_acknowledge", lambda: self._twin.negative_acknowledge(message, delay=delay))

    @contextmanager
    def processing(self, message: Message[T]) -> Iterator[Message[T]]:
        """Acknowledge on leaving the block, negatively when it raises; the exception goes on."""
        try:
            yield message
        except BaseException:
            self.negative_acknowledge(message)
            raise
        self.acknowledge(message)

    def flush_acks(self) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them."""
        self._run("flush_acks", self._twin.flush_acks)


class CheckpointConsumer(Consumer[T]):
    """Reads a topic from a checkpoint on; the blocking face of AsyncCheckpointConsumer."""

    _twin: AsyncCheckpointConsumer[T]

    def __init__(self, portal: Portal, twin: AsyncCheckpointConsumer[T]) -> None:
        super().__init__(portal)
        self._twin = twin

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return self._twin.topic

    @property
    def name(self) -> str:
        return self._twin.name

    def checkpoint(self) -> Checkpoint:
        """Exactly what was handed out so far; reading from it goes on with the next message."""
        with self._lock:
            waiting = list(self._handful)

        async def look() -> Checkpoint:
            return self._twin.checkpoint_before(waiting)

        return self._run("checkpoint", look)


class SegmentReader(Handle):
    """Whole entries of one segment; the blocking face of client.segment_reader.SegmentReader."""

    def __init__(self, portal: Portal, twin: AsyncSegmentReader) -> None:
        super().__init__(portal)
        self._twin = twin

    def __iter__(self) -> Iterator[RawEntry]:
        while entries := self.read():
            yield from entries

    def read(self) -> list[RawEntry]:
        """All entries at hand, after waiting for one; empty at the end."""
        return self._run("read", self._twin.read)

    def close(self) -> None:
        """Stop reading."""
        self._run("close", self._twin.close)


class SegmentTails(Handle):
    """What segments hold; the blocking face of client.segment_reader.SegmentTails."""

    def __init__(self, portal: Portal, twin: AsyncSegmentTails) -> None:
        super().__init__(portal)
        self._twin = twin

    def tail(self, topic: str) -> SegmentTail:
        """What a segment holds now."""
        return self._run("tail", lambda: self._twin.tail(topic))

    def tails(self, topics: list[str]) -> dict[str, SegmentTail]:
        """What several segments hold, asked at once."""
        return self._run("tails", lambda: self._twin.tails(topics))

    def forget(self, topic: str) -> None:
        """End the subscription of a segment that nobody will ask for again."""

        async def forget() -> None:
            self._twin.forget(topic)

        self._run("forget", forget)

    def close(self) -> None:
        """End all subscriptions."""
        self._run("close", self._twin.close)


class Client(Handle):
    """Talks to one cluster; the blocking face of AsyncClient."""

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: Seconds = 30.0,
        connect_timeout: Seconds = 10.0,
        keep_alive_interval: Seconds = 30.0,
        memory_limit: int = MEMORY_LIMIT,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        """Check the arguments; nothing is connected, and no thread started, before the first call."""
        super().__init__(Portal())
        self._twin = AsyncClient(
            service_url,
            operation_timeout=operation_timeout,
            connect_timeout=connect_timeout,
            keep_alive_interval=keep_alive_interval,
            memory_limit=memory_limit,
            clock=clock,
            rng=rng,
        )
        self.service_url = service_url

    @property
    def closed(self) -> bool:
        return self._twin.closed

    def create_producer(
        self,
        topic: str,
        *,
        schema: Codec[V] = BYTES,
        name: str | None = None,
        access_mode: AccessMode = "shared",
        send_timeout: Seconds = 30.0,
        block_if_full: bool = True,
        compression: CompressionName | None = None,
        batching: Batching | bool = True,
        initial_sequence_id: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Producer[V]:
        """Open a producer; a bare topic name means topic://public/default/<name>."""
        twin = self._run(
            "create_producer",
            lambda: self._twin.create_producer(
                topic,
                schema=schema,
                name=name,
                access_mode=access_mode,
                send_timeout=send_timeout,
                block_if_full=block_if_full,
                compression=compression,
                batching=batching,
                initial_sequence_id=initial_sequence_id,
                properties=properties,
            ),
        )
        return Producer(self._portal, twin)

    def subscribe_stream(
        self,
        topic: str,
        subscription: str,
        *,
        schema: Codec[V] = BYTES,
        initial_position: InitialPosition = "latest",
        name: str | None = None,
        receiver_queue_size: int | None = None,
        ack_group_time: Seconds = 0.1,
        ack_receipts: bool = False,
        subscription_properties: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        on_assignment: OnAssignment | None = None,
    ) -> StreamConsumer[V]:
        """Read in key order with cumulative acknowledgement; consumers of one subscription share the topic.

        `on_assignment` is called in the client's own thread.
        """
        twin = self._run(
            "subscribe_stream",
            lambda: self._twin.subscribe_stream(
                topic,
                subscription,
                schema=schema,
                initial_position=initial_position,
                name=name,
                receiver_queue_size=receiver_queue_size,
                ack_group_time=ack_group_time,
                ack_receipts=ack_receipts,
                subscription_properties=subscription_properties,
                properties=properties,
                on_assignment=on_assignment,
            ),
        )
        return StreamConsumer(self._portal, twin)

    def subscribe_queue(
        self,
        topic: str,
        subscription: str,
        *,
        schema: Codec[V] = BYTES,
        initial_position: InitialPosition = "latest",
        name: str | None = None,
        receiver_queue_size: int = 1000,
        ack_group_time: Seconds = 0.1,
        ack_group_size: int = 1000,
        ack_receipts: bool = False,
        subscription_properties: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        priority: int = 0,
        processing_timeout: Seconds | None = None,
        redelivery: Backoff = Backoff(60.0, 60.0),  # noqa: B008 - frozen
        dead_letter: DeadLetter | None = None,
    ) -> QueueConsumer[V]:
        """Read in parallel with single acknowledgement; each message goes to one consumer at a time."""
        twin = self._run(
            "subscribe_queue",
            lambda: self._twin.subscribe_queue(
                topic,
                subscription,
                schema=schema,
                initial_position=initial_position,
                name=name,
                receiver_queue_size=receiver_queue_size,
                ack_group_time=ack_group_time,
                ack_group_size=ack_group_size,
                ack_receipts=ack_receipts,
                subscription_properties=subscription_properties,
                properties=properties,
                priority=priority,
                processing_timeout=processing_timeout,
                redelivery=redelivery,
                dead_letter=dead_letter,
            ),
        )
        return QueueConsumer(self._portal, twin)

    def create_checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Checkpoint = Checkpoint.latest(),  # noqa: B008 - frozen
        group: str | None = None,
        schema: Codec[V] = BYTES,
        name: str | None = None,
        receiver_queue_size: int | None = None,
        properties: Mapping[str, str] | None = None,
        fail_on_data_loss: bool = True,
    ) -> CheckpointConsumer[V]:
        """Read in key order from a checkpoint on; the caller keeps the positions."""
        twin = self._run(
            "create_checkpoint_consumer",
            lambda: self._twin.create_checkpoint_consumer(
                topic,
                start=start,
                group=group,
                schema=schema,
                name=name,
                receiver_queue_size=receiver_queue_size,
                properties=properties,
                fail_on_data_loss=fail_on_data_loss,
            ),
        )
        return CheckpointConsumer(self._portal, twin)

    def layout(self, topic: str, *, create: bool = False) -> TopicLayout:
        """The layout of a topic now, for tools and bulk readers."""
        return self._run("layout", lambda: self._twin.layout(topic, create=create))

    def read_segment(self, segment_topic: str, start: int, stop: int) -> SegmentReader:
        """Whole entries of one segment by message index, for bulk readers."""

        async def read() -> AsyncSegmentReader:
            return self._twin.read_segment(segment_topic, start, stop)

        return SegmentReader(self._portal, self._run("read_segment", read))

    def tails(self) -> SegmentTails:
        """A way to ask segments again and again what they hold, for bulk readers."""

        async def tails() -> AsyncSegmentTails:
            return self._twin.tails()

        return SegmentTails(self._portal, self._run("tails", tails))

    def close(self) -> None:
        """Complete pending sends, send pending acknowledgements, close all handles, end the thread."""
        if not self._twin.closed:
            self._run("close", self._twin.close)
            self._portal.stop()

    def shutdown(self) -> None:
        """Drop everything at once: pending sends fail, pending acknowledgements are lost."""
        if not self._twin.closed:
            self._run("shutdown", self._twin.shutdown)
            self._portal.stop()
