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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from anabranch.aio import Backoff
from anabranch.app_messages import message_without_broker
from anabranch.arguments import check_function, check_optional, of_kind
from anabranch.client.api import AsyncClient
from anabranch.client.consume.consumers.topics_options import TopicsKind
from anabranch.client.consume.handlers.attempts import begin, check_callable
from anabranch.client.consume.handlers.run_options import StopSignal
from anabranch.client.message import Message
from anabranch.client.options import (
    DeadLetter,
    InitialPosition,
    Seconds,
    one_of,
    parse_service_url,
    parse_topic,
    positive,
)
from anabranch.client.produce.preparing import Prepared, Preparing
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import BYTES, Codec, Schema, checked_codec
from anabranch.clock import SystemClock
from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import validate_subscription

F = TypeVar("F", bound=Callable[[Any], Awaitable[object]])

RETRY = Backoff(0.5, 60.0)

Lifespan = Callable[[], AbstractAsyncContextManager[object]]


@dataclass(frozen=True)
class HandlerOptions:
    """How the messages of one subscription are handled.

    Example:
        app = App("pulsar://127.0.0.1:6650")
        options = HandlerOptions(kind="queue", schema=Schema.string(), dead_letter=DeadLetter(3))

        @app.subscriber("names", subscription="greet", options=options)
        async def greet(message: Message[str]) -> None:
            print("Hello", message.value)

        async with app.bench() as bench:
            await bench.deliver("names", "Zoë")
    """

    kind: TopicsKind = "stream"
    """A stream keeps the order of each key; a queue shares messages out one by one."""
    schema: Codec[Any] = field(default_factory=Schema.bytes)
    concurrency: int = 500
    retry: Backoff = RETRY
    """How long a key waits after its handler raised."""
    dead_letter: DeadLetter | None = None
    """The place of messages that failed too often."""
    initial_position: InitialPosition = "earliest"

    def __post_init__(self) -> None:
        one_of("kind", self.kind, TopicsKind)
        one_of("initial_position", self.initial_position, InitialPosition)
        checked_codec(self.schema)
        of_kind("retry", self.retry, Backoff, "a Backoff")
        check_optional("dead_letter", self.dead_letter, DeadLetter, "a DeadLetter")
        positive("concurrency", self.concurrency)


class Subscriber(NamedTuple):
    """A handler and its subscription."""

    topic: str
    subscription: str
    handler: Callable[[Any], Awaitable[object]]
    options: HandlerOptions


class App:
    """The handlers of an application, and the client that they share.

    Example:
        app = App("pulsar://127.0.0.1:6650")

        @app.subscriber("orders", subscription="billing")
        async def charge(message: Message[bytes]) -> None:
            await app.publish("receipts", b"paid", key=message.key)

        async with app.bench() as bench:
            await bench.deliver("orders", b"one tea", key="alice")
            print(bench.published)
    """

    def __init__(self, service_url: str, *, lifespan: Lifespan | None = None, **client: Any) -> None:
        """`lifespan` surrounds every run, to open and close what handlers need; `client` are the arguments of
        AsyncClient."""
        parse_service_url(service_url)
        check_function("lifespan", lifespan)
        self._url, self._lifespan, self._arguments = service_url, lifespan, client
        self._subscribers: list[Subscriber] = []
        self._client: AsyncClient | None = None
        self._producers: dict[tuple[str, Any], asyncio.Task[AsyncProducer[Any]]] = {}
        self._bench: _BenchMessages | None = None

    def subscriber(
        self, topic: str, *, subscription: str, options: HandlerOptions | None = None
    ) -> Callable[[F], F]:
        """Let the decorated coroutine function handle the messages of a subscription."""
        check_optional("options", options, HandlerOptions, "HandlerOptions")
        chosen = options or HandlerOptions()
        name, subscription = str(parse_topic(topic)), validate_subscription(subscription)
        if any((each.topic, each.subscription) == (name, subscription) for each in self._subscribers):
            raise InvalidConfigurationError(f"subscription {subscription} of {name} already has a handler")

        def register(handler: F) -> F:
            check_callable(handler)
            self._subscribers.append(Subscriber(name, subscription, handler, chosen))
            return handler

        return register

    async def publish(
        self, topic: str, value: Any, *, key: str | None = None, schema: Codec[Any] = BYTES
    ) -> None:
        """Publish from a handler, and wait until the message is stored.

        The value has the type of `schema`, bytes by default. The application keeps one producer for each
        topic and schema. Raises SchemaError or TypeError for a value that does not fit, and
        the errors of `AsyncProducer.send`.
        """
        name = str(parse_topic(topic))
        if self._bench is not None:
            self._bench.publish(name, value, key, schema)
            return
        if self._client is None:
            raise InvalidConfigurationError("the application is not running; publish from a handler")
        # A handler may make its schema in each call, so equal ones share a producer.
        definition = getattr(schema, "definition", None)
        of = name, schema if definition is None else (type(value), repr(definition))
        if of not in self._producers:
            self._producers[of] = asyncio.ensure_future(self._client.create_producer(name, schema=schema))
        try:
            producer = await asyncio.shield(self._producers[of])
        except Exception:
            self._producers.pop(of, None)
            raise
        await producer.send(value, key=key)

    async def run(self, *, stop: StopSignal | Seconds | None = None) -> None:
        """Handle messages until the task is cancelled, a consumer fails, or as `stop` says; then close all.

        `stop` is that of `AsyncStreamConsumer.run`: running handlers may end. Raises the error of the first
        consumer that fails, as `subscribe_stream` and `run` raise it.
        """
        if not self._subscribers:
            raise InvalidConfigurationError("the application has no handlers; use @app.subscriber")
        if self._client is not None or self._bench is not None:
            raise InvalidConfigurationError("the application is already running")
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan())
            self._client = await stack.enter_async_context(AsyncClient(self._url, **self._arguments))
            try:
                async with asyncio.TaskGroup() as tasks:
                    for each in self._subscribers:
                        tasks.create_task(self._handle(self._client, each, stop))
            except ExceptionGroup as group:
                # The first failure ends all handlers, so it is the one that the caller can handle.
                raise group.exceptions[0] from None
            finally:
                self._client, self._producers = None, {}

    async def _handle(self, client: AsyncClient, each: Subscriber, stop: StopSignal | Seconds | None) -> None:
        how = each.options
        shared: dict[str, Any] = {
            "schema": how.schema,
            "initial_position": how.initial_position,
            "dead_letter": how.dead_letter,
        }
        subscribe: Any = client.subscribe_stream if how.kind == "stream" else client.subscribe_queue
        consumer = await subscribe(each.topic, each.subscription, **shared)
        await consumer.run(each.handler, concurrency=how.concurrency, retry=how.retry, stop=stop)

    @asynccontextmanager
    async def bench(self) -> AsyncIterator[Bench]:
        """Run handlers without a broker; the bench delivers messages and keeps the published ones."""
        if self._client is not None or self._bench is not None:
            raise InvalidConfigurationError("the application is already running")
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan())
            self._bench = _BenchMessages()
            try:
                yield Bench(self._subscribers, self._bench)
            finally:
                self._bench = None


class BenchPublished(NamedTuple):
    """A message that a handler published on a bench, encoded and decoded by the schema of `publish`.

    Example:
        receipt = BenchPublished("topic://public/default/receipts", b"paid", "alice")
        assert receipt.key == "alice"
    """

    topic: str
    value: Any
    key: str | None


class _BenchMessages:
    """Makes the messages of a bench, and keeps those that handlers publish."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._count = 0
        self.published: list[BenchPublished] = []

    def make(self, topic: str, schema: Codec[Any], prepared: Prepared) -> Message[Any]:
        """Return a message as a consumer hands it out."""
        self._count += 1
        return message_without_broker(topic, schema, prepared, self._count, self._clock.wall_ms())

    def publish(self, topic: str, value: Any, key: str | None, schema: Codec[Any]) -> None:
        """Keep a message that a handler publishes; raises as a producer does for a bad value."""
        prepared = Preparing(schema, self._clock).one(value, key, None, None, None, None, None)
        message = self.make(topic, schema, prepared)
        self.published.append(BenchPublished(topic, message.value, message.key))


class Bench:
    """Handlers without a broker; made by `App.bench`.

    Example:
        app = App("pulsar://127.0.0.1:6650")

        @app.subscriber("orders", subscription="billing")
        async def charge(message: Message[bytes]) -> None:
            await app.publish("receipts", b"paid", key=message.key)

        async with app.bench() as bench:
            await bench.deliver("orders", b"one tea", key="alice")
            assert bench.published == [BenchPublished("topic://public/default/receipts", b"paid", "alice")]
    """

    def __init__(self, subscribers: list[Subscriber], messages: _BenchMessages | None = None) -> None:
        self._subscribers = subscribers
        self._messages = messages or _BenchMessages()
        self.published = self._messages.published

    async def deliver(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
    ) -> None:
        """Call the handlers of a topic with one message, encoded and decoded by their schemas.

        The arguments are those of `send`. An exception of a handler reaches the test at once; there is no
        retry.
        """
        name = str(parse_topic(topic))
        found = [each for each in self._subscribers if each.topic == name]
        if not found:
            raise InvalidConfigurationError(f"no handler subscribes to {name}")
        for each in found:
            schema = each.options.schema
            prepared = Preparing(schema, SystemClock()).one(
                value, key, properties, event_time, None, None, None
            )
            await begin(each.handler, self._messages.make(name, schema, prepared))
