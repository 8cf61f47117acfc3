"""The connection of a client and the parts of a broker, as logs and subscriptions see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message

from anabranch.broker.dispatch.keyed_strategies import ByLanes, KeyedStrategy, keyed_strategy
from anabranch.broker.serving.rates.rate_gates import Pauses
from anabranch.broker.serving.rates.throttles import Throttles, TopicThrottle
from anabranch.broker.serving.rates.usage import Usage
from anabranch.clock import Clock
from anabranch.config.broker import BrokerConfig
from anabranch.failpoints import Failpoints, NoFailpoints
from anabranch.ledger.storage import Entry, EntryPlaces, ReadableLog, SegmentLog
from anabranch.metadata.producer_epochs import TopicEpoch
from anabranch.model.drains import Ranges
from anabranch.model.names import TopicName
from anabranch.timings import TimeHistogram

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class ClientLink(Protocol):
    """One client connection. Writing to a closed one does nothing."""

    publish_bytes: int
    """Bytes of this connection that wait to become durable."""

    throttled: bool
    """Whether too many bytes wait, so that the connection is not read, or has little credit, for now."""

    @property
    def pauses(self) -> Pauses:
        """The reasons for which the connection is not read for now."""

    @property
    def address(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    @property
    def writable(self) -> bool:
        """Whether the peer takes more bytes; the link schedules its consumers when it does again."""

    @property
    def wants_entry_metadata(self) -> bool:
        """Whether deliveries carry broker time and message index."""

    @property
    def hears_end_of_topic(self) -> bool:
        """Whether REACHED_END_OF_TOPIC may be sent; some clients drop the connection on it."""

    def write(self, buffer: bytes) -> None: ...

    def deliver(self, buffers: Sequence[bytes]) -> None:
        """Write deliveries, which leave before the other work of this turn of the loop is done."""

    def send(self, command: Message) -> None:
        """Queue one command that carries no entry."""

    def resume_if_room(self) -> None:
        """Read from the connection again, or raise its credit, if few enough bytes wait to become durable."""

    def forget_producer(self, producer_id: int) -> None:
        """Drop the SENDs of a producer that is closed from this side."""

    def forget_consumer(self, consumer_id: int) -> None: ...

    async def alive(self) -> bool:
        """Return whether the peer answers a request for a sign of life."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Bounds of the read path, from the configuration."""

    batch_entries: int = 100
    batch_bytes: int = 5 * 2**20
    unacked_max: int = 200_000
    """Messages over all consumers of a shared subscription."""
    skips_damaged: bool = False
    """Whether delivery passes damaged entries instead of stopping there."""
    spill_bytes: int | None = None
    """Bytes that lanes may keep in the log; None if lanes are never spilled."""
    ordered_delays: bool = False
    """Whether Exclusive and Failover wait for delivery times too; only brokers of tests do."""
    keyed: KeyedStrategy = field(default_factory=ByLanes)
    """How far keyed subscriptions read past stuck slots."""

    @classmethod
    def from_config(cls, config: BrokerConfig, *, ordered_delays: bool = False) -> SubscriptionLimits:
        return cls(
            ordered_delays=ordered_delays,
            batch_entries=config.dispatch_max_entries,
            batch_bytes=config.dispatch_max_bytes,
            unacked_max=config.max_unacked_per_subscription or 2**62,
            skips_damaged=config.damaged_entries == "skip",
            spill_bytes=config.lane_retained_bytes if config.lane_spill else None,
            keyed=keyed_strategy(config),
        )


@dataclass(frozen=True, slots=True)
class LogContext:
    """The clock, the limits, the tasks and the stored epochs that all logs of a broker share."""

    clock: Clock
    spawn: Spawn
    later: Callable[[Callable[[], None]], None]
    """Call a function when it is its turn among those that could go on for long."""
    limits: SubscriptionLimits
    rate_window_s: float
    epoch_of: Callable[[TopicName], Awaitable[TopicEpoch]]
    """The last exclusive producer of a topic."""
    next_epoch: Callable[[TopicName, str], Awaitable[TopicEpoch]]
    """Count one more exclusive producer, of this role, durably."""
    dispatch_times: TimeHistogram = field(default_factory=TimeHistogram)
    throttles: Throttles = field(default_factory=Throttles)
    usage: Usage = field(default_factory=Usage)
    failpoints: Failpoints = field(default_factory=NoFailpoints)


class CompactedView(ReadableLog, Protocol):
    """A log as its compacted readers see it."""

    @property
    def extent(self) -> EntryPlaces: ...

    @property
    def first_ordinal(self) -> int: ...

    async def ordinal_at_time(self, time_ms: int) -> int:
        """Ordinal of the first entry that was stored at that time or later, or the end."""

    def kept_bits(self, entry: Entry) -> int | None:
        """Return the messages of an entry that a compaction kept, as bits; None if all of them."""


class SideStorage(Protocol):
    """The store of a log, for the side logs of its subscriptions; as `SegmentStorage`."""

    def get(self, name: str) -> SegmentLog | None: ...

    async def create(self, name: str) -> SegmentLog: ...

    async def delete(self, name: str) -> None: ...


class OpenedStore(NamedTuple):
    """The store in which a log lies."""

    number: int
    storage: SideStorage


class LogUse:
    """Values that a served log shares with its subscriptions; they do not refer to the log.

    A call that waits counts as a use until it ends, so no log is unloaded while a caller still needs it.
    """

    __slots__ = ("calls", "splits", "used_s")

    def __init__(self, now_s: float) -> None:
        self.calls = 0
        """Calls that wait for the disk, the leader or a client and then go on with the log."""
        self.used_s = now_s
        """When the log was last looked up, or had a client."""
        self.splits: tuple[int, ...] = ()
        """Bucket boundaries of the segment; set when a client attaches."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Keep the log loaded inside the block."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1


@dataclass(frozen=True, slots=True)
class SubscriptionContext:
    """The log and the callbacks that all subscriptions of one log share."""

    log: SegmentLog
    partition: int
    broker: LogContext
    throttle: TopicThrottle
    use: LogUse
    sides: SideStorage
    report_drained: Callable[[str, Ranges], None]
    """Called with the name of a subscription and the slots that it has drained."""
    compacted: Callable[[], CompactedView] | None = None
    """The log as compacted readers see it; None in tests without compaction."""
