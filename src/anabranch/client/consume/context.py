"""The context that all parts of one consumer share: names, connections, tasks and state.

A part gets the context when it is made, and nothing else of the consumer. The context knows no part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from anabranch.aio import TaskRegistry
from anabranch.client.consume.segments.attachment import CheckpointOptions, SubscriptionOptions
from anabranch.client.interceptors import InterceptorChain
from anabranch.client.net.closing import Closing
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.trouble import RoleTrouble
from anabranch.client.options import Seconds, optional_seconds
from anabranch.client.schema import Codec, checked_codec
from anabranch.errors import AnabranchError, TopicNotFoundError
from anabranch.model.ids import MessageId

RECREATED_S: Final = 5.0
"""How long a topic may be missing before `receive` raises; a consumer reads one that is created again."""


class Waiters:
    """Callers that wait for a message, first come first served.

    A wake-up is never lost: a caller that is cancelled after it was woken wakes the next.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self) -> None:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        try:
            await arrived
        except asyncio.CancelledError:
            # This caller was woken for a message and cannot take it, so the next caller is woken.
            if arrived.done() and not arrived.cancelled():
                self.wake()
            raise
        finally:
            if arrived in self._waiting:
                self._waiting.remove(arrived)

    def wake(self) -> None:
        """Wake the first caller."""
        while self._waiting:
            arrived = self._waiting.popleft()
            if not arrived.done():
                arrived.set_result(None)
                return

    def wake_all(self) -> None:
        while self._waiting:
            self.wake()


class MissingTopic:
    """Whether the topic was deleted; `wake` is called when waiting calls have to raise the error.

    A topic that is created again within a few seconds is read on, and no call raises.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.error: TopicNotFoundError | None = None
        """The answer of the broker, once the topic has been missing for long; None again when it is back."""
        self._wake = wake
        self._alarm: asyncio.TimerHandle | None = None

    def report(self, error: TopicNotFoundError) -> None:
        """Note an attempt that did not find the topic."""
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(RECREATED_S, self._lose, error)

    def found(self) -> None:
        """Note that the topic exists, or that the consumer is closed."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.error = None

    def _lose(self, error: TopicNotFoundError) -> None:
        self.error = error
        self._wake()


def no_vector(number: int) -> tuple[tuple[int, MessageId], ...]:
    """Return what the id of a message covers besides the message: nothing without cumulative acks."""
    return ()


class ConsumerContext:
    """The names, connections, tasks and state of one consumer of a topic."""

    def __init__(
        self,
        pool: ConnectionPool,
        schema: Codec[Any],
        options: SubscriptionOptions | CheckpointOptions,
        kind: str,
    ) -> None:
        """`kind` is part of the name of a consumer that the application did not name."""
        self.pool = pool
        self.loop = asyncio.get_running_loop()
        self.tasks = TaskRegistry()
        self.schema: Codec[Any] = checked_codec(schema)
        self.interceptors = InterceptorChain.of(options.interceptors)
        self.name = options.name or f"anabranch-{kind}-{pool.rng.getrandbits(40):010x}"
        """The identity of the consumer: registering under it within the grace time brings the same share."""
        self.given_topic = str(options.topic)
        """The name that the application gave; others know a classic topic by its `persistent://` name."""
        self.subscription = options.subscription if isinstance(options, SubscriptionOptions) else None
        self.resolved: Callable[[], str] = lambda: self.given_topic
        """Returns the name of the topic that the broker resolved; set by the part that looks the topic up."""
        self.vector: Callable[[int], tuple[tuple[int, MessageId], ...]] = no_vector
        """Returns the last message of each segment handed out up to a number; set by cumulative acks."""
        self.opened_in: int | None = None
        """The incarnation of the topic, in which the broker does not create a deleted subscription again."""
        self.waiting = Waiters()
        self.missing = MissingTopic(lambda: self.waiting.wake_all())
        self.role = RoleTrouble(lambda: self.topic, pool.ends)
        self.closing = Closing()
        self.closed = False
        self.failure: AnabranchError | None = None
        """Why no more messages can be handed out."""
        self.on_failure: Callable[[AnabranchError], None] | None = None
        """Called with the failure; a consumer that reads a retry topic for another one reports it there."""
        self.handed_out_by: ConsumerContext = self
        """The consumer whose application gets the messages; another one if this one reads its retry topic."""

    @property
    def topic(self) -> str:
        """The name of the topic that the broker resolved."""
        return self.resolved()

    def limit_s(self, timeout: Seconds | None) -> float:
        """Return the time limit of a call, by default the operation timeout."""
        limit = optional_seconds("timeout", timeout)
        return self.pool.operation_timeout_s if limit is None else limit

    def fail(self, error: AnabranchError) -> None:
        """Raise `error` in every receive, after the messages that are decoded already."""
        if self.failure is None:
            self.failure = error
            self.waiting.wake_all()
        if self.on_failure is not None:
            self.on_failure(error)

    def raise_trouble(self) -> None:
        """Raise the reason why no message comes: the consumer has failed, or its topic was deleted."""
        error = self.failure or self.missing.error
        if error is not None:
            raise error
