"""The counters of a served log as Pulsar's topic stats.

Fields that this broker does not measure have the default of their model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from anabranch.broker.broker import Broker
from anabranch.broker.browsing.lanes import lane_figures
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.log import client_rates
from anabranch.broker.serving.log.live_log import LiveLog
from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.reading.strategies import kind_name
from anabranch.broker.serving.subscription.acknowledging import backlog_messages
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.ledger.storage import SegmentLog
from anabranch.model.ids import Position
from anabranch.model.names import TopicName
from anabranch.model.reports.logs import (
    CompactionStats,
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    MessageIdBody,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
)
from anabranch.protocol.pb import pulsar_pb2 as pb


class StatsRequest(NamedTuple):
    """The parts of the stats that a caller wants."""

    publishers: bool = True
    consumers: bool = True
    earliest_in_backlog: bool = False
    """Whether the time of the oldest message of each backlog is wanted."""


WHOLE_STATS = StatsRequest()


class LogFacts(NamedTuple):
    """Facts that the owner of a log adds to its counters."""

    deduplication: bool
    owner: str
    now_ms: int


def facts_of(broker: Broker, name: TopicName) -> LogFacts:
    """Return the facts about a log that this broker owns."""
    dedup = not name.is_live and broker.quotas.book.policies.of(name).deduplicate
    return LogFacts(dedup, urlsplit(broker.record.web_url).netloc, broker.clock.wall_ms())


def topic_stats(segment: ServedLog, facts: LogFacts, wanted: StatsRequest = WHOLE_STATS) -> TopicStats:
    """Return the stats of one classic log or segment."""
    now_s, window_s = asyncio.get_running_loop().time(), segment.rate_window_s
    messages_in, bytes_in, messages_out, bytes_out = segment.totals()
    rate_in, throughput_in, rate_out, throughput_out = segment.rates()
    subscriptions = {
        name: subscription_stats(sub, wanted, now_s, window_s)
        for name, sub in sorted(segment.subscriptions.items())
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
        msg_drop_rate=segment.drop_rate if isinstance(segment, LiveLog) else 0.0,
        msg_drop_counter=segment.messages_dropped if isinstance(segment, LiveLog) else 0,
        average_msg_size=bytes_in / messages_in if messages_in else 0.0,
        msg_chunk_published=segment.producers.chunked,
        storage_size=segment.log.extent.size_bytes + segment.spilled_bytes,
        backlog_size=max((sub.backlog_size for sub in subscriptions.values()), default=0),
        oldest_backlog_message_age_seconds=_oldest_age_s(segment, facts.now_ms),
        publishers=[publisher_stats(producer, now_s, window_s) for _, producer in producers],
        waiting_publishers=len(segment.producers.waiting),
        publish_rate_limited_times=segment.throttle.publish_waits,
        subscriptions=subscriptions,
        deduplication_status="Enabled" if facts.deduplication else "Disabled",
        topic_epoch=segment.producers.topic_epoch,
        owner_broker=facts.owner,
        last_publish_time_stamp=segment.log.extent.last_timestamp_ms,
        compaction=compaction_stats(segment),
        troubles=list(segment.troubles()),
    )


def publisher_stats(producer: ServedProducer, now_s: float, window_s: float) -> PublisherStats:
    rates = client_rates.producer_rates(producer, now_s, window_s)
    return PublisherStats(
        msg_rate_in=rates.messages,
        msg_throughput_in=rates.size_bytes,
        chunked_message_rate=rates.chunks,
        access_mode=pb.ProducerAccessMode.Name(pb.ProducerAccessMode.ValueType(producer.options.mode)),
        producer_id=producer.id,
        producer_name=producer.name,
        average_msg_size=producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        address=producer.link.address,
        connected_since=_time(producer.options.connected_at_ms),
        client_version=producer.link.client_version,
        metadata=dict(producer.options.metadata),
    )


def subscription_stats(
    subscription: Subscription, wanted: StatsRequest, now_s: float, window_s: float
) -> SubscriptionStats:
    consumers, reading = list(subscription.consumers), subscription.reading
    counters = subscription.counters
    backlog = backlog_messages(subscription.log, subscription.cursor)
    lanes = lane_figures(subscription)
    return SubscriptionStats(
        **_rates_and_times(subscription, now_s, window_s),
        bytes_out_counter=counters.bytes_out,
        msg_out_counter=counters.messages_out,
        msg_drop_counter=counters.messages_dropped,
        msg_backlog=subscription.backlog,
        msg_backlog_no_delayed=max(subscription.backlog - reading.delayed, 0),
        msg_delayed=reading.delayed,
        msg_in_replay=reading.replayed,
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
        blocked_subscription_on_unacked_msgs=reading.blocked,
        type=kind_name(subscription.kind) if counters.consumers_seen else "",
        active_consumer_name=active.name if (active := reading.sharing.active) else "",
        entries_fetched=counters.entries_fetched,
        read_errors=subscription.source.errors,
        damaged_entries=counters.damaged_entries,
        damaged_messages=counters.damaged_messages,
        troubles=list(subscription.troubles),
        consumers=[consumer_stats(one, now_s, window_s) for one in consumers if wanted.consumers],
        key_shared_mode=reading.sharing.key_shared_mode,
        **dict.fromkeys(("durable", "is_durable"), subscription.durable),
        subscription_properties=dict(subscription.cursor.properties),
    )


def _rates_and_times(subscription: Subscription, now_s: float, window_s: float) -> dict[str, Any]:
    rates = client_rates.subscription_rates(subscription, now_s, window_s)
    counters, sent_ms = subscription.counters, [one.last_sent_ms for one in subscription.consumers]
    return {
        "msg_rate_out": rates.messages,
        "msg_throughput_out": rates.size_bytes,
        "msg_rate_redeliver": rates.redelivered,
        "message_ack_rate": rates.acked,
        "msg_rate_expired": rates.expired,
        "last_acked_timestamp": subscription.last_acked_ms,
        "last_consumed_timestamp": max(counters.sent_ms, *sent_ms, 0),
        "last_consumed_flow_timestamp": counters.flow_ms,
        "last_mark_delete_advanced_timestamp": counters.marked_ms,
        "last_expire_timestamp": counters.expired_ms,
    }


def compaction_stats(segment: ServedLog) -> CompactionStats:
    """Return the last compactions of a log; a log that was never compacted makes nothing for this answer."""
    if "compacting" not in vars(segment):
        return CompactionStats()
    compacting = segment.compacting
    return CompactionStats(
        last_compaction_removed_event_count=compacting.removed,
        last_compaction_succeed_timestamp=compacting.succeeded_ms,
        last_compaction_failed_timestamp=compacting.failed_ms,
        last_compaction_duration_time_in_mills=compacting.took_ms,
    )


def _oldest_age_s(segment: ServedLog, now_ms: int) -> int:
    durable = (one for one in segment.subscriptions.values() if one.durable and one.backlog)
    oldest_ms = min((found for one in durable if (found := _oldest_ms(one))), default=None)
    return -1 if oldest_ms is None else max(now_ms - oldest_ms, 0) // 1000


def _oldest_ms(subscription: Subscription) -> int:
    """Return when the oldest message of the backlog was published; 0 without a backlog."""
    acks, extent = subscription.cursor.acks, subscription.log.extent
    oldest = acks.next_pending(max(acks.mark, extent.first_ordinal))
    return extent.time_of(oldest) or 0


def _backlog_bytes(log: SegmentLog, messages: int) -> int:
    stored = log.extent.next_index - log.extent.first_index
    return log.extent.size_bytes * messages // stored if stored else 0


def consumer_stats(consumer: ServedConsumer, now_s: float, window_s: float) -> ConsumerStats:
    entries, rates = consumer.entries_out, client_rates.consumer_rates(consumer, now_s, window_s)
    return ConsumerStats(
        msg_rate_out=rates.messages,
        msg_throughput_out=rates.size_bytes,
        msg_rate_redeliver=rates.redelivered,
        message_ack_rate=rates.acked,
        blocked_consumer_on_unacked_msgs=consumer.blocked,
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
    """Return the ledgers of a log and the position of each cursor."""
    log = segment.log
    return InternalStats(
        entries_added_counter=segment.entries_in if segment.name.is_live else log.extent.next_ordinal,
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
    """Return the position of the entry before an ordinal; entry -1 if the log has no entry before it."""
    if ordinal <= log.extent.first_ordinal:
        return Position(log.extent.position_of(log.extent.first_ordinal).ledger, -1)
    return log.extent.position_of(ordinal - 1)


def _position_text(position: Position) -> str:
    return f"{position.ledger}:{position.entry}"


def message_id(position: Position, partition: int = -1) -> MessageIdBody:
    """Return a classic message id as a body."""
    return MessageIdBody(ledger_id=position.ledger, entry_id=position.entry, partition_index=partition)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
