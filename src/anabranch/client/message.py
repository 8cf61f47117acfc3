"""A received message: a decoded entry and an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from anabranch.client.received import Received
from anabranch.clock import moment
from anabranch.errors import AnabranchError
from anabranch.model.ids import MessageId
from anabranch.protocol.entry.encryption import EncryptionContext
from anabranch.schemas.schema_errors import SchemaError
from anabranch.speedups import ReceivedPlace, make_messages, uncollected

T_co = TypeVar("T_co", covariant=True)


class Message(ReceivedPlace, Generic[T_co]):
    """One message; its parts are decoded when they are first used.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.create_producer("orders").send(b"one tea", key="alice", properties={"size": "small"})
            consumer = client.subscribe_queue("orders", "shown", initial_position="earliest")
            message = consumer.receive(timeout=10)
            print(message.key, message.data, message.properties, message.publish_time)
    """

    if TYPE_CHECKING:
        _entry: Received

    if not TYPE_CHECKING and make_messages is not None:
        # The Python form of the place is a struct, whose classes have no slots of their own.
        __slots__ = ()

    @property
    def value(self) -> T_co | None:
        """The value as the schema decodes it; None for a tombstone. SchemaError if it cannot be decoded."""
        entry = self._entry
        data = (entry.content or entry.columns()).values[self._index]
        if data is None:
            return None
        try:
            value = entry.decode(data)
            if entry.decode_key is not None:
                value = entry.decode_key(self.key_bytes), value
            return cast(T_co, value)
        except SchemaError as error:
            raise SchemaError(f"{self}: {error}", self.topic, self.id) from error

    def require_value(self) -> T_co:
        """The value of a message; raises SchemaError for a tombstone and for bytes that cannot be decoded."""
        value = self.value
        if value is None and (self._entry.content or self._entry.columns()).values[self._index] is None:
            raise SchemaError(f"{self} is a tombstone: it has no value", self.topic, self.id)
        return cast(T_co, value)

    if TYPE_CHECKING or make_messages is None:

        @property
        def data(self) -> bytes:
            """The value's bytes; empty for a null value."""
            entry = self._entry
            return (entry.content or entry.columns()).values[self._index] or b""

    @property
    def key(self) -> str | None:
        """The key as text; bytes that are not UTF-8 are escaped."""
        entry = self._entry
        key = (entry.content or entry.columns()).keys[self._index]
        return None if key is None else key.decode(errors="backslashreplace")

    @property
    def key_bytes(self) -> bytes | None:
        """The key as it was hashed."""
        return self._entry.columns().keys[self._index]

    @property
    def id(self) -> MessageId:
        """The message's permanent id; on a stream consumer it covers the messages before it, too."""
        entry = self._entry
        ledger, position = entry.position
        source = entry.source
        index = self._index if entry.batch_size else -1
        return MessageId(
            source.segment_id, ledger, position, index, entry.batch_size, -1, source.vector(self._number)
        )

    @property
    def properties(self) -> Mapping[str, str]:
        """The pairs of text that the producer gave the message; empty without them."""
        found = self._entry.columns().properties
        return {} if found is None else found[self._index]

    @property
    def publish_time(self) -> datetime:
        """When the producer sent the message, by its clock."""
        return moment(self._entry.publish_time_ms)

    @property
    def event_time(self) -> datetime | None:
        """The time the application gave the message."""
        found = self._entry.columns().event_times
        time_ms = 0 if found is None else found[self._index]
        return moment(time_ms) if time_ms else None

    @property
    def sequence_id(self) -> int:
        """The number the producer gave the message."""
        return self._entry.columns().sequence_ids[self._index]

    @property
    def producer_name(self) -> str:
        """The name of the producer, its own or one that the client chose."""
        return self._entry.columns().producer_name

    @property
    def topic(self) -> str:
        """The topic as the application named it: a classic one by its `persistent://` name."""
        return self._entry.source.owner.given_topic

    @property
    def redelivery_count(self) -> int:
        """How often the message was delivered before, as far as the broker and this consumer know."""
        return self._entry.redelivery_count + self._retries

    @property
    def encryption(self) -> EncryptionContext | None:
        """How `data` is encrypted; None for a message that can be read."""
        return self._entry.encryption

    @property
    def size(self) -> int:
        """Bytes of the value, uncompressed."""
        return len(self.data)

    def __repr__(self) -> str:
        entry = self._entry
        ledger, position = entry.position
        return f"<Message {entry.source.segment_id}/{ledger}:{position}:{self._index} of {self.topic}>"


if not TYPE_CHECKING and uncollected is not None:
    Message = uncollected(Message)


# The place of a message is not for applications, so `Message` has no public attribute for it. These getters
# are compiled functions: a Python function would show in the time that an application needs for each message.
entry_of: Callable[[Message[Any]], Received] = attrgetter("_entry")
"""Return the entry that a message was received in."""
index_of: Callable[[Message[Any]], int] = attrgetter("_index")
"""Return the index of a message in its entry."""
number_of: Callable[[Message[Any]], int] = attrgetter("_number")
"""Return the number of a message: its place among all that its consumer has handed out."""
place_of: Callable[[Message[Any]], tuple[Received, int]] = attrgetter("_entry", "_index")
"""Return the entry of a message and its index there."""
whole_place_of: Callable[[Message[Any]], tuple[Received, int, int, int]] = attrgetter(
    "_entry", "_index", "_number", "_retries"
)
"""Return the entry, the index, the number and how often this consumer has handed the message out again."""


def messages_of(entry: Received, indexes: range | list[int], last: int) -> list[Message[Any]]:
    """Messages of an entry, last message first; `last` is its number, and the others follow in their order.

    A range of indexes begins with 0.
    """
    count = len(indexes)
    if make_messages is not None:
        return make_messages(Message, entry, indexes if isinstance(indexes, list) else count, last)
    return list(map(Message, repeat(entry, count), reversed(indexes), range(last, last - count, -1)))


def again(message: Message[T_co]) -> Message[T_co]:
    """The message as it is delivered once more."""
    entry, index, number, retries = whole_place_of(message)
    return Message(entry, index, number, retries + 1)


def renumbered(message: Message[T_co], number: int) -> Message[T_co]:
    """The message with another number."""
    entry, index, _, retries = whole_place_of(message)
    return Message(entry, index, number, retries)


def ordering_key(message: Message[Any]) -> bytes | None:
    """The key whose messages keep their order; None also if the entry cannot be decoded."""
    entry, index = place_of(message)
    try:
        content = entry.content or entry.columns()
    except AnabranchError:
        return None
    if content.ordering_keys is not None and content.ordering_keys[index] is not None:
        return content.ordering_keys[index]
    return content.keys[index]
