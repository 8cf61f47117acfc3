"""Handlers for applications: functions that subscribe to topics; the client is opened and closed for them.

    app = App("pulsar://127.0.0.1:6650")

    @app.subscriber("orders", subscription="billing")
    async def charge(message: Message[bytes]) -> None:
        await app.publish("receipts", b"paid", key=message.key)

    asyncio.run(app.run())

A handler stays an ordinary function. `app.bench()` runs handlers without a broker, for tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeVar

from anabranch.aio import Backoff
from anabranch.client.api import AsyncClient
from anabranch.client.options import DeadLetter, parse_topic
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import Codec, Schema
from anabranch.errors import InvalidConfigurationError

F = TypeVar("F", bound=Callable[[Any], Awaitable[object]])

RETRY = Backoff(0.5, 60.0)

Lifespan = Callable[[], AbstractAsyncContextManager[object]]


@dataclass(frozen=True)
class HandlerOptions:
    """How the messages of one subscription are handled."""

    kind: Literal["stream", "queue"] = "stream"
    """A stream keeps the order of each key; a queue shares messages out one by one."""
    schema: Codec[Any] = field(default_factory=Schema.bytes)
    concurrency: int = 500
    retry: Backoff = RETRY
    """The pauses of a key whose handler raised."""
    dead_letter: DeadLetter | None = None
    """The place of messages that failed too often."""
    initial_position: Literal["earliest", "latest"] = "earliest"


class Subscriber(NamedTuple):
    """A handler and its subscription."""

    topic: str
    subscription: str
    handler: Callable[[Any], Awaitable[object]]
    options: HandlerOptions


class App:
    """The handlers of an application, and the client that they share."""

    def __init__(self, service_url: str, *, lifespan: Lifespan | None = None, **client: Any) -> None:
        """`lifespan` surrounds every run, to open and close what handlers need; `client` are the arguments of
        AsyncClient."""
        self._url, self._lifespan, self._arguments = service_url, lifespan, client
        self.subscribers: list[Subscriber] = []
        self._client: AsyncClient | None = None
        self._producers: dict[str, asyncio.Task[AsyncProducer[Any]]] = {}
        self._bench: Bench | None = None

    def subscriber(
        self, topic: str, *, subscription: str, options: HandlerOptions | None = None
    ) -> Callable[[F], F]:
        """Let the decorated coroutine function handle the messages of a subscription."""
        chosen = options or HandlerOptions()
        name = str(parse_topic(topic))
        if any((each.topic, each.subscription) == (name, subscription) for each in self.subscribers):
            raise InvalidConfigurationError(f"{subscription} of {name} has a handler already")

        def register(handler: F) -> F:
            self.subscribers.append(Subscriber(name, subscription, handler, chosen))
            return handler

        return register

    async def publish(self, topic: str, value: Any, *, key: str | None = None) -> None:
        """Publish from a handler, and wait until the message is stored."""
        name = str(parse_topic(topic))
        if self._bench is not None:
            self._bench.published.append(BenchPublished(name, value, key))
            return
        if self._client is None:
            raise InvalidConfigurationError("the application does not run; publish from a handler")
        if name not in self._producers:
            self._producers[name] = asyncio.ensure_future(self._client.create_producer(name))
        try:
            producer = await asyncio.shield(self._producers[name])
        except Exception:
            self._producers.pop(name, None)
            raise
        await producer.send(value, key=key)

    async def run(self) -> None:
        """Handle messages until the task is cancelled, or until a consumer fails; then close everything."""
        if not self.subscribers:
            raise InvalidConfigurationError("the application has no handlers; use @app.subscriber")
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan())
            self._client = await stack.enter_async_context(AsyncClient(self._url, **self._arguments))
            try:
                async with asyncio.TaskGroup() as tasks:
                    for each in self.subscribers:
                        tasks.create_task(self._handle(self._client, each))
            finally:
                self._client, self._producers = None, {}

    async def _handle(self, client: AsyncClient, each: Subscriber) -> None:
        how = each.options
        shared: dict[str, Any] = {
            "schema": how.schema,
            "initial_position": how.initial_position,
            "dead_letter": how.dead_letter,
        }
        subscribe: Any = client.subscribe_stream if how.kind == "stream" else client.subscribe_queue
        consumer = await subscribe(each.topic, each.subscription, **shared)
        await consumer.run(each.handler, concurrency=how.concurrency, retry=how.retry)

    @asynccontextmanager
    async def bench(self) -> AsyncIterator[Bench]:
        """Run handlers without a broker; the bench delivers messages and keeps the published ones."""
        if self._client is not None or self._bench is not None:
            raise InvalidConfigurationError("the application runs already")
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan())
            self._bench = Bench(self.subscribers)
            try:
                yield self._bench
            finally:
                self._bench = None


class BenchPublished(NamedTuple):
    """A message that a handler published on a bench."""

    topic: str
    value: Any
    key: str | None


@dataclass(frozen=True)
class BenchMessage:
    """A message that a test delivers; handlers read it like a received one."""

    value: Any
    key: str | None = None
    topic: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    publish_time: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    redelivery_count: int = 0


class Bench:
    """Handlers without a broker."""

    def __init__(self, subscribers: list[Subscriber]) -> None:
        self._subscribers = subscribers
        self.published: list[BenchPublished] = []

    async def deliver(self, topic: str, value: Any, *, key: str | None = None) -> None:
        """Call the handlers of a topic with one message, encoded and decoded by their schemas.

        An exception of a handler reaches the test at once; there is no retry.
        """
        name = str(parse_topic(topic))
        found = [each for each in self._subscribers if each.topic == name]
        if not found:
            raise InvalidConfigurationError(f"no handler subscribes to {name}")
        for each in found:
            codec = each.options.schema
            decoded = None if value is None else codec.decode(codec.encode(value))
            await each.handler(BenchMessage(decoded, key, name))
