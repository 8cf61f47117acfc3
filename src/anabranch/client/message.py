"""A received message: an entry and an index, decoded on first use.

The first use of any message decodes its whole entry; an application that only counts or acknowledges never
pays for it. A damaged entry raises when its content is used, so that its messages can still be acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from anabranch.client.schema import Codec
from anabranch.errors import AnabranchError
from anabranch.model.acks import bits_from_words
from anabranch.model.ids import MessageId
from anabranch.protocol.commands import Delivery
from anabranch.protocol.entries import Columns, decode_columns
from anabranch.protocol.outer import read_outer

T_co = TypeVar("T_co", covariant=True)

DECODED_BYTES_MAX = 128 * 2**20
"""Most bytes an entry may decompress to."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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

    __slots__ = (
        "_problem",
        "batch_size",
        "before",
        "content",
        "count",
        "data",
        "first_number",
        "hidden",
        "index",
        "position",
        "publish_time_ms",
        "redelivery_count",
        "source",
        "timestamp_ms",
        "wanted",
    )

    def __init__(self, source: Source, delivery: Delivery) -> None:
        self.source = source
        self.position = (delivery.ledger, delivery.entry)
        self.data = delivery.data
        self.redelivery_count = delivery.redelivery_count
        self.index = delivery.index
        """Number of the last message in its log, counted from 0; None when the broker does not say."""
        self.timestamp_ms = delivery.broker_timestamp
        self.count = 1
        self.batch_size = 0
        """0 when the entry is not a batch."""
        self.hidden = False
        self.publish_time_ms = 0
        self.first_number = 0
        self.before: MessageId | None = None
        """The position of a checkpoint just before this entry."""
        self.content: Columns | None = None
        """The result of `columns`, for the hot paths of messages; None before the first use."""
        self._problem: AnabranchError | None = None
        try:
            outer = read_outer(delivery.data)
        except AnabranchError as error:
            self._problem = error
        else:
            self.publish_time_ms = outer.publish_time
            self.hidden = outer.marker
            if outer.is_batch:
                self.count = self.batch_size = max(outer.num_messages, 1)
        self.wanted = (1 << self.count) - 1
        """Bits of the messages to hand out; other messages were acknowledged or handed out before."""
        if delivery.ack_set:
            self.wanted &= bits_from_words(delivery.ack_set)

    @property
    def whole(self) -> int:
        """Bits of all messages."""
        return (1 << self.count) - 1

    def wanted_indexes(self) -> range | list[int]:
        """Indexes of the messages to hand out, in order."""
        if self.wanted == self.whole:
            return range(self.count)
        return [index for index in range(self.count) if self.wanted >> index & 1]

    def columns(self) -> Columns:
        """The content, decoded once; raises if the entry is damaged."""
        if self._problem is not None:
            raise self._problem
        if self.content is None:
            try:
                content = decode_columns(self.data, DECODED_BYTES_MAX)
                self.content = content if content.count == self.count else _spread(content, self.count)
            except AnabranchError as error:
                self._problem = error
                raise
        return self.content


def _spread(content: Columns, count: int) -> Columns:
    """Columns with a row for each message the entry was stored with; compaction removed some of them."""
    rows: dict[int, int] = {index: row for row, index in enumerate(content.batch_indexes)}
    places = [rows.get(index) for index in range(count)]

    def spread(column: list[Any], nothing: Any) -> list[Any]:
        return [nothing if place is None else column[place] for place in places]

    whole = replace(
        content,
        count=count,
        values=spread(content.values, None),
        batch_indexes=list(range(count)),
        event_times=content.event_times and spread(content.event_times, 0),
        properties=content.properties and spread(content.properties, {}),
    )
    whole.keys = spread(content.keys, None)
    whole.sequence_ids = spread(content.sequence_ids, 0)
    return whole


class Message(msgspec.Struct, Generic[T_co], eq=False, gc=False):
    """One message; its parts are decoded when they are first used."""

    _entry: Received
    _index: int
    _number: int

    @property
    def value(self) -> T_co:
        """The value as the schema decodes it; None for a null value."""
        entry = self._entry
        data = (entry.content or entry.columns()).values[self._index]
        return cast(T_co, None if data is None else entry.source.schema.decode(data))

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
        return _moment(self._entry.publish_time_ms)

    @property
    def event_time(self) -> datetime | None:
        """The time the application gave the message."""
        found = self._entry.columns().event_times
        time_ms = 0 if found is None else found[self._index]
        return _moment(time_ms) if time_ms else None

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
        """How often the message was delivered before, as far as the broker knows."""
        return self._entry.redelivery_count

    @property
    def size(self) -> int:
        """Bytes of the value, uncompressed."""
        return len(self.data)

    def __repr__(self) -> str:
        entry = self._entry
        ledger, position = entry.position
        return f"<Message {entry.source.segment_id}/{ledger}:{position}:{self._index} of {self.topic}>"


def _moment(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)
