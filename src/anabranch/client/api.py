"""The client makes producers and consumers.

It connects when the first of them is opened. A client and its producers and consumers belong to the event
loop they were made on; the same API for code without a loop is in `blocking`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack, cast

from anabranch.arguments import refuse_unknown
from anabranch.client.consume.consumers.checkpoint_parts import CheckpointParts
from anabranch.client.consume.consumers.consumer_opening import ConsumerOpening
from anabranch.client.consume.consumers.subscription_parts import SubscriptionParts
from anabranch.client.consume.failures.letters import LetterTarget
from anabranch.client.figures import ClientFigures
from anabranch.client.interceptors import checked_interceptors
from anabranch.client.net.connection_pool import PoolTimes, new_pool
from anabranch.client.options import (
    MEMORY_LIMIT,
    AccessMode,
    Batching,
    ClientArguments,
    CompressionName,
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

BYTES: Codec[Any] = Schema.bytes()


class AsyncClient(ConsumerOpening):
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
        super().__init__(service_url, pool)
        self._memory = Memory(positive("memory_limit", memory_limit))
        self._interceptors = checked_interceptors(more.get("interceptors", ()))
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
        self._producers[publisher] = None
        await publisher.open()
        return AsyncProducer(publisher)

    @property
    def stats(self) -> ClientFigures:
        """The producers and consumers of this client now, with their states and numbers."""
        producers = (one.figures() for one in list(self._producers) if isinstance(one, Publisher))
        kinds = (SubscriptionParts, CheckpointParts)
        consumers = (one.figures for one in list(self.consumers) if isinstance(one, kinds))
        return ClientFigures(
            len(self._pool.connections), self._memory.used, tuple(producers), tuple(consumers)
        )

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
        context = PublishContext(self._connections(), self._memory, self._clock)
        return Publisher(context, parse_topic(topic), schema, options)
