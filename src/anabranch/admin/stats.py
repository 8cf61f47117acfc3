"""The counters of a served log as Pulsar's topic stats.

Fields that this broker does not measure have the default of their model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from anabranch.admin.lane_reports import lane_figures
from anabranch.admin.models.topics import (
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    MessageIdBody,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
)
from anabranch.broker.serving.acknowledging import backlog_messages
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.producer import ServedProducer
from anabranch.broker.serving.served_log import ServedLog
from anabranch.broker.serving.strategies import kind_name
from anabranch.broker.serving.subscription import Subscription
from anabranch.ledger.storage import SegmentLog
from anabranch.model.ids import Position
from anabranch.protocol.pb import pulsar_pb2 as pb

SUMMED = (
    "msg_rate_in",
    "msg_throughput_in",
    "msg_rate_out",
    "msg_throughput_out",
    "bytes_in_counter",
    "msg_in_counter",
    "bytes_out_counter",
    "msg_out_counter",
    "storage_size",
    "backlog_size",
    "publish_rate_limited_times",
    "waiting_publishers",
)
_LATEST = ("last_publish_time_stamp", "topic_creation_time_stamp")


class StatsRequest(NamedTuple):
    """The parts of the stats that a caller wants."""

    publishers: bool = True
    consumers: bool = True
    earliest_in_backlog: bool = False
    """Whether the time of the oldest message of each backlog is wanted."""


WHOLE_STATS = StatsRequest()


def topic_stats(
    segment: ServedLog, *, deduplication: bool, owner: str, wanted: StatsRequest = WHOLE_STATS
) -> TopicStats:
    """The stats of one classic log or segment."""
    messages_in, bytes_in, messages_out, bytes_out = segment.totals()
    rate_in, throughput_in, rate_out, throughput_out = segment.rates()
    subscriptions = {
        name: subscription_stats(sub, wanted) for name, sub in sorted(segment.subscriptions.items())
    }
    producers = sorted(segment.producers.attached.items()) if wanted.publishers else ()
    return TopicStats(
        msg_rate_in=rate_in,
        msg_throughput_in=throughput_in,
        msg_rate_out=rate_out,
        msg_throughput_out=throughput_out,
        bytes_in_counter=bytes_in,
        msg_in_counter=messages_in,
        bytes_out_counter=bytes_out,
        msg_out_counter=messages_out,
        average_msg_size=bytes_in / messages_in if messages_in else 0.0,
        storage_size=segment.log.extent.size_bytes + segment.spilled_bytes,
        backlog_size=max((sub.backlog_size for sub in subscriptions.values()), default=0),
        publishers=[publisher_stats(producer) for _, producer in producers],
        waiting_publishers=len(segment.producers.waiting),
        publish_rate_limited_times=segment.throttle.publish_holds,
        subscriptions=subscriptions,
        deduplication_status="Enabled" if deduplication else "Disabled",
        topic_epoch=segment.producers.topic_epoch,
        owner_broker=owner,
        last_publish_time_stamp=segment.log.extent.last_timestamp_ms,
        troubles=list(segment.troubles()),
    )


def add_up(parts: Sequence[TopicStats]) -> TopicStats:
    """The stats of a partitioned topic: the sums of the counters and rates of its partitions."""
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in SUMMED}
    latest: dict[str, Any] = {
        name: max((getattr(part, name) for part in parts), default=0) for name in _LATEST
    }
    return TopicStats(
        **sums,
        **latest,
        average_msg_size=sums["bytes_in_counter"] / sums["msg_in_counter"] if sums["msg_in_counter"] else 0.0,
        publishers=[publisher for part in parts for publisher in part.publishers],
        subscriptions=_joined_by_name(parts),
        deduplication_status=parts[0].deduplication_status if parts else "Disabled",
        troubles=[trouble for part in parts for trouble in part.troubles],
    )


def _joined_by_name(parts: Sequence[TopicStats]) -> dict[str, SubscriptionStats]:
    joined: dict[str, SubscriptionStats] = {}
    for part in parts:
        for name, subscription in part.subscriptions.items():
            known = joined.get(name)
            joined[name] = subscription if known is None else _joined(known, subscription)
    return joined


def _joined(one: SubscriptionStats, other: SubscriptionStats) -> SubscriptionStats:
    joined: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(other).items():
        known = getattr(one, name)
        if isinstance(value, list):
            joined[name] = [*known, *value]
        elif name == "earliest_msg_publish_time_in_backlog":
            joined[name] = min(known or value, value or known)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            joined[name] = max(known, value) if name.endswith("timestamp") else known + value
    return msgspec.structs.replace(one, **joined)


def publisher_stats(producer: ServedProducer) -> PublisherStats:
    return PublisherStats(
        access_mode=pb.ProducerAccessMode.Name(pb.ProducerAccessMode.ValueType(producer.options.mode)),
        producer_id=producer.id,
        producer_name=producer.name,
        average_msg_size=producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        address=producer.link.address,
        connected_since=_time(producer.options.connected_at_ms),
        client_version=producer.link.client_version,
        metadata=dict(producer.options.metadata),
    )


def subscription_stats(subscription: Subscription, wanted: StatsRequest = WHOLE_STATS) -> SubscriptionStats:
    consumers = list(subscription.consumers)
    counters = subscription.counters
    backlog = backlog_messages(subscription.log, subscription.cursor)
    lanes = lane_figures(subscription)
    return SubscriptionStats(
        bytes_out_counter=counters.bytes_out,
        msg_out_counter=counters.messages_out,
        msg_backlog=subscription.backlog,
        msg_backlog_no_delayed=subscription.backlog,
        backlog_messages=backlog,
        backlog_size=_backlog_bytes(subscription.log, backlog),
        earliest_msg_publish_time_in_backlog=_oldest_ms(subscription) if wanted.earliest_in_backlog else 0,
        lanes=lanes["lanes"],
        lane_entries=lanes["laneEntries"],
        lane_messages=lanes["laneMessages"],
        lane_bytes=lanes["laneBytes"],
        spilled_bytes=lanes["spilledBytes"],
        consumable_backlog=subscription.backlog - lanes["laneEntries"],
        consumable_backlog_messages=backlog - lanes["laneMessages"],
        unacked_messages=sum(consumer.unacked for consumer in consumers),
        type=kind_name(subscription.kind) if consumers else "",
        active_consumer_name=consumers[0].name if consumers else "",
        last_acked_timestamp=subscription.last_acked_ms,
        last_consumed_timestamp=max((consumer.last_sent_ms for consumer in consumers), default=0),
        entries_fetched=counters.entries_fetched,
        read_errors=subscription.source.errors,
        damaged_entries=counters.damaged_entries,
        damaged_messages=counters.damaged_messages,
        troubles=list(subscription.troubles),
        consumers=[consumer_stats(consumer) for consumer in consumers] if wanted.consumers else [],
        durable=subscription.durable,
        is_durable=subscription.durable,
        subscription_properties=dict(subscription.cursor.properties),
    )


def _oldest_ms(subscription: Subscription) -> int:
    """When the oldest message of the backlog was published; 0 without a backlog."""
    acks, extent = subscription.cursor.acks, subscription.log.extent
    oldest = acks.next_pending(max(acks.mark, extent.first_ordinal))
    return extent.time_of(oldest) or 0


def _backlog_bytes(log: SegmentLog, messages: int) -> int:
    stored = log.extent.next_index - log.extent.first_index
    return log.extent.size_bytes * messages // stored if stored else 0


def consumer_stats(consumer: ServedConsumer) -> ConsumerStats:
    entries = consumer.entries_out
    return ConsumerStats(
        consumer_name=consumer.name,
        available_permits=consumer.permits,
        unacked_messages=consumer.unacked,
        avg_messages_per_entry=round(consumer.messages_out / entries) if entries else 1,
        bytes_out_counter=consumer.bytes_out,
        msg_out_counter=consumer.messages_out,
        address=consumer.link.address,
        connected_since=_time(consumer.options.connected_at_ms),
        client_version=consumer.link.client_version,
        last_acked_timestamp=consumer.last_acked_ms,
        last_consumed_timestamp=consumer.last_sent_ms,
        key_hash_ranges=[f"[{part.start}, {part.end}]" for part in consumer.ranges],
        metadata=dict(consumer.options.metadata),
    )


def internal_stats(segment: ServedLog) -> InternalStats:
    """The ledgers of a log and the position of each cursor."""
    log = segment.log
    return InternalStats(
        entries_added_counter=log.extent.next_ordinal,
        number_of_entries=log.extent.next_ordinal - log.extent.first_ordinal,
        total_size=log.extent.size_bytes,
        last_confirmed_entry=_position_text(position_before(log, log.extent.next_ordinal)),
        state="Terminated" if log.sealed else "LedgerOpened",
        first_message_index=log.extent.first_index,
        next_message_index=log.extent.next_index,
        ledgers=list(_ledgers(log)),
        cursors={
            name: CursorStats(
                mark_delete_position=_position_text(position_before(log, cursor.acks.mark)),
                messages_consumed_counter=cursor.acks.mark,
                number_of_entries_since_first_not_acked_message=log.extent.next_ordinal - cursor.acks.mark,
                total_non_contiguous_deleted_messages_range=cursor.acks.holes,
                properties=dict(cursor.properties),
            )
            for name, cursor in sorted(log.cursors.items())
        },
    )


def _ledgers(log: SegmentLog) -> Iterator[LedgerStats]:
    extent, first = log.extent, log.extent.first_ordinal
    while first < extent.next_ordinal:
        ledger = extent.position_of(first).ledger
        end = extent.ordinal_of(Position(ledger + 1, 0))
        yield LedgerStats(ledger_id=ledger, entries=end - first, size=extent.bytes_between(first, end))
        first = end


def position_before(log: SegmentLog, ordinal: int) -> Position:
    """The position of the entry before an ordinal; entry -1 if the log has no entry before it."""
    if ordinal <= log.extent.first_ordinal:
        return Position(log.extent.position_of(log.extent.first_ordinal).ledger, -1)
    return log.extent.position_of(ordinal - 1)


def _position_text(position: Position) -> str:
    return f"{position.ledger}:{position.entry}"


def message_id(position: Position, partition: int = -1) -> MessageIdBody:
    """A classic message id as a body."""
    return MessageIdBody(ledger_id=position.ledger, entry_id=position.entry, partition_index=partition)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
