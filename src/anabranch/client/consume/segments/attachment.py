"""How consumers subscribe: the application's arguments, checked, and the values of a SUBSCRIBE command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from anabranch.aio import Backoff
from anabranch.arguments import INT32_MAX, of_kind, whole
from anabranch.client.encryption import Decrypt
from anabranch.client.interceptors import Interceptor
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.options import (
    BadEntries,
    DeadLetter,
    InitialPosition,
    QueueOrder,
    one_of,
    parse_topic,
)
from anabranch.errors import InvalidConfigurationError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.ids import MessageId
from anabranch.model.layout import Segment
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED, pairs

OnAssignment = Callable[[tuple[str, ...], tuple[str, ...]], None]
"""Called with the names of the segments added and removed."""


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    """The names and the owner by which a consumer finds one segment."""

    segment_id: int
    topic: str
    is_classic: bool
    """Whether a classic topic holds the segment's messages."""
    owner_url: str | None = None
    """The owner in the layout; None to look it up."""


def address_in(layout: TopicLayout, segment: Segment) -> SegmentAddress:
    return SegmentAddress(
        segment.id, layout.segment_topic(segment), segment.is_classic, layout.owners.get(segment.id)
    )


@dataclass(frozen=True, slots=True)
class Attachment:
    """How a consumer subscribes to a segment."""

    subscription: str
    kind: pb.CommandSubscribe.SubType.ValueType
    consumer_name: str
    initial_position: pb.CommandSubscribe.InitialPosition.ValueType = pb.CommandSubscribe.Latest
    durable: bool = True
    priority: int = 0
    bucket_ranges: tuple[HashRange, ...] = ()
    """Set when consumers share the segment by buckets."""
    generation: int | None = None
    """The generation of the assignment that gave the segment to the consumer, if the leader assigns it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    start: Callable[[], MessageId] | None = None
    """Returns the last message that is not wanted, if the consumer keeps its position itself."""
    paused: bool = False
    """Whether the consumer asks for no messages until it is resumed."""

    def command(
        self, address: SegmentAddress, consumer_id: int, request_id: int, floor: MessageId | None
    ) -> pb.CommandSubscribe:
        """Return the SUBSCRIBE command for a segment whose messages up to `floor` are not wanted."""
        properties = dict(self.properties)
        if address.is_classic:
            properties[MANAGED] = "true"
        command = pb.CommandSubscribe(
            topic=address.topic,
            subscription=self.subscription,
            subType=self.kind,
            consumer_id=consumer_id,
            request_id=request_id,
            consumer_name=self.consumer_name,
            priority_level=self.priority,
            durable=self.durable,
            initialPosition=self.initial_position,
            metadata=pairs(properties),
            subscription_properties=pairs(self.subscription_properties),
            generation=self.generation,
        )
        if self.bucket_ranges:
            command.keySharedMeta.keySharedMode = pb.STICKY
            command.keySharedMeta.entryBucketDispatch = True
            for bucket in self.bucket_ranges:
                command.keySharedMeta.hashRanges.add(start=bucket.start, end=bucket.end)
        if floor is not None:
            command.start_message_id.ledgerId = floor.ledger & (2**64 - 1)
            command.start_message_id.entryId = floor.entry & (2**64 - 1)
        return command


def reader_attachment(
    consumer_name: str,
    rng: Random,
    properties: Mapping[str, str],
    start: Callable[[], MessageId],
    *,
    paused: bool,
) -> Attachment:
    """Return how a consumer that keeps its positions itself subscribes, each time under another name.

    Its previous attachment to the same segment may not have ended yet.
    """
    subscription = f"reader-{rng.getrandbits(40):010x}"
    return Attachment(
        subscription,
        pb.CommandSubscribe.Exclusive,
        consumer_name,
        durable=False,
        properties=properties,
        start=start,
        paused=paused,
    )


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """The arguments that `AsyncClient.subscribe_stream` and `subscribe_queue` share."""

    topic: TopicName
    subscription: str
    initial_position: InitialPosition
    name: str | None
    receiver_queue_size: int | None
    ack_group_s: float
    ack_receipts: bool
    subscription_properties: Mapping[str, str]
    properties: Mapping[str, str]
    bad_entries: BadEntries
    encryption: Decrypt | None
    interceptors: tuple[Interceptor, ...]
    dead_letter: DeadLetter | None

    def __post_init__(self) -> None:
        one_of("initial_position", self.initial_position, InitialPosition)
        dead = self.dead_letter
        if dead is not None and dead.topic is not None and parse_topic(dead.topic) == self.topic:
            raise InvalidConfigurationError(f"the dead letter topic must be another topic than {self.topic}")

    def attachment(
        self,
        kind: pb.CommandSubscribe.SubType.ValueType,
        consumer_name: str,
        *,
        priority: int = 0,
        paused: bool = False,
    ) -> Attachment:
        """Return how a consumer with these options subscribes to a segment."""
        earliest = self.initial_position == "earliest"
        return Attachment(
            self.subscription,
            kind,
            consumer_name,
            pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest,
            priority=priority,
            properties=self.properties,
            subscription_properties=self.subscription_properties,
            paused=paused,
        )


@dataclass(frozen=True, slots=True)
class StreamOptions(SubscriptionOptions):
    on_assignment: OnAssignment | None


@dataclass(frozen=True, slots=True)
class QueueOptions(SubscriptionOptions):
    ack_group_size: int
    priority: int
    processing_s: float | None
    redelivery: Backoff
    order: QueueOrder
    retry_topic: bool | str

    def __post_init__(self) -> None:
        # A dataclass with slots replaces the class, so that `super()` without arguments does not find it.
        SubscriptionOptions.__post_init__(self)
        one_of("order", self.order, QueueOrder)
        whole("priority", self.priority, most=INT32_MAX)
        of_kind("redelivery", self.redelivery, Backoff, "a Backoff")
        self._check_retry_topic()
        if self.order == "key":
            if self.retry_topic:
                raise InvalidConfigurationError('retry_topic needs order="none"')
            if self.processing_s is not None:
                raise InvalidConfigurationError('processing_timeout needs order="none"; give `run` a timeout')
            if self.priority:
                raise InvalidConfigurationError('priority needs order="none"')
        elif self.dead_letter is not None and self.dead_letter.policy != "skip":
            raise InvalidConfigurationError(f'the policy {self.dead_letter.policy} needs order="key"')

    def _check_retry_topic(self) -> None:
        name = self.retry_topic
        if not isinstance(name, (bool, str)):
            raise InvalidConfigurationError(f"retry_topic must be True, False or a name, not {name!r}")
        if isinstance(name, str) and parse_topic(name) == self.topic:
            raise InvalidConfigurationError(f"retry_topic must be another topic than {self.topic}")
        dead = None if self.dead_letter is None else self.dead_letter.topic
        if isinstance(name, str) and dead is not None and parse_topic(name) == parse_topic(dead):
            raise InvalidConfigurationError("retry_topic must be another topic than that of dead letters")
        if name and self.encryption is not None and self.dead_letter is None:
            # Messages that were encrypted must not end up readable in another topic.
            raise InvalidConfigurationError(
                "retries of a consumer that decrypts need DeadLetter(encryption=Encrypt(...))"
            )


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """The arguments of `AsyncClient.create_checkpoint_consumer`."""

    topic: TopicName
    start: Checkpoint
    group: str | None
    name: str | None
    receiver_queue_size: int | None
    properties: Mapping[str, str]
    fail_on_data_loss: bool
    bad_entries: BadEntries
    encryption: Decrypt | None
    interceptors: tuple[Interceptor, ...]
