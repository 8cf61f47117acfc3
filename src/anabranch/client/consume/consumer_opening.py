"""The part of a client that opens consumers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from anabranch.aio import Backoff
from anabranch.client.consume.attachment import (
    CheckpointOptions,
    OnAssignment,
    QueueOptions,
    StreamOptions,
)
from anabranch.client.consume.bulk_reading import BulkReading
from anabranch.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.consume.cursor_mirror import CursorMirror
from anabranch.client.consume.keyed_queue_consumer import KeyedQueueConsumer
from anabranch.client.consume.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.runnable import RunnableConsumer
from anabranch.client.consume.stream_consumer import AsyncStreamConsumer
from anabranch.client.consume.topic_selection import TopicSelection
from anabranch.client.consume.topics_consumer import AsyncTopicsConsumer
from anabranch.client.consume.topics_options import TopicsArguments, TopicsKind, topics_arguments
from anabranch.client.net.closing import Deadline
from anabranch.client.options import (
    ConsumerArguments,
    DeadLetter,
    InitialPosition,
    QueueArguments,
    Seconds,
    StreamArguments,
    checked_arguments,
    parse_topic,
    positive,
    queue_arguments,
    seconds,
    stream_arguments,
)
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import Codec, Schema, V
from anabranch.errors import InvalidConfigurationError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import validate_subscription

BYTES: Codec[Any] = Schema.bytes()


class ConsumerOpening(BulkReading):
    """Opens the consumers of a client, which closes them."""

    async def subscribe_stream(
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
        on_assignment: OnAssignment | None = None,
        **more: Unpack[StreamArguments],
    ) -> AsyncStreamConsumer[V]:
        """Read in key order with cumulative acknowledgement; consumers of one subscription share the topic.

        Give a stable `name` to get the same share after a restart. A name has one consumer at a time:
        ConsumerBusyError names the consumer that has it. This method raises it, and so does receiving when
        another consumer took the name while this one was disconnected. Receiving raises
        SubscriptionNotFoundError when the subscription is deleted meanwhile. Acknowledge continuously:
        unacknowledged messages of a segment keep its successors closed. See also StreamArguments.

        The client holds `receiver_queue_size` messages of each segment ready; by default a thousand, and up
        to a mebibyte for an application that runs out of them.
        """
        consumer: AsyncStreamConsumer[V] = AsyncStreamConsumer(
            self._connections(),
            schema,
            StreamOptions(
                topic=parse_topic(topic),
                subscription=validate_subscription(subscription),
                initial_position=initial_position,
                name=name,
                receiver_queue_size=receiver_queue_size,
                ack_group_s=seconds("ack_group_time", ack_group_time, zero=True),
                ack_receipts=ack_receipts,
                subscription_properties=subscription_properties,
                on_assignment=on_assignment,
                **stream_arguments(more),
            ),
            self._open_dead_letters,
        )
        self._consumers[consumer] = None
        await consumer.open()
        return consumer

    async def subscribe_queue(
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
        priority: int = 0,
        processing_timeout: Seconds | None = None,
        redelivery: Backoff = Backoff(60.0, 60.0),  # noqa: B008 - frozen
        dead_letter: DeadLetter | None = None,
        **more: Unpack[QueueArguments],
    ) -> AsyncQueueConsumer[V]:
        """Read in parallel with single acknowledgement; each message goes to one consumer at a time.

        Receiving raises SubscriptionNotFoundError when the subscription is deleted. See also QueueArguments.
        """
        if processing_timeout is not None:
            processing_timeout = seconds("processing_timeout", processing_timeout)
        kind = KeyedQueueConsumer if more.get("order") == "key" else AsyncQueueConsumer
        consumer: AsyncQueueConsumer[V] = kind(
            self._connections(),
            schema,
            QueueOptions(
                topic=parse_topic(topic),
                subscription=validate_subscription(subscription),
                initial_position=initial_position,
                name=name,
                receiver_queue_size=receiver_queue_size,
                ack_group_s=seconds("ack_group_time", ack_group_time, zero=True),
                ack_group_size=positive("ack_group_size", ack_group_size),
                ack_receipts=ack_receipts,
                subscription_properties=subscription_properties,
                priority=priority,
                processing_s=processing_timeout,
                redelivery=redelivery,
                dead_letter=dead_letter,
                **queue_arguments(more, dead_letter),
            ),
            self._open_dead_letters,
        )
        self._consumers[consumer] = None
        await consumer.open()
        return consumer

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
        **more: Unpack[TopicsArguments],
    ) -> AsyncTopicsConsumer[V]:
        """Read several topics with one consumer: a list of names, or topics of a namespace `tenant/name`.

        A compiled pattern matches the last parts of the names of scalable topics, in `public/default` unless
        `namespace` says otherwise. With None all topics of the namespace are read. `property_filters` keeps
        those whose properties have these values. Topics that come later are read from their first message,
        and those that are deleted are left. The other arguments are those of `subscribe_queue`, or of
        `subscribe_stream` with `kind="stream"`.
        """
        given = topics_arguments(more, kind)
        opening: Any = self.subscribe_queue if kind == "queue" else self.subscribe_stream

        async def open_one(name: str, later: bool) -> Any:
            start = "earliest" if later else initial_position
            return await opening(name, subscription, schema=schema, initial_position=start, **given)

        pool = self._connections()
        selection = TopicSelection(pool, topics, namespace, property_filters)
        consumer: AsyncTopicsConsumer[V] = AsyncTopicsConsumer(
            pool, selection, validate_subscription(subscription), open_one
        )
        self._consumers[consumer] = None
        await consumer.open()
        return consumer

    async def create_checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Checkpoint = Checkpoint.latest(),  # noqa: B008 - frozen
        group: str | None = None,
        schema: Codec[V] = BYTES,
        name: str | None = None,
        receiver_queue_size: int | None = None,
        fail_on_data_loss: bool = True,
        **more: Unpack[ConsumerArguments],
    ) -> AsyncCheckpointConsumer[V]:
        """Read in key order from a checkpoint on; the caller keeps the positions.

        The members of a `group` share the segments, and a member that gains one begins it at its own `start`.
        When retention has taken messages that should have been read, opening or receiving raises
        DataLossError, unless `fail_on_data_loss` is False.
        """
        if not isinstance(start, Checkpoint):
            raise InvalidConfigurationError(
                "start is a Checkpoint: Checkpoint.earliest(), Checkpoint.latest() or one that was kept"
            )
        consumer: AsyncCheckpointConsumer[V] = AsyncCheckpointConsumer(
            self._connections(),
            schema,
            CheckpointOptions(
                topic=parse_topic(topic),
                start=start,
                group=None if group is None else validate_subscription(group),
                name=name,
                receiver_queue_size=receiver_queue_size,
                fail_on_data_loss=fail_on_data_loss,
                **checked_arguments(more),
            ),
        )
        self._consumers[consumer] = None
        await consumer.open()
        return consumer

    async def mirror_cursors(self, topic: str, subscription: str, name: str) -> CursorMirror:
        """Hold the cursors of a stream subscription, made at the beginning of the topic if it is missing.

        For readers that keep their positions elsewhere, such as Spark: retention waits for them, and tools
        show how far they are.
        """
        mirror = CursorMirror(
            self._connections(),
            BYTES,
            StreamOptions(
                topic=parse_topic(topic),
                subscription=validate_subscription(subscription),
                initial_position="earliest",
                name=name,
                receiver_queue_size=1,
                ack_group_s=0.0,
                ack_receipts=True,
                subscription_properties=None,
                on_assignment=None,
                **stream_arguments({}),
            ),
            self._open_dead_letters,
        )
        self._consumers[mirror] = None
        await mirror.open()
        return mirror

    async def end_runs(self, deadline: Deadline) -> None:
        """End the runs of all consumers; their handlers may still use producers."""
        consumers = [each for each in self._consumers if isinstance(each, RunnableConsumer)]
        await asyncio.gather(*(consumer.end_run(deadline) for consumer in consumers))

    async def _close(self, deadline: Deadline) -> None:
        try:
            await self.end_runs(deadline)
        finally:
            await super()._close(deadline)

    async def _open_dead_letters(self, topic: str, subscription: str | None) -> AsyncProducer[bytes]:
        raise NotImplementedError
