"""The client makes producers and consumers.

It connects when the first of them is opened. A client and its producers and consumers belong to the event
loop they were made on; the same API for code without a loop is in `blocking`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar, Unpack, cast

from anabranch.arguments import refuse_unknown
from anabranch.client.consume.consumers.arguments import (
    ConsumerArguments,
    QueueArguments,
    StreamArguments,
    checkpoint_options,
    queue_options,
    stream_options,
)
from anabranch.client.consume.consumers.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.consume.consumers.checkpoint_parts import CheckpointParts
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.consumers.queue_parts import QueueParts
from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
from anabranch.client.consume.consumers.stream_parts import StreamParts
from anabranch.client.consume.consumers.subscription_parts import SubscriptionParts, end_runs
from anabranch.client.consume.consumers.topic_selection import TopicSelection
from anabranch.client.consume.consumers.topics_consumer import AsyncTopicsConsumer, TopicsParts
from anabranch.client.consume.consumers.topics_options import OwnLetters, TopicsKind, topics_arguments
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.failures.letters import LetterTarget
from anabranch.client.figures import ClientFigures, described
from anabranch.client.interceptors import checked_interceptors
from anabranch.client.net.client_life import ClientLife
from anabranch.client.net.connection_pool import PoolTimes, new_pool
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.net.topics.schemas import TopicSchema
from anabranch.client.net.topics.topic_questions import ask_layout, ask_schema, ask_topics
from anabranch.client.options import (
    MEMORY_LIMIT,
    AccessMode,
    Batching,
    ClientArguments,
    CompressionName,
    InitialPosition,
    ProducerArguments,
    PublishOptions,
    Seconds,
    kept_pairs,
    parse_topic,
    positive,
    seconds,
)
from anabranch.client.produce.memory import Memory, PublishContext
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.produce.publisher import Publisher
from anabranch.client.schema import Codec, Schema, V
from anabranch.clock import SystemClock
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import validate_subscription

BYTES: Codec[Any] = Schema.bytes()
A = TypeVar("A", bound=ConsumerArguments)
C = TypeVar("C", bound=Any)


class AsyncClient:
    """Talks to one cluster; use it with `async with`, or close it yourself.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            layout = await client.layout("orders", create=True)
            print(client.stats.connections)
    """

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: Seconds = 30.0,
        connect_timeout: Seconds = 10.0,
        keep_alive_interval: Seconds = 30.0,
        memory_limit: int = MEMORY_LIMIT,
        **more: Unpack[ClientArguments],
    ) -> None:
        """Check the arguments; nothing is connected yet.

        `operation_timeout` bounds each call that has no timeout of its own, `memory_limit` the bytes of
        messages that wait to be stored, over all producers. ClientArguments describes the others.
        """
        pool = new_pool(
            service_url,
            PoolTimes(
                connect_s=seconds("connect_timeout", connect_timeout),
                operation_s=seconds("operation_timeout", operation_timeout),
                keep_alive_s=seconds("keep_alive_interval", keep_alive_interval),
            ),
            more,
        )
        self.service_url = service_url
        self.operation_timeout_s = pool.operation_timeout_s
        self.life = ClientLife(service_url, pool, end_runs)
        self._memory = Memory(positive("memory_limit", memory_limit))
        self._interceptors = checked_interceptors(more.get("interceptors", ()))
        self._clock = more.get("clock") or SystemClock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        # Python throws GeneratorExit into a coroutine that it destroys, which must not await anything then.
        if kind is not GeneratorExit:
            await self.close()

    async def create_producer(
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
        **more: Unpack[ProducerArguments],
    ) -> AsyncProducer[V]:
        """Open a producer; a bare topic name means topic://public/default/<name>.

        A message that is not stored within `send_timeout` fails with SendTimeoutError; 0 lets messages wait
        for ever. A message that does not fit `memory_limit` waits as long for room, or raises at once when
        `block_if_full` is False. With `wait_for_exclusive` the call waits until the other producer leaves.
        ProducerArguments describes the others.
        """
        refuse_unknown(more, ProducerArguments)
        own = checked_interceptors(more.get("interceptors", ()))
        options = PublishOptions(
            name=name,
            access_mode=access_mode,
            send_timeout_s=seconds("send_timeout", send_timeout, zero=True),
            block_if_full=block_if_full,
            compression=compression,
            batching=batching,
            initial_sequence_id=initial_sequence_id,
            properties=kept_pairs("properties", properties),
            **cast(Any, more) | {"interceptors": self._interceptors + own},
        )
        publisher = self._new_publisher(topic, schema, options)
        self.life.producers[publisher] = None
        await publisher.open()
        return AsyncProducer(publisher)

    async def subscribe_stream(
        self,
        topic: str,
        subscription: str,
        *,
        schema: Codec[V] = BYTES,
        initial_position: InitialPosition = "latest",
        **more: Unpack[StreamArguments],
    ) -> AsyncStreamConsumer[V]:
        """Read in key order with cumulative acknowledgement; consumers of one subscription share the topic.

        Receiving raises SubscriptionNotFoundError when the subscription is deleted meanwhile. Acknowledge
        continuously: unacknowledged messages of a segment keep its successors closed. StreamArguments
        describes the other arguments.
        """
        options = stream_options(topic, subscription, initial_position, self._with_own(more))
        parts = StreamParts(self.life.connections(), schema, options, self._open_letters)
        return await self._opened(AsyncStreamConsumer(parts))

    async def subscribe_queue(
        self,
        topic: str,
        subscription: str,
        *,
        schema: Codec[V] = BYTES,
        initial_position: InitialPosition = "latest",
        **more: Unpack[QueueArguments],
    ) -> AsyncQueueConsumer[V]:
        """Read in parallel with single acknowledgement; each message goes to one consumer at a time.

        Receiving raises SubscriptionNotFoundError when the subscription is deleted. QueueArguments describes
        the other arguments.
        """
        options = queue_options(topic, subscription, initial_position, self._with_own(more))
        context = ConsumerContext(self.life.connections(), schema, options, "queue")
        parts: QueueParts[V] = QueueParts(context, options, self._open_letters)
        return await self._opened(AsyncQueueConsumer(parts))

    async def subscribe_topics(
        self,
        topics: Iterable[str] | re.Pattern[str] | None,
        subscription: str,
        *,
        kind: TopicsKind = "queue",
        namespace: str | None = None,
        property_filters: Mapping[str, str] | None = None,
        schema: Codec[V] = BYTES,
        initial_position: InitialPosition = "latest",
        **more: Unpack[QueueArguments],
    ) -> AsyncTopicsConsumer[V]:
        """Read several topics with one consumer: a list of names, or topics of a namespace `tenant/name`.

        A compiled pattern matches the last parts of the names of scalable topics, in `public/default` unless
        `namespace` says otherwise. One that begins with `persistent://tenant/name/` or `topic://tenant/name/`
        matches full names of classic or scalable topics. With None all scalable topics of the namespace are
        read. `property_filters` keeps those whose properties have these values. Topics that come later are
        read from their first message, and those that are deleted are left. The other arguments are those of
        `subscribe_queue`, or of `subscribe_stream` with `kind="stream"`.
        """
        given = topics_arguments(more, kind)
        opening: Any = self.subscribe_queue if kind == "queue" else self.subscribe_stream

        async def open_one(name: str, later: bool) -> Any:
            start = "earliest" if later else initial_position
            return await opening(name, subscription, schema=schema, initial_position=start, **given)

        pool = self.life.connections()
        letters = OwnLetters(subscription, given)
        selection = TopicSelection(pool, topics, namespace, property_filters, letters)
        name = validate_subscription(subscription)
        parts: TopicsParts[V] = TopicsParts(pool, selection, open_one)
        return await self._opened(AsyncTopicsConsumer(parts, name))

    async def create_checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Checkpoint = Checkpoint.latest(),  # noqa: B008 - frozen
        group: str | None = None,
        schema: Codec[V] = BYTES,
        fail_on_data_loss: bool = True,
        **more: Unpack[ConsumerArguments],
    ) -> AsyncCheckpointConsumer[V]:
        """Read in key order from a checkpoint on; the caller keeps the positions.

        The members of a `group` share the segments, and a member that gains one begins it at its own `start`.
        When retention has taken messages that should have been read, opening or receiving raises
        DataLossError, unless `fail_on_data_loss` is False. ConsumerArguments describes the others.
        """
        options = checkpoint_options(topic, start, group, fail_on_data_loss, self._with_own(more))
        return await self._opened(
            AsyncCheckpointConsumer(CheckpointParts(self.life.connections(), schema, options))
        )

    async def layout(self, topic: str, *, create: bool = False, with_pruned: bool = False) -> TopicLayout:
        """The layout of a topic now, for tools and bulk readers; with what is known of pruned segments."""
        return await ask_layout(self.life, topic, create=create, with_pruned=with_pruned)

    async def topic_schema(self, topic: str, *, version: bytes | int | None = None) -> TopicSchema | None:
        """A version of the topic's registered schema, the newest by default; None without such a schema.

        The version is the number that `anabranch schema list` shows, or the bytes that messages carry.
        """
        return await ask_schema(self.life, topic, version)

    async def topics(self, namespace: str, *, classic: bool = False) -> list[str]:
        """The full names of the scalable topics, or of the classic ones, of a namespace `tenant/name`."""
        return await ask_topics(self.life, namespace, classic=classic)

    @property
    def closed(self) -> bool:
        """Whether the client is closed; other calls raise AlreadyClosedError then."""
        return self.life.closed

    @property
    def stats(self) -> ClientFigures:
        """The producers and consumers of this client now, with their states and numbers."""
        producers = (one.figures() for one in list(self.life.producers) if isinstance(one, Publisher))
        kinds = (SubscriptionParts, CheckpointParts)
        consumers = (one.figures for one in list(self.life.consumers) if isinstance(one, kinds))
        return ClientFigures(
            len(self.life.pool.connections), self._memory.used, tuple(producers), tuple(consumers)
        )

    async def close(self, timeout: Seconds | None = None) -> None:
        """Complete pending sends and acknowledgements, close all producers, then all consumers.

        The client is closed after `timeout` in any case, by default after the operation timeout. Messages
        that were not stored raise in their futures, or are logged. A cancelled call closes at once.
        """
        await self.life.close(timeout)

    async def shutdown(self) -> None:
        """Close at once: pending sends fail, pending acknowledgements may be lost."""
        await self.life.shutdown()

    def __repr__(self) -> str:
        return described(self, "closed" if self.closed else "open", url=self.service_url)

    async def _opened(self, consumer: C) -> C:
        """Open a consumer, which this client closes."""
        # The parts stay alive while segments are read, also if the application has dropped the consumer.
        self.life.consumers[consumer.parts] = None
        await consumer.parts.open()
        return consumer

    def _with_own(self, given: A) -> A:
        """The arguments of a consumer, with the interceptors of the client before its own."""
        own = checked_interceptors(cast(Any, given).get("interceptors", ()))
        given["interceptors"] = self._interceptors + own
        return given

    async def _open_letters(self, target: LetterTarget, schema: Schema[bytes]) -> AsyncProducer[bytes]:
        # A letter may be larger than an entry, as the message was that it comes from.
        options = PublishOptions(
            initial_subscription=target.first_subscription, encryption=target.encryption, chunking=True
        )
        # The consumer, and not this client, closes the producers of its letters.
        publisher = self._new_publisher(target.topic, schema, options)
        await publisher.open()
        return AsyncProducer(publisher)

    def _new_publisher(self, topic: str, schema: Codec[V], options: PublishOptions) -> Publisher[V]:
        context = PublishContext(self.life.connections(), self._memory, self._clock)
        return Publisher(context, parse_topic(topic), schema, options)
