"""Checks of the messages that applications name to a consumer: to acknowledge, to retry or to seek to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from anabranch.client.message import Message
from anabranch.errors import InvalidConfigurationError
from anabranch.model.ids import MessageId
from anabranch.model.names import TopicName

T = TypeVar("T")


def each_of(
    given: Message[T] | MessageId | Iterable[Message[T] | MessageId],
) -> Iterable[Message[T] | MessageId]:
    """Return the messages of a call that takes one or many; other values raise InvalidConfigurationError."""
    if isinstance(given, (Message, MessageId)):
        return (given,)
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        return given
    raise not_a_message(given)


def id_of(given: Message[Any] | MessageId, topic: str) -> MessageId:
    """Return the id of a message of this topic; raises InvalidConfigurationError for other values."""
    if isinstance(given, Message):
        check_topic(given.topic, topic)
        return given.id
    if not isinstance(given, MessageId):
        raise not_a_message(given)
    return given


def check_topic(found: str, topic: str) -> None:
    """Raise InvalidConfigurationError if a message is of another topic: its id means another message here.

    A topic that was migrated has two names.
    """
    if found != topic and _whole(found) != _whole(topic):
        raise InvalidConfigurationError(
            f"the message is one of {found}; a consumer of {topic} has no use for it"
        )


def not_a_message(given: object) -> InvalidConfigurationError:
    return InvalidConfigurationError(f"this call needs a message or its id, not {given!r}")


def _whole(topic: str) -> TopicName:
    return TopicName.parse(topic, default_domain="topic").partitioned_topic.topic
