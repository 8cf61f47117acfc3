"""The blocking consumers that acknowledge: of streams and of queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from anabranch.client.blocking.ack_notes import AckNotes
from anabranch.client.blocking.consumers import Consumer
from anabranch.client.blocking.portal import Handle, Portal
from anabranch.client.blocking.running import RunningConsumer
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
from anabranch.client.message import Message, entry_of
from anabranch.client.options import Seconds
from anabranch.client.schema import V
from anabranch.errors import in_words
from anabranch.model.ids import MessageId


class StreamConsumer(Consumer[AsyncStreamConsumer[V], V], RunningConsumer[AsyncStreamConsumer[V], V], Handle):
    """Reads a share of a topic in key order; the blocking form of AsyncStreamConsumer.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.create_producer("orders").send(b"one tea", key="alice")
            consumer = client.subscribe_stream("orders", "reports", initial_position="earliest")
            for message in consumer:
                consumer.acknowledge_cumulative(message)
                break
    """

    def __init__(self, portal: Portal, twin: AsyncStreamConsumer[V]) -> None:
        Handle.__init__(self, portal)
        super().__init__(twin)
        self._context, self._acks = twin.parts.context, twin.parts.acks
        self._notes: AckNotes[V] = AckNotes(portal, self._acks, "StreamConsumer.acknowledge_cumulative")

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._twin.subscription

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments this consumer reads now."""
        return self._twin.assignment

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of assigned segments that this consumer cannot read yet: other consumers hold them."""
        return self._twin.awaited

    def acknowledge_cumulative(self, message: Message[V] | MessageId) -> None:
        """Acknowledge all messages handed out up to this one, in every segment."""
        context = self._context
        if (
            self._acks.notes_only
            and not context.closed
            and isinstance(message, Message)
            and entry_of(message).source.owner is context
        ):
            self._notes.put(message)
        else:
            self._run("acknowledge_cumulative", lambda: self._twin.acknowledge_cumulative(message))

    def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        Raises OperationTimeoutError after `timeout`, by default the operation timeout.
        """
        self._run("flush_acks", lambda: self._twin.flush_acks(timeout))


class QueueConsumer(Consumer[AsyncQueueConsumer[V], V], RunningConsumer[AsyncQueueConsumer[V], V], Handle):
    """Reads all segments in parallel; the blocking form of AsyncQueueConsumer.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.create_producer("orders").send(b"one tea", key="alice")
            consumer = client.subscribe_queue("orders", "mails", initial_position="earliest")
            with consumer.processing(consumer.receive(timeout=10)) as message:
                print(message.key)
    """

    def __init__(self, portal: Portal, twin: AsyncQueueConsumer[V]) -> None:
        Handle.__init__(self, portal)
        super().__init__(twin)
        self._context, self._acks = twin.parts.context, twin.parts.acks
        self._notes: AckNotes[V] = AckNotes(portal, self._acks, "QueueConsumer.acknowledge")

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._twin.subscription

    def acknowledge(self, message: Message[V] | MessageId | Iterable[Message[V] | MessageId]) -> None:
        """Acknowledge one message or several; the broker never delivers them again."""
        context = self._context
        if (
            self._acks.notes_only
            and not context.closed
            and isinstance(message, Message)
            and entry_of(message).source.owner is context
        ):
            self._notes.put(message)
        else:
            self._run("acknowledge", lambda: self._twin.acknowledge(message))

    def negative_acknowledge(
        self,
        message: Message[V] | MessageId,
        *,
        delay: Seconds | None = None,
        reason: str = "negatively acknowledged",
    ) -> None:
        """Give a message back; it is redelivered after `delay`, by default after the backoff `redelivery`.

        `reason` is for the dead letter that the message may become.
        """
        self._run(
            "negative_acknowledge",
            lambda: self._twin.negative_acknowledge(message, delay=delay, reason=reason),
        )

    def reconsume_later(
        self,
        message: Message[V],
        *,
        delay: Seconds | None = None,
        properties: Mapping[str, str] | None = None,
        reason: str = "reconsumed later",
    ) -> None:
        """Send a message to the retry topic, which delivers it after `delay`, and acknowledge it here."""
        self._run(
            "reconsume_later",
            lambda: self._twin.reconsume_later(message, delay=delay, properties=properties, reason=reason),
        )

    @contextmanager
    def processing(self, message: Message[V]) -> Iterator[Message[V]]:
        """Acknowledge when the block ends, negatively when it raises; the exception is raised on."""
        try:
            yield message
        except BaseException as error:
            self.negative_acknowledge(message, reason=in_words(error))
            raise
        self.acknowledge(message)

    def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        Raises OperationTimeoutError after `timeout`, by default the operation timeout.
        """
        self._run("flush_acks", lambda: self._twin.flush_acks(timeout))
