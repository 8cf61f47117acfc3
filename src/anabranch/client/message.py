"""A received message: a decoded entry and an index.

A consumer decodes a whole entry before it hands out the first of its messages, because the number of messages
in an entry is only a claim until then. `Inbox` decides what becomes of an entry that cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from anabranch.client.schema import Codec
from anabranch.clock import moment
from anabranch.errors import AnabranchError, CorruptDataError, DamagedEntriesError, UnsupportedFeatureError
from anabranch.model.acks import bits_from_words, indexes_of
from anabranch.model.ids import MessageId
from anabranch.protocol.claims import MESSAGE_BYTES_MIN, countable_messages
from anabranch.protocol.commands import Delivery
from anabranch.protocol.compacted import spread_rows
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX
from anabranch.protocol.entries import Columns, decode_columns
from anabranch.protocol.gaps import is_gap
from anabranch.protocol.outer import read_outer
from anabranch.schemas.schema_errors import SchemaError

T_co = TypeVar("T_co", covariant=True)


class Source(Protocol):
    """The segment's consumer that received an entry."""

    @property
    def segment_id(self) -> int: ...
    @property
    def home(self) -> Any:
        """The consumer of the topic, which hands the messages out."""

    @property
    def schema(self) -> Codec[Any]: ...
    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        """The last message of each segment that was handed out up to message `number`.

        Empty unless the consumer acknowledges cumulatively.
        """


class Received:
    """One entry as it was delivered."""

    decode: Callable[[bytes], Any]
    """Decodes values; `WriterSchemas` replaces it if the schema of the writer decides."""

    __slots__ = (
        "_problem",
        "batch_size",
        "before",
        "chunked",
        "content",
        "count",
        "data",
        "decode",
        "finished",
        "first_number",
        "index",
        "passed_over",
        "position",
        "publish_time_ms",
        "redelivery_count",
        "source",
        "surplus",
        "timestamp_ms",
        "unfinished",
        "wanted",
    )

    def __init__(self, source: Source, delivery: Delivery) -> None:
        self.source, self.decode = source, source.schema.decode
        self.position = (delivery.ledger, delivery.entry)
        self.data = delivery.data
        self.redelivery_count = delivery.redelivery_count
        self.index = delivery.index
        """Number of the last message in its log, counted from 0; None when the broker does not say."""
        self.timestamp_ms = delivery.broker_timestamp
        self.count, self.batch_size = 1, 0
        """0 when the entry is not a batch."""
        self.surplus = 0
        """Permits that the entry used besides those for the messages that can be wanted."""
        self.publish_time_ms = 0
        self.first_number = 0
        self.passed_over = self.chunked = False
        """Whether the entry is acknowledged although none of its messages is handed out."""
        self.before: MessageId | None = None
        """The position of a checkpoint just before this entry."""
        self.content: Columns | None = None
        """The result of `columns`, for the hot paths of messages; None before the first use."""
        self.finished = 0
        """Bits of the messages that the handlers of a run have finished."""
        self.unfinished = 0
        """Messages that a run has taken and not finished."""
        self._problem: AnabranchError | None = None
        try:
            outer = read_outer(delivery.data)
        except AnabranchError as error:
            self._problem = error
        else:
            self.publish_time_ms, self.chunked = outer.publish_time, outer.chunked
            if outer.marker:
                self._problem = CorruptDataError("a marker, which no broker delivers")
            elif outer.is_batch:
                self._believe(outer.num_messages)
        self.wanted = (1 << self.count) - 1
        """Bits of the messages to hand out; other messages were acknowledged or handed out before."""
        if delivery.ack_set:
            self.wanted &= bits_from_words(delivery.ack_set[: self.count // 64 + 1])

    def _believe(self, claimed: int) -> None:
        """Take the number of messages that the metadata claims, if the entry has room for them."""
        self.count = self.batch_size = claimed
        if not 0 < claimed * MESSAGE_BYTES_MIN <= len(self.data):
            # A compressed entry may hold so many messages; only decoding shows whether it does.
            try:
                self.columns()
            except AnabranchError:
                self.count, self.batch_size = 1, 0
                self.surplus = countable_messages(self.data) - 1

    @property
    def whole(self) -> int:
        """Bits of all messages."""
        return (1 << self.count) - 1

    @property
    def skipped(self) -> bool:
        """Whether the entry was passed over without an error that the application sees."""
        return self.passed_over and bool(self.finished)

    def wanted_indexes(self) -> range | list[int]:
        """Indexes of the messages to hand out, in order."""
        if self.wanted == self.whole:
            return range(self.count)
        return indexes_of(self.wanted)

    def problem(self) -> AnabranchError | None:
        """Why the content cannot be decoded; None also for a feature that this client does not support.

        The messages of such an entry are handed out, and each raises UnsupportedFeatureError when it is used.
        """
        try:
            self.columns()
        except UnsupportedFeatureError:
            return None
        except AnabranchError as error:
            if is_gap(self.data):
                return DamagedEntriesError("the broker's copy of the entry is damaged and cannot be read")
            return error
        return None

    def columns(self) -> Columns:
        """The content, decoded once; raises if the entry is damaged."""
        if self._problem is not None:
            raise self._problem
        if self.content is None:
            try:
                content = decode_columns(self.data, UNCOMPRESSED_BYTES_MAX)
                self.content = content if content.count == self.count else spread_rows(content, self.count)
            except AnabranchError as error:
                self._problem = error
                raise
        return self.content


class Message(msgspec.Struct, Generic[T_co], eq=False, gc=False):
    """One message; its parts are decoded when they are first used.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.create_producer("orders").send(b"one tea", key="alice", properties={"size": "small"})
            consumer = client.subscribe_queue("orders", "shown", initial_position="earliest")
            message = consumer.receive(timeout=10)
            print(message.key, message.data, message.properties, message.publish_time)
    """

    _entry: Received
    _index: int
    _number: int
    _retries: int = 0

    @property
    def value(self) -> T_co | None:
        """The value as the schema decodes it; None for a tombstone. SchemaError if it cannot be decoded."""
        entry = self._entry
        data = (entry.content or entry.columns()).values[self._index]
        if data is None:
            return None
        try:
            return cast(T_co, entry.decode(data))
        except SchemaError as error:
            raise SchemaError(f"{self}: {error}", self.topic, self.id) from error

    def require_value(self) -> T_co:
        """The value of a message that is no tombstone; SchemaError if it is one, or cannot be decoded."""
        value = self.value
        if value is None and (self._entry.content or self._entry.columns()).values[self._index] is None:
            raise SchemaError(f"{self} is a tombstone: it has no value", self.topic, self.id)
        return cast(T_co, value)

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
        return self._entry.columns().producer_name

    @property
    def topic(self) -> str:
        """The topic as the application knows it."""
        return cast(str, self._entry.source.home.topic)

    @property
    def redelivery_count(self) -> int:
        """How often the message was delivered before, as far as the broker and this consumer know."""
        return self._entry.redelivery_count + self._retries

    @property
    def size(self) -> int:
        """Bytes of the value, uncompressed."""
        return len(self.data)

    def __repr__(self) -> str:
        entry = self._entry
        ledger, position = entry.position
        return f"<Message {entry.source.segment_id}/{ledger}:{position}:{self._index} of {self.topic}>"


def again(message: Message[T_co]) -> Message[T_co]:
    """The message as it is delivered once more."""
    return Message(message._entry, message._index, message._number, message._retries + 1)


def ordering_key(message: Message[Any]) -> bytes | None:
    """The key whose messages keep their order; None also if the entry cannot be decoded."""
    entry, index = message._entry, message._index
    try:
        content = entry.content or entry.columns()
    except AnabranchError:
        return None
    if content.ordering_keys is not None and content.ordering_keys[index] is not None:
        return content.ordering_keys[index]
    return content.keys[index]
