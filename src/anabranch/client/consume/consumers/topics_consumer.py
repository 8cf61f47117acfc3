"""One consumer of several topics: a list of them, or those of a namespace, as they come and go.

It has an ordinary consumer of each topic. Messages of a topic keep the order that its consumer gives them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Generic, Self, TypeVar

from anabranch.aio import TaskRegistry
from anabranch.client.consume.acknowledgements.given_back import each_of
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
from anabranch.client.consume.consumers.subscription_parts import SeekTarget
from anabranch.client.consume.consumers.topic_selection import TopicSelection
from anabranch.client.consume.context import Waiters
from anabranch.client.figures import described
from anabranch.client.message import Message, entry_of
from anabranch.client.net.closing import Closing, Deadline, close_all
from anabranch.client.net.connection_pool import RECONNECT, ConnectionPool
from anabranch.client.options import Seconds, log, optional_seconds, positive, seconds
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    InvalidConfigurationError,
    ReceiveTimeoutError,
    TopicNotFoundError,
)
from anabranch.model.ids import MessageId

T = TypeVar("T")

Child = AsyncQueueConsumer[T] | AsyncStreamConsumer[T]


class TopicsParts(Generic[T]):
    """The consumers of the topics that one consumer reads, as topics come and go."""

    def __init__(
        self,
        pool: ConnectionPool,
        selection: TopicSelection,
        open_one: Callable[[str, bool], Awaitable[Child[T]]],
    ) -> None:
        """`open_one` opens the consumer of a topic; its second argument tells a topic that came later."""
        self.children: dict[str, Child[T]] = {}
        self.waiting = Waiters()
        self.paused = False
        self.closed = False
        self._pool = pool
        self._selection = selection
        self._open_one = open_one
        self._turns: deque[Child[T]] = deque()
        self._tasks = TaskRegistry()
        self._closing = Closing()

    @property
    def operation_timeout_s(self) -> float:
        return self._pool.operation_timeout_s

    async def open(self) -> None:
        """Subscribe to all topics that exist now."""
        deadline = Deadline(self._pool.operation_timeout_s)
        try:
            names = await self._selection.open(self._tasks, deadline.left_s, self.waiting.wake_all)
            await asyncio.gather(*(self._add(name, later=False) for name in sorted(names)))
            if self._selection.may_change:
                self._tasks.start(self._follow(), "follow the topics of a namespace")
        except (Exception, asyncio.CancelledError):
            await self.close_by(Deadline(0.0))
            raise

    async def _add(self, name: str, *, later: bool) -> None:
        child = await self._open_one(name, later)
        if self.closed:
            await child.close()
            return
        child.parts.join(self.waiting)
        if self.paused:
            child.pause()
        self.children[name] = child
        self._turns.append(child)
        self.waiting.wake_all()

    async def _follow(self) -> None:
        """Open and close consumers as topics come and go."""
        failures = 0
        while True:
            await self._selection.changed.wait()
            self._selection.changed.clear()
            wanted = self._selection.wanted
            for name in sorted(self.children.keys() - wanted):
                child = self.children.pop(name)
                self._turns.remove(child)
                await child.close()
            for name in sorted(wanted - self.children.keys()):
                try:
                    await self._add(name, later=True)
                    failures = 0
                except AnabranchError as error:
                    log.warning("%s cannot be read yet: %s", name, error)
                    self._selection.changed.set()
                    await asyncio.sleep(RECONNECT.delay(failures, self._pool.rng))
                    failures += 1

    async def next(self, limit: int, timeout: Seconds | None) -> list[Message[T]]:
        """Wait for messages; return those of the first topic in turn that has some, up to `limit`."""
        limit_s = optional_seconds("timeout", timeout)
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    if self.closed:
                        raise AlreadyClosedError("the consumer is closed")
                    found = self._poll(limit)
                    if found:
                        await self._turns[-1].parts.inbox.breathe()
                        return found
                    await self.waiting.wait()
        except TimeoutError:
            raise ReceiveTimeoutError(f"no message came within {limit_s:g} s") from None

    def _poll(self, limit: int) -> list[Message[T]]:
        """Return messages of the first topic in turn that has some; raises if a listed one is gone."""
        missing: TopicNotFoundError | None = None
        for _ in range(len(self._turns)):
            child = self._turns[0]
            self._turns.rotate(-1)
            try:
                found = child.parts.inbox.poll(limit)
            except TopicNotFoundError as error:
                missing = error
                continue
            if found:
                if self.waiting:
                    # There may be a message for another waiting caller.
                    self.waiting.wake()
                return found
        if missing is not None and not self._selection.may_change:
            raise missing
        return []

    def child_of(self, message: Message[T] | MessageId) -> Child[T]:
        """Return the consumer of a message's topic."""
        if self.closed:
            raise AlreadyClosedError("the consumer is closed")
        if not isinstance(message, Message):
            raise InvalidConfigurationError("a consumer of several topics needs the message, not its id")
        owner = entry_of(message).source.owner.handed_out_by
        child = self.children.get(owner.given_topic)
        if child is not None and (child.parts.context is owner or not owner.closed):
            return child
        if owner.closed:
            # The topic was deleted after this consumer had received the message.
            raise AlreadyClosedError("the consumer is closed")
        raise InvalidConfigurationError(f"this consumer does not read {owner.given_topic}")

    async def close_by(self, deadline: Deadline) -> None:
        """As `close` of the consumer, with the deadline of the caller."""
        await self._closing.run(deadline, self._close)

    async def _close(self, deadline: Deadline) -> None:
        self.closed = True
        self._selection.close()
        self.waiting.wake_all()
        try:
            await close_all([child.parts for child in self.children.values()], deadline)
        finally:
            await self._tasks.stop()


class AsyncTopicsConsumer(Generic[T]):
    """Reads several topics; made by `AsyncClient.subscribe_topics`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            consumer = await client.subscribe_topics(["orders", "returns"], "audit")
            for message in await consumer.receive_many(100, timeout=0.1):
                await consumer.acknowledge(message)
    """

    def __init__(self, parts: TopicsParts[T], subscription: str) -> None:
        self.parts = parts
        self.subscription = subscription

    def __repr__(self) -> str:
        state = "closed" if self.parts.closed else "paused" if self.parts.paused else "open"
        return described(self, state, topics=",".join(self.topics), subscription=self.subscription)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that are read now."""
        return tuple(sorted(self.parts.children))

    # Receiving.

    async def receive(self, timeout: Seconds | None = None) -> Message[T]:
        """The next message of any topic; raises ReceiveTimeoutError when none came in time."""
        return (await self.parts.next(1, timeout))[0]

    async def receive_many(self, max_messages: int, timeout: Seconds | None = None) -> list[Message[T]]:
        """Return the buffered messages of one topic, up to `max_messages`; empty if the wait timed out."""
        positive("max_messages", max_messages)
        try:
            return await self.parts.next(max_messages, timeout)
        except ReceiveTimeoutError:
            return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return (await self.parts.next(1, None))[0]
        except AlreadyClosedError:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        # A coroutine that is destroyed can wait for nothing.
        if kind is not GeneratorExit:
            await self.close()

    # Acknowledging.

    async def acknowledge(self, message: Message[T] | Iterable[Message[T]]) -> None:
        """Acknowledge one message or several of queues; see `AsyncQueueConsumer.acknowledge`."""
        by_child: dict[AsyncQueueConsumer[T], list[Message[T] | MessageId]] = {}
        for one in each_of(message):
            by_child.setdefault(self._queue(one), []).append(one)
        for child, messages in by_child.items():
            await child.acknowledge(messages)

    async def negative_acknowledge(self, message: Message[T], *, delay: Seconds | None = None) -> None:
        """Give a message of a queue back; see `AsyncQueueConsumer.negative_acknowledge`."""
        wait = None if delay is None else seconds("delay", delay, zero=True)
        await self._queue(message).negative_acknowledge(message, delay=wait)

    async def reconsume_later(
        self,
        message: Message[T],
        *,
        delay: Seconds | None = None,
        properties: Mapping[str, str] | None = None,
        reason: str = "reconsumed later",
    ) -> None:
        """Send a message to its retry topic; see `AsyncQueueConsumer.reconsume_later`."""
        await self._queue(message).reconsume_later(message, delay=delay, properties=properties, reason=reason)

    async def acknowledge_cumulative(self, message: Message[T]) -> None:
        """Acknowledge all messages of the same topic that were handed out up to this one."""
        child = self.parts.child_of(message)
        if not isinstance(child, AsyncStreamConsumer):
            raise InvalidConfigurationError('acknowledge_cumulative needs kind="stream"')
        await child.acknowledge_cumulative(message)

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the brokers have confirmed them."""
        await asyncio.gather(*(child.flush_acks(timeout) for child in self.parts.children.values()))

    def _queue(self, message: Message[T] | MessageId) -> AsyncQueueConsumer[T]:
        child = self.parts.child_of(message)
        if not isinstance(child, AsyncQueueConsumer):
            raise InvalidConfigurationError('single acknowledgement needs kind="queue"')
        return child

    # Moving.

    def pause(self) -> None:
        """Hand out no message of any topic until `resume`."""
        self.parts.paused = True
        for child in self.parts.children.values():
            child.pause()

    def resume(self) -> None:
        """Hand out messages again after `pause`."""
        self.parts.paused = False
        for child in self.parts.children.values():
            child.resume()

    @property
    def paused(self) -> bool:
        """Whether the consumer is paused."""
        return self.parts.paused

    async def seek(self, to: SeekTarget, timeout: Seconds | None = None) -> None:
        """Move the subscription of every topic to a time, or to its beginning or end.

        A message moves the subscription of its own topic. See `AsyncStreamConsumer.seek`.
        """
        if isinstance(to, (datetime, str)):
            await asyncio.gather(*(child.seek(to, timeout) for child in self.parts.children.values()))
        else:
            await self.parts.child_of(to).seek(to, timeout)

    async def unsubscribe(self, timeout: Seconds | None = None) -> None:
        """Delete the subscription of every topic and close this consumer, which must be the last one."""
        try:
            await asyncio.gather(*(child.unsubscribe(timeout) for child in self.parts.children.values()))
        finally:
            await self.close(timeout)

    # The end.

    async def close(self, timeout: Seconds | None = None) -> None:
        """Close the consumers of all topics; as `AsyncStreamConsumer.close`."""
        limit = optional_seconds("timeout", timeout)
        await self.parts.close_by(Deadline(self.parts.operation_timeout_s if limit is None else limit))
