"""The figures of topics, subscriptions and segments, collected from the live state in slices.

Counters start at 0 with the process, as Prometheus expects. Segments are added up by topic, so that a topic
that splits a thousand times does not leave a thousand series behind; only the metrics that PIP-486 defines
per segment have a series for each segment of the layout. A broker reports the logs in its stores and the
topics it leads. Without figures of topics, everything is added up by namespace.
"""

from __future__ import annotations

from typing import Final

from anabranch.admin.metrics.tables import Column, Table, label
from anabranch.aio import in_slices
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.side_logs import spilled_bytes, whole_backlog
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.serving.lanes.lane_totals import lane_totals
from anabranch.broker.serving.log.live_log import LiveLog
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.acknowledging import backlog_messages, backlog_of
from anabranch.broker.serving.subscription.kept import KeptLog
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.controller.service import TopicSummary
from anabranch.ledger.storage import SegmentLog
from anabranch.model.names import TopicName

LOGS_AT_ONCE: Final = 50
"""Logs looked at in one slice, which takes about a millisecond."""

_PIP: Final = "pulsar_scalable_topic"

_TRAFFIC = (
    Column("anabranch_messages_in_total", "counter", "Messages stored."),
    Column("anabranch_bytes_in_total", "counter", "Bytes of entries stored."),
    Column("anabranch_messages_out_total", "counter", "Messages delivered, again deliveries included."),
    Column("anabranch_bytes_out_total", "counter", "Bytes of entries delivered."),
    Column("anabranch_message_rate_in", "gauge", "Messages stored per second."),
    Column("anabranch_byte_rate_in", "gauge", "Bytes stored per second."),
    Column("anabranch_message_rate_out", "gauge", "Messages delivered per second."),
    Column("anabranch_byte_rate_out", "gauge", "Bytes delivered per second."),
    Column("anabranch_storage_bytes", "gauge", "Bytes that entries take on disk."),
    Column("anabranch_producers", "gauge", "Connected producers, counted on each segment."),
)
_SUBSCRIPTIONS = (
    Column("anabranch_backlog_messages", "gauge", "Messages not acknowledged yet."),
    Column("anabranch_consumers", "gauge", "Connected consumers, counted on each segment."),
    Column("anabranch_unacked_messages", "gauge", "Messages delivered and not acknowledged yet."),
)
_DROPS = (
    Column(
        "anabranch_messages_dropped_total",
        "counter",
        "Messages of non-persistent topics that were not delivered, counted for each subscription.",
    ),
)
_LANES = (
    Column("anabranch_lanes", "gauge", "Lanes: keys or buckets that wait while others are delivered."),
    Column("anabranch_lane_messages", "gauge", "Messages that wait in lanes, about."),
    Column("anabranch_lane_bytes", "gauge", "Stored bytes of the entries that wait in lanes, about."),
    Column("anabranch_lane_spilled_bytes", "gauge", "Bytes of side logs, to which lanes were spilled."),
    Column("anabranch_backlog_consumable_messages", "gauge", "Messages not acknowledged and in no lane."),
    Column(
        "anabranch_lane_fallbacks_total",
        "counter",
        "How often a bound of lanes was reached, and no entries were read past stuck keys.",
    ),
    Column(
        "anabranch_relief_moves_total", "counter", "Keys or buckets moved for a while to relieve consumers."
    ),
)
_FAULTS = (
    Column("anabranch_read_errors_total", "counter", "Reads that failed and were repeated."),
    Column(
        "anabranch_damaged_entries_total", "counter", "Damaged entries that were passed without delivery."
    ),
    Column("anabranch_delivery_halted", "gauge", "1 while entries cannot be read for delivery."),
)
_LAYOUTS = (
    Column("anabranch_layout_epoch", "gauge", "Epoch of the topic's layout; grows with each change."),
    Column(f"{_PIP}_active_segments", "gauge", "Active segments."),
    Column(f"{_PIP}_auto_splits_total", "counter", "Splits made by auto-scaling."),
    Column(f"{_PIP}_auto_merges_total", "counter", "Merges made by auto-scaling."),
    Column(
        f"{_PIP}_split_suppressed_max_segments_total", "counter", "Looks whose split maxSegments forbade."
    ),
    Column(f"{_PIP}_merge_suppressed_max_depth_total", "counter", "Looks whose merge maxDagDepth forbade."),
    Column(f"{_PIP}_rebucket_rollovers_total", "counter", "Segments replaced to change their buckets."),
)
_STATES = (Column("anabranch_segments", "gauge", "Segments of the topic's layout."),)
_BUCKETS = (Column(f"{_PIP}_segment_buckets", "gauge", "Buckets of the segment."),)
_ENTRIES = (
    Column(f"{_PIP}_segment_entries_in_total", "counter", "Entries stored; each lies within one bucket."),
    Column(f"{_PIP}_segment_messages_in_total", "counter", "Messages stored in them."),
)
_SHARING = (
    Column(f"{_PIP}_segment_sharing_consumers", "gauge", "Consumers that share the segment by buckets."),
    Column(
        f"{_PIP}_segment_bucket_reassignments_total",
        "counter",
        "Buckets that went from one consumer to another.",
    ),
    Column(
        f"{_PIP}_segment_buckets_withheld",
        "gauge",
        "Buckets held back until their former consumer acknowledges.",
    ),
    Column(
        f"{_PIP}_segment_drain_mode",
        "gauge",
        "1 while consumers share a sealed segment to drain it, else 0.",
    ),
)
_NOTHING: Final = (0, 0, 0, 0)


class TopicTables:
    """The tables of one scrape; `by_topic` False adds all figures of a namespace up."""

    def __init__(self, *, by_topic: bool) -> None:
        self._by_topic = by_topic
        self._traffic = Table(*_TRAFFIC)
        self._subscriptions = Table(*_SUBSCRIPTIONS)
        self._drops = Table(*_DROPS)
        self._lanes = Table(*_LANES)
        self._faults = Table(*_FAULTS)
        self._layouts = Table(*_LAYOUTS)
        self._states = Table(*_STATES)
        self._buckets = Table(*_BUCKETS)
        self._entries = Table(*_ENTRIES)
        self._sharing = Table(*_SHARING)
        self.all = (
            self._traffic,
            self._subscriptions,
            self._drops,
            self._lanes,
            self._faults,
            self._layouts,
            self._states,
            self._buckets,
            self._entries,
            self._sharing,
        )

    def add_stored(self, name: TopicName, log: SegmentLog, kept: KeptLog | None, stores: Stores) -> None:
        """Add a log that is not loaded; `kept` are its counters if clients used it before."""
        topic = self._topic(name)
        totals = _NOTHING if kept is None else kept.totals()
        size_bytes = log.extent.size_bytes + spilled_bytes(stores, log)
        self._traffic.add(topic, *totals, *_NOTHING, size_bytes, 0)
        if kept is not None:
            self._add_kept(name, log, kept)
        for subscription, cursor in log.cursors.items():
            if subscription != COMPACTION:
                labels = self._within(topic, subscription=subscription)
                self._subscriptions.add(labels, whole_backlog(stores, log, cursor), 0, 0)

    def _add_kept(self, name: TopicName, log: SegmentLog, kept: KeptLog) -> None:
        topic = self._topic(name)
        if name.segment is not None:
            entries = log.extent.next_ordinal - kept.first_ordinal
            self._entries.add(self._within(topic, segment=name.segment.id), entries, kept.messages_in)
        for subscription, found in kept.subscriptions:
            if found.read_errors:
                self._faults.add(self._within(topic, subscription=subscription), found.read_errors, 0, 0)

    def add_served(self, log: ServedLog) -> None:
        topic, totals = self._topic(log.name), log.totals()
        size_bytes = log.log.extent.size_bytes + log.spilled_bytes
        self._traffic.add(topic, *totals, *log.rates(), size_bytes, len(log.producers.attached))
        if log.name.segment is not None:
            segment = self._within(topic, segment=log.name.segment.id)
            self._entries.add(segment, log.entries_in, totals[0])
        if isinstance(log, LiveLog):
            self._drops.add(topic, log.messages_dropped)
        for name, subscription in log.subscriptions.items():
            self._add_subscription(log, subscription, self._within(topic, subscription=name))

    def _add_subscription(self, log: ServedLog, subscription: Subscription, labels: str) -> None:
        consumers, source, reading = subscription.consumers, subscription.source, subscription.reading
        backlog = backlog_messages(log.log, subscription.cursor) if subscription.durable else None
        unacked = sum(consumer.unacked for consumer in consumers)
        self._subscriptions.add(labels, backlog, len(consumers), unacked)
        if reading.lanes is not None:
            lanes = lane_totals(reading.lanes)
            left = backlog_of(log.log, subscription.cursor, lanes)
            moves = subscription.counters.relief_moves
            bounds = subscription.counters.lane_bounds
            spilled = subscription.backing.spilled_bytes
            sizes = lanes.lanes, left.in_lanes, lanes.size_bytes, spilled
            self._lanes.add(labels, *sizes, left.consumable, bounds, moves)
        # A subscription appears with its first fault.
        if source.errors or subscription.troubles:
            damaged = subscription.counters.damaged_entries
            self._faults.add(labels, source.errors, damaged, int(source.trouble is not None))
        if (
            log.name.segment is not None
            and subscription.durable
            and reading.lanes is not None
            and reading.lanes.boundaries is not None
        ):
            draining = log.log.sealed and len(consumers) > 1 and not subscription.done
            self._sharing.add(
                self._within(labels, segment=log.name.segment.id),
                len(consumers),
                subscription.counters.bucket_moves,
                reading.lanes.dispatch.handovers,
                int(draining),
            )

    def add_led(self, led: TopicSummary) -> None:
        topic, tally = self._topic(led.name), led.tally
        self._layouts.add(
            topic,
            led.epoch,
            led.active,
            tally.splits,
            tally.merges,
            tally.splits_suppressed,
            tally.merges_suppressed,
            tally.rebuckets,
        )
        states = {"active": led.active, "sealed": len(led.buckets) - led.active}
        for state, count in states.items():
            self._states.add(f"{topic},{label('state', state)}", count)
        for segment, buckets in led.buckets.items():
            self._buckets.add(self._within(topic, segment=segment), buckets)

    def _topic(self, name: TopicName) -> str:
        if not self._by_topic:
            return label("namespace", name.namespace_name)
        return label("topic", name.topic if name.is_segment else name)

    def _within(self, outer: str, **inner: object) -> str:
        """Return the labels of a part of a topic; those of its namespace without figures of topics."""
        return f"{outer},{','.join(label(*one) for one in inner.items())}" if self._by_topic else outer


async def collect_topics(broker: Broker) -> TopicTables:
    """Return the figures of all topics now; other tasks run between two slices of them."""
    tables = TopicTables(by_topic=broker.config.topic_metrics)
    async for text in in_slices(broker.stores.names(), LOGS_AT_ONCE):
        name, stored = TopicName.parse(text), broker.stores.get(text)
        served = broker.logs.loaded(name)
        if served is not None:
            tables.add_served(served)
        elif stored is not None:
            tables.add_stored(name, stored, broker.logs.kept(name), broker.stores)
    live = [log for log in broker.logs.served if log.name.is_live]
    async for served in in_slices(live, LOGS_AT_ONCE):
        tables.add_served(served)
    async for led in in_slices(broker.controllers.summaries(), LOGS_AT_ONCE):
        tables.add_led(led)
    return tables
