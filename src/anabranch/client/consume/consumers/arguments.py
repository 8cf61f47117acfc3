"""The arguments of applications that open consumers: described, checked and filled up in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from anabranch.aio import Backoff
from anabranch.arguments import (
    INT32_MAX,
    check_flag,
    check_function,
    check_optional,
    of_kind,
    refuse_unknown,
    whole,
)
from anabranch.client.consume.segments.attachment import (
    CheckpointOptions,
    OnAssignment,
    QueueOptions,
    StreamOptions,
)
from anabranch.client.encryption import Decrypt
from anabranch.client.interceptors import Interceptor, checked_interceptors
from anabranch.client.options import (
    BadEntries,
    DeadLetter,
    InitialPosition,
    QueueOrder,
    Seconds,
    check_name,
    kept_pairs,
    one_of,
    parse_topic,
    positive,
    seconds,
)
from anabranch.errors import InvalidConfigurationError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import validate_subscription

REDELIVERY = Backoff(60.0, 60.0)
QUEUE_BUFFER = 1000


class ConsumerArguments(TypedDict, total=False):
    """Arguments that every kind of consumer takes."""

    name: str | None
    """The identity of the consumer: a stable one gets the same share after a restart. A name has one consumer
    at a time: ConsumerBusyError names the consumer that has it. Opening raises it, and so does receiving when
    another consumer took the name while this one was disconnected."""
    receiver_queue_size: int | None
    """Messages that the client holds ready; for streams and checkpoints of each segment, by default a
    thousand, and up to a mebibyte for an application that runs out of them."""
    properties: Mapping[str, str] | None
    """Text for the operators of the broker."""
    bad_entries: BadEntries
    """The policy for an entry that cannot be decoded; it is logged and counted in any case.

    "skip", the default, acknowledges it. "fail" raises BadEntryError from one receive and leaves the entry to
    the caller. "dead_letter" sends its bytes to the topic of `dead_letter` and acknowledges it.
    """
    encryption: Decrypt | None
    """The keys for encrypted messages. Without them such messages raise EncryptedEntryError when used."""
    interceptors: Sequence[Interceptor]
    """See Interceptor; those of the client come first."""


class SubscriptionArguments(TypedDict, total=False):
    """More arguments of consumers that acknowledge."""

    ack_group_time: Seconds
    """How long acknowledgements are collected before they are sent; 0.1 seconds by default."""
    ack_receipts: bool
    """Whether acknowledging waits until the broker has made it durable."""
    subscription_properties: Mapping[str, str] | None
    """Text that the broker keeps with a new subscription."""
    dead_letter: DeadLetter | None
    """The fate of messages that fail too often: handlers of `run` fail with them, or a queue gets them again
    and again. Messages of a stream that the application receives itself have no redelivery."""


class StreamArguments(ConsumerArguments, SubscriptionArguments, total=False):
    """More arguments of a stream consumer."""

    on_assignment: OnAssignment | None
    """Called with the names of the segments that this consumer gained and lost."""


class QueueArguments(ConsumerArguments, SubscriptionArguments, total=False):
    """More arguments of a queue consumer."""

    order: QueueOrder
    """With "key" the consumers share the topic by segments and buckets, as stream consumers do, and messages
    of one key come in order. A message that the application gives back comes again from the memory of its
    consumer, before all later messages of its key. Up to ten times `receiver_queue_size` messages wait for
    such keys; then the consumer takes no more until a key continues. "none" is the default."""
    ack_group_size: int
    """Acknowledgements that are sent without waiting for `ack_group_time`; 1000 by default."""
    priority: int
    """Consumers with lower numbers get messages first; 0 by default."""
    processing_timeout: Seconds | None
    """A message that is not acknowledged in this time is delivered again."""
    redelivery: Backoff
    """The pauses before refused messages are delivered again; a minute by default."""
    retry_topic: bool | str
    """The topic in which messages wait for their next attempt, after `reconsume_later` and after failures of
    the handlers of `run`; the consumer reads this topic too. True means `<topic>-<subscription>-RETRY`.
    Retries do not keep the order of keys, so this needs order="none". The letters of a consumer that decrypts
    are encrypted as its dead letters are."""


QUEUES_ONLY = ("order", "retry_topic", "redelivery", "processing_timeout", "ack_group_size", "priority")


def stream_options(
    topic: str, subscription: str, start: InitialPosition, given: StreamArguments
) -> StreamOptions:
    """Return the options of a stream consumer; raises InvalidConfigurationError or TypeError."""
    refuse_unknown(given, StreamArguments)
    shared = _consumer_part(given) | _subscription_part(topic, subscription, start, given)
    check_function("on_assignment", given.get("on_assignment"))
    return StreamOptions(**shared, on_assignment=given.get("on_assignment"))


def queue_options(
    topic: str, subscription: str, start: InitialPosition, given: QueueArguments
) -> QueueOptions:
    """As `stream_options`, for a queue consumer."""
    refuse_unknown(given, QueueArguments)
    shared = _consumer_part(given, dead_letters=given.get("dead_letter") is not None)
    shared |= _subscription_part(topic, subscription, start, given)
    if shared["receiver_queue_size"] is None:
        shared["receiver_queue_size"] = QUEUE_BUFFER
    timeout = given.get("processing_timeout")
    return QueueOptions(
        **shared,
        ack_group_size=positive("ack_group_size", given.get("ack_group_size", 1000)),
        priority=given.get("priority", 0),
        processing_s=None if timeout is None else seconds("processing_timeout", timeout),
        redelivery=given.get("redelivery", REDELIVERY),
        order=given.get("order", "none"),
        retry_topic=given.get("retry_topic", False),
    )


def checkpoint_options(
    topic: str, start: Checkpoint, group: str | None, fail_on_data_loss: bool, given: ConsumerArguments
) -> CheckpointOptions:
    """As `stream_options`, for a checkpoint consumer."""
    refuse_unknown(given, ConsumerArguments)
    of_kind(
        "start", start, Checkpoint, "Checkpoint.earliest(), Checkpoint.latest() or a Checkpoint that was kept"
    )
    check_optional("group", group, str, "text")
    check_flag("fail_on_data_loss", fail_on_data_loss)
    return CheckpointOptions(
        topic=parse_topic(topic),
        start=start,
        group=None if group is None else validate_subscription(group),
        fail_on_data_loss=fail_on_data_loss,
        **_consumer_part(given),
    )


def _consumer_part(given: ConsumerArguments, *, dead_letters: bool = False) -> dict[str, Any]:
    bad_entries, encryption = given.get("bad_entries", "skip"), given.get("encryption")
    one_of("bad_entries", bad_entries, BadEntries)
    if bad_entries == "dead_letter" and not dead_letters:
        raise InvalidConfigurationError('bad_entries="dead_letter" needs a queue consumer with a dead_letter')
    check_optional("encryption of a consumer", encryption, Decrypt, "a Decrypt")
    name, queue_size = given.get("name"), given.get("receiver_queue_size")
    check_name("consumer", name)
    if queue_size is not None:
        whole("receiver_queue_size", queue_size, least=1, most=INT32_MAX)
    return {
        "name": name,
        "receiver_queue_size": queue_size,
        "properties": kept_pairs("properties", given.get("properties")),
        "bad_entries": bad_entries,
        "encryption": encryption,
        "interceptors": checked_interceptors(given.get("interceptors", ())),
    }


def _subscription_part(
    topic: str, subscription: str, start: InitialPosition, given: StreamArguments | QueueArguments
) -> dict[str, Any]:
    dead_letter = given.get("dead_letter")
    check_optional("dead_letter", dead_letter, DeadLetter, "a DeadLetter")
    check_flag("ack_receipts", given.get("ack_receipts", False))
    if (
        given.get("encryption") is not None
        and dead_letter is not None
        and dead_letter.policy == "skip"
        and dead_letter.encryption is None
    ):
        # Messages that were encrypted must not end up readable in another topic.
        raise InvalidConfigurationError(
            "dead letters of a consumer that decrypts need DeadLetter(encryption=Encrypt(...))"
        )
    return {
        "topic": parse_topic(topic),
        "subscription": validate_subscription(subscription),
        "initial_position": start,
        "ack_group_s": seconds("ack_group_time", given.get("ack_group_time", 0.1), zero=True),
        "ack_receipts": given.get("ack_receipts", False),
        "subscription_properties": kept_pairs(
            "subscription_properties", given.get("subscription_properties")
        ),
        "dead_letter": dead_letter,
    }
