"""The client makes producers and consumers.

It connects when the first of them is opened. A client and its producers and consumers belong to the event
loop they were made on; the same API for code without a loop is in `blocking`.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Unpack, cast

from anabranch.aio import Backoff
from anabranch.client.consume.attachment import (
    CheckpointOptions,
    OnAssignment,
    QueueOptions,
    StreamOptions,
)
from anabranch.client.consume.bulk_reading import BulkReading
from anabranch.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.consume.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.stream_consumer import AsyncStreamConsumer
from anabranch.client.net.connection_pool import ConnectionPool, PoolTimes
from anabranch.client.net.layout_watch import TopicLayout, look_up_layout
from anabranch.client.options import (
    MEMORY_LIMIT,
    AccessMode,
    Batching,
    ClientArguments,
    CompressionName,
    ConsumerArguments,
    DeadLetter,
    InitialPosition,
    PublishOptions,
    Seconds,
    checked_arguments,
    kept_pairs,
    optional_seconds,
    parse_service_url,
    parse_topic,
    positive,
    refuse_unknown,
    seconds,
)
from anabranch.client.produce.memory import Memory, PublishContext
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import Codec, Schema, V
from anabranch.clock import SystemClock
from anabranch.credentials.asking import checked_authentication
from anabranch.errors import InvalidConfigurationError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import validate_subscription
from anabranch.transport.tls import TLS_SCHEME
from anabranch.transport.tls_arguments import tls_of

BYTES: Codec[Any] = Schema.bytes()


class AsyncClient(BulkReading):
    """Talks to one cluster; use it with `async with`, or close it yourself."""

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
        refuse_unknown(more, ClientArguments)
        pool = ConnectionPool(
            parse_service_url(service_url),
            PoolTimes(
                connect_s=seconds("connect_timeout", connect_timeout),
                operation_s=seconds("operation_timeout", operation_timeout),
                keep_alive_s=seconds("keep_alive_interval", keep_alive_interval),
            ),
            authentication=checked_authentication(more.get("authentication")),
            tls=tls_of(service_url, TLS_SCHEME, more, more.get("authentication")),
            rng=more.get("rng") or Random(),
        )
        super().__init__(service_url, pool)
        self._memory = Memory(positive("memory_limit", memory_limit))
        self._clock = more.get("clock") or SystemClock()

    async def __aexit__(self, kind: object, *error: object) -> None:
        # A coroutine that is destroyed can wait for nothing.
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
    ) -> AsyncProducer[V]:
        """Open a producer; a bare topic name means topic://public/default/<name>.

        A message that is not stored within `send_timeout` fails with SendTimeoutError; 0 lets messages wait
        for ever. A message that does not fit `memory_limit` waits as long for room, or raises at once when
        `block_if_full` is False. With `wait_for_exclusive` the call waits until the other producer leaves.
        """
        options = PublishOptions(
            name=name,
            access_mode=access_mode,
            send_timeout_s=seconds("send_timeout", send_timeout, zero=True),
            block_if_full=block_if_full,
            compression=compression,
            batching=batching,
            initial_sequence_id=initial_sequence_id,
            properties=kept_pairs("properties", properties),
        )
        producer = self._new_producer(topic, schema, options)
        self._producers[producer] = None
        await producer.open()
        return producer

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
        **more: Unpack[ConsumerArguments],
    ) -> AsyncStreamConsumer[V]:
        """Read in key order with cumulative acknowledgement; consumers of one subscription share the topic.

        Give a stable `name` to get the same share after a restart. A name has one consumer at a time:
        ConsumerBusyError names the consumer that has it. This method raises it, and so does receiving when
        another consumer took the name while this one was disconnected. Receiving raises
        SubscriptionNotFoundError when the subscription is deleted meanwhile. Acknowledge continuously:
        unacknowledged messages of a segment keep its successors closed. ConsumerArguments explains
        `bad_entries`, the policy for entries that cannot be decoded.

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
                **checked_arguments(more),
            ),
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
        **more: Unpack[ConsumerArguments],
    ) -> AsyncQueueConsumer[V]:
        """Read in parallel with single acknowledgement; each message goes to one consumer at a time.

        Receiving raises SubscriptionNotFoundError when the subscription is deleted meanwhile.
        """
        processing_s = (
            None if processing_timeout is None else seconds("processing_timeout", processing_timeout)
        )
        consumer: AsyncQueueConsumer[V] = AsyncQueueConsumer(
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
                processing_s=processing_s,
                redelivery=redelivery,
                dead_letter=dead_letter,
                **checked_arguments(more, dead_letter),
            ),
            self._open_dead_letters,
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

    async def layout(self, topic: str, *, create: bool = False) -> TopicLayout:
        """The layout of a topic now, for tools and bulk readers."""
        pool, name = self._connections(), parse_topic(topic)
        return await pool.retry(lambda: look_up_layout(pool, name, create=create), f"looking up {name}")

    async def close(self, timeout: Seconds | None = None) -> None:
        """Complete pending sends and acknowledgements, close all producers, then all consumers.

        The client is closed after `timeout` in any case, by default after the operation timeout. Messages
        that were not stored raise in their futures, or are logged. A cancelled call closes at once.
        """
        limit = optional_seconds("timeout", timeout)
        await self._close_within(self._pool.operation_timeout_s if limit is None else limit)

    async def shutdown(self) -> None:
        """Close at once: pending sends fail, pending acknowledgements may be lost."""
        await self._close_within(0.0)

    async def _open_dead_letters(self, topic: str, subscription: str | None) -> AsyncProducer[bytes]:
        options = PublishOptions(initial_subscription=subscription)
        # The consumer, and not this client, closes the producer of its dead letters.
        producer = self._new_producer(topic, cast(Codec[bytes], BYTES), options)
        await producer.open()
        return producer

    def _new_producer(self, topic: str, schema: Codec[V], options: PublishOptions) -> AsyncProducer[V]:
        context = PublishContext(self._connections(), self._memory, self._clock)
        return AsyncProducer(context, parse_topic(topic), schema, options)
