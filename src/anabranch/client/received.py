"""A received entry: its bytes, the bits of the messages that are wanted, and its content once it is decoded.

A consumer decodes a whole entry before it hands out the first of its messages, because the number of messages
in an entry is only a claim until then. `Inbox` decides what becomes of an entry that cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from anabranch.client.schema import Codec
from anabranch.errors import AnabranchError, CorruptDataError, DamagedEntriesError, UnsupportedFeatureError
from anabranch.model.acks import bits_from_words, indexes_of
from anabranch.model.ids import MessageId
from anabranch.protocol.claims import MESSAGE_BYTES_MIN, countable_messages
from anabranch.protocol.columns import Columns
from anabranch.protocol.commands import Delivery
from anabranch.protocol.compacted import spread_rows
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX
from anabranch.protocol.encryption import EncryptionContext, encrypted_columns
from anabranch.protocol.entries import EncryptedEntryError, OpenEntry, open_entry
from anabranch.protocol.gaps import is_gap
from anabranch.protocol.outer import EntryHead, read_metadata


class EntryOwner(Protocol):
    """The consumer of a topic that a segment is read for, as its messages know it."""

    given_topic: str
    """The topic as the application named it."""
    subscription: str | None
    """None for a consumer that keeps its positions itself."""
    closed: bool

    @property
    def handed_out_by(self) -> EntryOwner:
        """The consumer whose application gets the messages; another one for a retry topic."""

    @property
    def topic(self) -> str:
        """The name of the topic that the broker resolved."""


class Source(Protocol):
    """The segment's consumer that received an entry."""

    @property
    def segment_id(self) -> int: ...
    @property
    def topic(self) -> str:
        """The name under which the segment is read."""

    @property
    def owner(self) -> EntryOwner:
        """The consumer of the topic that hands the messages out."""

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
    decode_key: Callable[[bytes | None], Any] | None
    """Decodes the key if it is the first half of the value; replaced in the same way."""
    _problem: AnabranchError | None
    _head: EntryHead | None
    """The metadata, until the entry is checked."""
    _open: OpenEntry | None
    """The entry after its check, until its messages are decoded."""

    __slots__ = (
        "_head",
        "_open",
        "_problem",
        "batch_size",
        "before",
        "chunked",
        "content",
        "count",
        "data",
        "decode",
        "decode_key",
        "encryption",
        "finished",
        "first_number",
        "index",
        "noted",
        "noted_by",
        "parts",
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
        self.decode_key = getattr(source.schema, "decode_key", None)
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
        self.parts: tuple[bytes, ...] = ()
        """The encrypted chunks of the message, which are joined when they are decrypted."""
        self.encryption: EncryptionContext | None = None
        """How the content is encrypted, if it is handed out like that."""
        self.before: MessageId | None = None
        """The position of a checkpoint just before this entry."""
        self.content: Columns | None = None
        """The result of `columns`, for the hot paths of messages; None before the first use."""
        self.finished = 0
        """Bits of the messages that the handlers of a run have finished."""
        self.unfinished = 0
        """Messages that a run has taken and not finished."""
        self.noted: list[int] = []
        """Indexes of acknowledged messages; `SegmentBuffer` has still to change the bits of the entry."""
        self.noted_by: object = None
        """The consumer that has acknowledged the noted messages; None without notes."""
        self._problem = self._head = self._open = None
        self._read_metadata()
        self.wanted = (1 << self.count) - 1
        """Bits of the messages to hand out; other messages were acknowledged or handed out before."""
        if delivery.ack_set:
            self.wanted &= bits_from_words(delivery.ack_set[: self.count // 64 + 1])

    def _read_metadata(self) -> None:
        try:
            metadata, _ = self._head = read_metadata(self.data)
        except AnabranchError as error:
            self._problem = error
            return
        self.publish_time_ms, self.chunked = metadata.publish_time, metadata.num_chunks_from_msg > 1
        if metadata.HasField("marker_type"):
            self._problem = CorruptDataError("a marker, which no broker delivers")
        elif not isinstance(metadata.producer_name, str):
            self._problem = CorruptDataError("an entry's producer name is not UTF-8")
        elif metadata.HasField("num_messages_in_batch"):
            self._believe(metadata.num_messages_in_batch)

    def _believe(self, claimed: int) -> None:
        """Take the number of messages that the metadata claims, if the entry has room for them."""
        self.count = self.batch_size = claimed
        if not 0 < claimed * MESSAGE_BYTES_MIN <= len(self.data):
            # A compressed entry may hold so many messages; only decoding shows whether it does.
            try:
                self.columns()
            except EncryptedEntryError:
                self.count = self.batch_size = countable_messages(self.data)
            except AnabranchError:
                self.count, self.batch_size = 1, 0
                self.surplus = countable_messages(self.data) - 1

    def replace_data(self, entry: bytes) -> None:
        """Take the decrypted entry."""
        self.data, self.parts, self._problem, self._head, self._open = entry, (), None, None, None

    def refuse(self, problem: AnabranchError) -> None:
        """Treat the content as one that cannot be decoded."""
        self._problem = problem

    def keep_encrypted(self, context: EncryptionContext) -> int:
        """Become one message whose value is the encrypted payload; return the bits of the other messages."""
        self.encryption, self._problem = context, None
        self.content = encrypted_columns(self.data)
        left = self.wanted & ~1
        self.count, self.batch_size, self.wanted = 1, 0, 1
        return left

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
            self._check()
        except UnsupportedFeatureError:
            return None
        except AnabranchError as error:
            if is_gap(self.data):
                return DamagedEntriesError("the broker's copy of the entry is damaged and cannot be read")
            return error
        return None

    def _check(self) -> None:
        """Raise if the entry is damaged, as `columns` does.

        Messages of a sound entry are decoded on first use, by the thread of the application if it has one:
        messages that wait for a blocking consumer take little memory then.
        """
        if self._problem is None and self.content is None:
            try:
                self._open = open_entry(self.data, UNCOMPRESSED_BYTES_MAX, self._head)
            except AnabranchError as error:
                self._problem = error
                raise
            self._head = None
            if self._open.surely_holds(self.count):
                return
        self.columns()

    def columns(self) -> Columns:
        """The content, decoded once; raises if the entry is damaged."""
        if self._problem is not None:
            raise self._problem
        if self.content is None:
            try:
                # Several threads may decode an entry at the same time, with equal results.
                content = (self._open or open_entry(self.data, UNCOMPRESSED_BYTES_MAX)).columns()
                self.content = content if content.count == self.count else spread_rows(content, self.count)
                self._head = self._open = None
            except AnabranchError as error:
                self._problem = error
                raise
        return self.content
