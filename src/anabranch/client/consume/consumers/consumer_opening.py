"""The part of a client that opens consumers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Unpack, cast

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
from anabranch.client.consume.consumers.subscription_parts import SubscriptionParts
from anabranch.client.consume.consumers.topic_selection import TopicSelection
from anabranch.client.consume.consumers.topics_consumer import AsyncTopicsConsumer, TopicsParts
from anabranch.client.consume.consumers.topics_options import OwnLetters, TopicsKind, topics_arguments
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.failures.letters import LetterTarget
from anabranch.client.interceptors import Interceptor, checked_interceptors
from anabranch.client.net.closing import Deadline
from anabranch.client.net.topics.topic_questions import TopicQuestions
from anabranch.client.options import InitialPosition
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import Codec, Schema, V
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import validate_subscription

BYTES: Codec[Any] = Schema.bytes()
A = TypeVar("A", bound=ConsumerArguments)
C = TypeVar("C", bound=Any)


class ConsumerOpening(TopicQuestions):
    """Opens the consumers of a client, which closes them."""

    _interceptors: tuple[Interceptor, ...] = ()

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
        parts = StreamParts(self._connections(), schema, options, self._open_letters)
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
        context = ConsumerContext(self._connections(), schema, options, "queue")
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

        pool = self._connections()
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
            AsyncCheckpointConsumer(CheckpointParts(self._connections(), schema, options))
        )

    async def _opened(self, consumer: C) -> C:
        """Open a consumer, which this client closes."""
        # The parts stay alive while segments are read, also if the application has dropped the consumer.
        self.consumers[consumer.parts] = None
        await consumer.parts.open()
        return consumer

    def _with_own(self, given: A) -> A:
        """The arguments of a consumer, with the interceptors of the client before its own."""
        own = checked_interceptors(cast(Any, given).get("interceptors", ()))
        given["interceptors"] = self._interceptors + own
        return given

    async def _close(self, deadline: Deadline) -> None:
        try:
            await end_runs(self.consumers, deadline)
        finally:
            await super()._close(deadline)

    async def _open_letters(self, target: LetterTarget, schema: Schema[bytes]) -> AsyncProducer[bytes]:
        raise NotImplementedError


async def end_runs(consumers: Iterable[object], deadline: Deadline) -> None:
    """End every `run` of these consumers before anything closes, because their handlers may use producers."""
    running = [each.runs for each in consumers if isinstance(each, SubscriptionParts)]
    await asyncio.gather(*(runs.end(deadline) for runs in running))
