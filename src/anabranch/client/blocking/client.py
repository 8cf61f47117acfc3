"""The blocking client: where blocking producers and consumers are made."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from anabranch.aio import Backoff
from anabranch.client.api import BYTES, AsyncClient
from anabranch.client.blocking.consumers import CheckpointConsumer, QueueConsumer, StreamConsumer
from anabranch.client.blocking.portal import Handle, Portal
from anabranch.client.blocking.producer import Producer
from anabranch.client.consume.attachment import OnAssignment
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.options import (
    MEMORY_LIMIT,
    AccessMode,
    Batching,
    CompressionName,
    DeadLetter,
    InitialPosition,
    Seconds,
)
from anabranch.client.schema import Codec, V
from anabranch.clock import Clock
from anabranch.model.checkpoint import Checkpoint


class Client(Handle):
    """Talks to one cluster; the blocking form of AsyncClient."""

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

    def close(self) -> None:
        """Complete pending sends, send pending acknowledgements, close all handles, end the thread."""
        if not self._twin.closed:
            self._run("close", self._twin.close)
            self._portal.stop()

    def shutdown(self) -> None:
        """Close at once: pending sends fail, pending acknowledgements are lost."""
        if not self._twin.closed:
            self._run("shutdown", self._twin.shutdown)
            self._portal.stop()
