"""Letters: messages that a consumer sends to a dead letter or retry topic, and their producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from anabranch.aio import TaskRegistry
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.attachment import QueueOptions, SubscriptionOptions
from anabranch.client.decide.consuming.letters import (
    BAD_ENTRY,
    LetterOrigin,
    dead_letter_properties,
    origin_properties,
    reconsume_times,
    retry_properties,
)
from anabranch.client.encryption import Encrypt
from anabranch.client.message import Message, entry_of, place_of
from anabranch.client.net.closing import Deadline, close_all
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics.schemas import has_own_schemas, look_up_writer
from anabranch.client.options import DEAD_LETTER_ENDING, DeadLetter, log, retry_ending
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.received import Received, Source
from anabranch.client.schema import BYTES, BytesSchema, Schema
from anabranch.errors import (
    AnabranchError,
    IncompatibleSchemaError,
    TopicNotFoundError,
)
from anabranch.model.ids import MessageId
from anabranch.model.names import TopicName
from anabranch.protocol.entry.schema_stamps import schema_version_of
from anabranch.schemas.definitions import Definition


class LetterTarget(NamedTuple):
    """The topic of letters, a first subscription to create there, if any, and their encryption."""

    topic: str
    first_subscription: str | None = None
    encryption: Encrypt | None = None


OpenLetters = Callable[[LetterTarget, Schema[bytes]], Coroutine[Any, Any, AsyncProducer[bytes]]]
"""Opens a producer of letters."""


class LetterProducers:
    """The producers of one consumer's letters: one for each topic and schema, opened for its first letter."""

    def __init__(self, pool: ConnectionPool, tasks: TaskRegistry, open_producer: OpenLetters) -> None:
        self._pool = pool
        self._tasks = tasks
        self._open_producer = open_producer
        self._opening: dict[tuple[str, str, bytes], asyncio.Task[AsyncProducer[bytes]]] = {}

    async def sending(self, target: LetterTarget, source: Source, version: bytes) -> AsyncProducer[bytes]:
        """Return the producer for `target` of values that a segment stores in this version of its schema."""
        name = TopicName.parse(source.owner.topic)
        own = bool(version) and has_own_schemas(name, source.topic)
        place = target.topic, source.topic if own else str(name), version
        opening = self._opening.get(place)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            work = self._open(target, name, source.topic, version)
            opening = self._opening[place] = self._tasks.start(
                work, f"letters to {target.topic}", awaited=True
            )
        return await asyncio.shield(opening)

    async def _open(
        self, target: LetterTarget, topic: TopicName, segment_topic: str, version: bytes
    ) -> AsyncProducer[bytes]:
        schema = await self._schema_of(topic, segment_topic, version) if version else BYTES
        try:
            return await self._open_producer(target, schema)
        except IncompatibleSchemaError as error:
            # The letter topic may collect the letters of several topics.
            log.warning(
                "%s does not take the schema of %s; its letters carry none: %s", target.topic, topic, error
            )
            return await self._open_producer(target, BYTES)

    async def _schema_of(self, topic: TopicName, segment_topic: str, version: bytes) -> Schema[bytes]:
        pool = self._pool
        found = await pool.retry(
            lambda: look_up_writer(pool, topic, segment_topic, version), f"asking for a schema of {topic}"
        )
        if found is None or found.kind == "None":
            return BYTES
        return BytesSchema(Definition(found.kind, found.data, found.properties))

    async def close_by(self, deadline: Deadline) -> None:
        """Close the producers that are open."""
        done = (task for task in self._opening.values() if task.done() and not task.cancelled())
        await close_all([task.result().publisher for task in done if task.exception() is None], deadline)


class DeadLetters:
    """Forwards the dead letters of one subscription."""

    def __init__(self, policy: DeadLetter, producers: LetterProducers, subscription: str, topic: str) -> None:
        self.policy = policy
        self._producers = producers
        self._subscription = subscription
        self._topic = topic
        self._reported = ""
        """The failure that was logged last, and that still holds."""

    async def forward(self, entry: Received) -> None:
        """Send the messages of an entry; returns when they are stored, else raises."""
        if entry.passed_over:
            place = MessageId(entry.source.segment_id, *entry.position)
            topic = entry.source.owner.given_topic
            origin = LetterOrigin(topic, self._subscription, str(place), entry.source.segment_id)
            producer = await self._sending(entry.source, b"")
            await producer.send(entry.data, properties={**origin_properties(origin, {}), BAD_ENTRY: "whole"})
            return
        for index in entry.wanted_indexes():
            message: Message[Any] = Message(entry, index, 0)
            # The application does not see this delivery.
            attempts = _deliveries(message) - 1
            await self._send(message, "redelivered too often", attempts)

    def report(self, topic: str, error: AnabranchError) -> None:
        """Log a failure once until a letter succeeds; each repetition of a letter fails in the same way."""
        if str(error) != self._reported:
            self._reported = str(error)
            log.warning("%s: a dead letter was not forwarded and will come again: %s", topic, error)

    async def forward_one(self, message: Message[Any], reason: str) -> None:
        """Send one message, and why its handling was given up; as `forward`."""
        await self._send(message, reason, _deliveries(message))

    async def _send(self, message: Message[Any], reason: str, attempts: int) -> None:
        entry = entry_of(message)
        producer = await self._sending(entry.source, schema_version_of(entry.data))
        origin = origin_of(message, self._subscription)
        await pass_on(producer, message, dead_letter_properties(origin, message.properties, reason, attempts))

    async def _sending(self, source: Source, version: bytes) -> AsyncProducer[bytes]:
        policy = self.policy
        target = policy.topic or self._topic + DEAD_LETTER_ENDING
        place = LetterTarget(target, policy.initial_subscription, policy.encryption)
        try:
            producer = await self._producers.sending(place, source, version)
        except TopicNotFoundError as error:
            raise TopicNotFoundError(
                f"the dead letter topic {target} does not exist, and the broker does not create it; "
                f"create it, or name another one in DeadLetter(topic=...): {error}"
            ) from error
        self._reported = ""
        return producer


class RetryLetters:
    """Sends messages to the retry topic of one subscription."""

    def __init__(self, producers: LetterProducers, topic: str, options: QueueOptions) -> None:
        """`topic` is the name of the topic whose messages are retried."""
        given = options.retry_topic
        self.topic = given if isinstance(given, str) else topic + retry_ending(options.subscription)
        """The name of the retry topic."""
        encryption = None if options.dead_letter is None else options.dead_letter.encryption
        self._target = LetterTarget(self.topic, encryption=encryption)
        self._producers = producers
        self._subscription = options.subscription

    async def send(self, message: Message[Any], delay_s: float, more: Mapping[str, str]) -> None:
        """Return when the retry topic has stored a message, with these properties besides its own."""
        entry = entry_of(message)
        version = schema_version_of(entry.data)
        producer = await self._producers.sending(self._target, entry.source, version)
        origin = origin_of(message, self._subscription)
        properties = retry_properties(origin, {**message.properties, **more}, delay_s)
        await pass_on(producer, message, properties, delay_s)


class Letters:
    """All letters that one consumer writes."""

    def __init__(
        self, context: ConsumerContext, options: SubscriptionOptions, open_letters: OpenLetters
    ) -> None:
        topic = context.given_topic
        self._producers = LetterProducers(context.pool, context.tasks, open_letters)
        self.policy = options.dead_letter
        self.dead: DeadLetters | None = None
        """None if messages never become dead letters."""
        self.retry: RetryLetters | None = None
        """None without a retry topic."""
        if options.dead_letter is not None:
            self.dead = DeadLetters(options.dead_letter, self._producers, options.subscription, topic)
        if isinstance(options, QueueOptions) and options.retry_topic:
            self.retry = RetryLetters(self._producers, topic, options)

    async def close_by(self, deadline: Deadline) -> None:
        """Close the producers of letters."""
        await self._producers.close_by(deadline)


def _deliveries(message: Message[Any]) -> int:
    """Return how often the message has been delivered, including this delivery."""
    return message.redelivery_count + reconsume_times(message.properties) + 1


def origin_of(message: Message[Any], subscription: str) -> LetterOrigin:
    source = entry_of(message).source
    return LetterOrigin(source.owner.given_topic, subscription, str(message.id), source.segment_id)


async def pass_on(
    producer: AsyncProducer[bytes],
    message: Message[Any],
    properties: dict[str, str],
    delay_s: float | None = None,
) -> None:
    """Send the key, the stored value and the event time of a message again, with these properties."""
    entry, index = place_of(message)
    await producer.send(
        entry.columns().values[index],
        key=message.key_bytes,
        properties=properties,
        event_time=message.event_time,
        deliver_after=delay_s,
    )
