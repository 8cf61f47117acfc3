"""The limit of every list, text and byte string in the commands that a broker accepts, in one table.

The broker checks a command before its handler sees it. Each check is linear in the size of the command: a
list is counted first, and only the items of an allowed number are looked at. Commands that only a broker
sends are not listed. This module does not know what a command does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from anabranch.errors import LimitExceededError
from anabranch.model.limits import (
    ENTITY_BYTES_MAX,
    NAME_BYTES_MAX,
    PROPERTIES_MAX,
    PROPERTY_KEY_BYTES_MAX,
    PROPERTY_VALUE_BYTES_MAX,
    TOPIC_BYTES_MAX,
    fits,
    shown,
)
from anabranch.protocol.entry.claims import ENTRY_MESSAGES_MAX

COMMAND_BYTES_MAX: Final = 2 * 2**20
"""Most bytes of a client's command, without the entry behind it."""

IDS_MAX: Final = 50_000
"""Most message ids of one ACK or REDELIVER; clients send a thousand at once unless told otherwise."""

ACK_WORDS_MAX: Final = -(-ENTRY_MESSAGES_MAX // 64)
"""Most 64-bit words of an ack set: one bit for each message of an entry."""

HASH_RANGES_MAX: Final = 4096
"""Most hash ranges of one Key_Shared consumer."""

SCHEMA_BYTES_MAX: Final = 2**20


class Count(NamedTuple):
    """A list of at most `most` items; the items of a list of messages are checked by their own lines."""

    most: int


class Size(NamedTuple):
    """A text or byte string of at most `most` bytes."""

    most: int


class Pairs(NamedTuple):
    """Properties: at most `most` pairs, and the bytes of each key and value."""

    most: int = PROPERTIES_MAX
    key: int = PROPERTY_KEY_BYTES_MAX
    value: int = PROPERTY_VALUE_BYTES_MAX


Limit = Count | Size | Pairs

_TOPIC: Final = Size(TOPIC_BYTES_MAX)
_NAME: Final = Size(NAME_BYTES_MAX)
_NAMESPACE: Final = Size(2 * ENTITY_BYTES_MAX + 1)
_WORD: Final = Size(256)
_URL: Final = Size(1024)
_REASON: Final = Size(1024)
_CREDENTIAL: Final = Size(30 * 2**10)
_PAIRS: Final = Pairs()

LIMITS: Final[dict[str, Limit]] = {
    "AuthData.auth_data": _CREDENTIAL,
    "AuthData.auth_method_name": _WORD,
    "CommandAck.message_id": Count(IDS_MAX),
    "CommandAck.properties": Count(PROPERTIES_MAX),
    "CommandAddPartitionToTxn.partitions": Count(1000),
    "CommandAddSubscriptionToTxn.subscription": Count(1000),
    "CommandAuthResponse.client_version": _WORD,
    "CommandCloseConsumer.assignedBrokerServiceUrl": _URL,
    "CommandCloseConsumer.assignedBrokerServiceUrlTls": _URL,
    "CommandCloseProducer.assignedBrokerServiceUrl": _URL,
    "CommandCloseProducer.assignedBrokerServiceUrlTls": _URL,
    "CommandConnect.auth_data": _CREDENTIAL,
    "CommandConnect.auth_method_name": _WORD,
    "CommandConnect.client_version": _WORD,
    "CommandConnect.original_auth_data": _CREDENTIAL,
    "CommandConnect.original_auth_method": _WORD,
    "CommandConnect.original_principal": _NAME,
    "CommandConnect.proxy_to_broker_url": _URL,
    "CommandConnect.proxy_version": _WORD,
    "CommandEndTxnOnPartition.topic": _TOPIC,
    "CommandGetLastMessageId.find_subscription": _NAME,
    "CommandGetOrCreateSchema.producerName": _NAME,
    "CommandGetOrCreateSchema.topic": _TOPIC,
    "CommandGetSchema.schema_version": Size(64),
    "CommandGetSchema.topic": _TOPIC,
    "CommandGetTopicsOfNamespace.namespace": _NAMESPACE,
    "CommandGetTopicsOfNamespace.properties": _PAIRS,
    "CommandGetTopicsOfNamespace.topics_hash": _WORD,
    "CommandGetTopicsOfNamespace.topics_pattern": _TOPIC,
    "CommandLookupTopic.advertised_listener_name": _WORD,
    "CommandLookupTopic.original_auth_data": _CREDENTIAL,
    "CommandLookupTopic.original_auth_method": _WORD,
    "CommandLookupTopic.original_principal": _NAME,
    "CommandLookupTopic.properties": _PAIRS,
    "CommandLookupTopic.topic": _TOPIC,
    "CommandPartitionedTopicMetadata.original_auth_data": _CREDENTIAL,
    "CommandPartitionedTopicMetadata.original_auth_method": _WORD,
    "CommandPartitionedTopicMetadata.original_principal": _NAME,
    "CommandPartitionedTopicMetadata.topic": _TOPIC,
    # Brokers of one cluster trust each other; the largest frame bounds the arguments.
    "CommandPeerCall.arguments": Size(2**31),
    "CommandPeerCall.target": Size(TOPIC_BYTES_MAX + 256),
    "CommandPeerCall.verb": _WORD,
    "CommandProducer.initial_subscription_name": _NAME,
    "CommandProducer.metadata": _PAIRS,
    "CommandProducer.producer_name": _NAME,
    "CommandProducer.topic": _TOPIC,
    "CommandRedeliverUnacknowledgedMessages.message_ids": Count(IDS_MAX),
    "CommandRedeliverUnacknowledgedMessages.park": _REASON,
    "CommandScalableTopicLookup.topic": _TOPIC,
    "CommandScalableTopicSubscribe.consumer_name": _NAME,
    "CommandScalableTopicSubscribe.positions": Size(2**20),
    "CommandScalableTopicSubscribe.subscription": _NAME,
    "CommandScalableTopicSubscribe.topic": _TOPIC,
    "CommandSubscribe.consumer_name": _NAME,
    "CommandSubscribe.metadata": _PAIRS,
    "CommandSubscribe.subscription": _NAME,
    "CommandSubscribe.subscription_properties": _PAIRS,
    "CommandSubscribe.topic": _TOPIC,
    "CommandWatchScalableTopics.current_hash": _WORD,
    "CommandWatchScalableTopics.namespace": _NAMESPACE,
    "CommandWatchScalableTopics.property_filters": _PAIRS,
    "CommandWatchTopicList.namespace": _NAMESPACE,
    "CommandWatchTopicList.topics_hash": _WORD,
    "CommandWatchTopicList.topics_pattern": _TOPIC,
    "FinishedSegments.parts": Count(65_536),
    "FinishedSegments.segment_ids": Count(65_536),
    "KeyLongValue.key": Size(PROPERTY_KEY_BYTES_MAX),
    "KeySharedMeta.hashRanges": Count(HASH_RANGES_MAX),
    "MessageIdData.ack_set": Count(ACK_WORDS_MAX),
    "Schema.name": _TOPIC,
    # A key-value schema keeps the definitions of its two halves in its properties.
    "Schema.properties": Pairs(value=64 * 2**10),
    "Schema.schema_data": Size(SCHEMA_BYTES_MAX),
    "SegmentSlots.ranges": Count(HASH_RANGES_MAX),
    "Subscription.subscription": _NAME,
    "Subscription.topic": _TOPIC,
}
"""Each line is `message.field`; a test finds the fields of all accepted commands and compares."""

CHECKED_WHEN_USED: Final = frozenset(
    ("CommandAck.message_id", "CommandRedeliverUnacknowledgedMessages.message_ids")
)
"""Lists too long to be looked at in one turn of the event loop: their handlers check the items in slices."""

_Check = Callable[[Message], None]


def check(command: Message) -> None:
    """Raise LimitExceededError for the first field of a command that exceeds its limit."""
    for one in _checks_of(command.DESCRIPTOR):
        one(command)


@cache
def _checks_of(kind: Descriptor) -> tuple[_Check, ...]:
    checks: list[_Check] = []
    for field in kind.fields:
        limit = LIMITS.get(f"{kind.name}.{field.name}")
        if limit is not None:
            checks.append(_check_of(field, limit))
        if isinstance(limit, Pairs) or field.message_type is None:
            continue
        if f"{kind.name}.{field.name}" not in CHECKED_WHEN_USED and has_limits(field.message_type):
            checks.append(_descent(field))
    return tuple(checks)


@cache
def has_limits(kind: Descriptor) -> bool:
    """Return whether a message, or a message inside it, has a field with a limit."""
    if any(f"{kind.name}.{field.name}" in LIMITS for field in kind.fields):
        return True
    inner = (field.message_type for field in kind.fields)
    return any(message is not None and message is not kind and has_limits(message) for message in inner)


def _check_of(field: FieldDescriptor, limit: Limit) -> _Check:
    name, most = field.name, limit.most

    def count(message: Message) -> None:
        found = len(getattr(message, name))
        if found > most:
            raise LimitExceededError(f"{name} of {_title(message)} has {found} items; the limit is {most}")

    def size(message: Message) -> None:
        _check_size(message, name, getattr(message, name), most)

    def pairs(message: Message) -> None:
        assert isinstance(limit, Pairs)
        count(message)
        for pair in getattr(message, name):
            _check_size(message, f"a key of {name}", pair.key, limit.key)
            _check_size(message, f"a value of {name}", pair.value, limit.value)

    return count if isinstance(limit, Count) else size if isinstance(limit, Size) else pairs


def _check_size(message: Message, name: str, value: Any, most: int) -> None:
    if len(value) > most or (isinstance(value, str) and not fits(value, most)):
        start = f", which begins {shown(value)}" if isinstance(value, str) else ""
        raise LimitExceededError(
            f"{name} of {_title(message)}{start}, is longer than the limit of {most} bytes"
        )


def _descent(field: FieldDescriptor) -> _Check:
    """Check the message in a field, or each message of a list, by the lines of its type."""
    name = field.name

    def each(message: Message) -> None:
        for item in getattr(message, name):
            check(item)

    def one(message: Message) -> None:
        if message.HasField(name):
            check(getattr(message, name))

    return each if field.is_repeated else one


def _title(message: Message) -> str:
    return message.DESCRIPTOR.name.removeprefix("Command")
