"""`/metrics`: the metrics of one broker in the text format of Prometheus.

Counters start at 0 with the process, as Prometheus expects. Segments are added up by topic, so that a topic
that splits a thousand times does not leave a thousand series behind; only the metrics that PIP-486 defines
per segment have a series for each segment of the layout. A broker reports the segments it serves and the
topics it leads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from starlette.responses import Response

from anabranch.admin.calls import Call, route
from anabranch.broker.broker import Broker
from anabranch.broker.serving.keyed_reading import KeyedReading
from anabranch.broker.serving.served_log import ServedLog

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Family:
    """One metric with its help text and a value for each set of labels."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    values: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def add(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        self.values[key] = self.values.get(key, 0) + value


def render(families: Iterable[Family]) -> str:
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.about}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.values.items():
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            lines.append(
                f"{family.name}{{{inside}}} {value:.17g}" if inside else f"{family.name} {value:.17g}"
            )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


async def metrics(call: Call) -> Response:
    return Response(render(collect(call.broker)), headers={"content-type": CONTENT_TYPE})


def collect(broker: Broker) -> list[Family]:
    """All metrics of this broker, with their values now."""
    served = broker.logs.served
    return [
        *_traffic(served),
        *_faults(served),
        *_layouts(broker),
        *_buckets(broker, served),
        *_process(broker),
    ]


def _traffic(segments: Iterable[ServedLog]) -> list[Family]:
    totals = [
        Family("anabranch_messages_in_total", "counter", "Messages stored."),
        Family("anabranch_bytes_in_total", "counter", "Bytes of entries stored."),
        Family("anabranch_messages_out_total", "counter", "Messages delivered, again deliveries included."),
        Family("anabranch_bytes_out_total", "counter", "Bytes of entries delivered."),
    ]
    rates = [
        Family("anabranch_message_rate_in", "gauge", "Messages stored per second."),
        Family("anabranch_byte_rate_in", "gauge", "Bytes stored per second."),
        Family("anabranch_message_rate_out", "gauge", "Messages delivered per second."),
        Family("anabranch_byte_rate_out", "gauge", "Bytes delivered per second."),
    ]
    stored = Family("anabranch_storage_bytes", "gauge", "Bytes that entries take on disk.")
    producers = Family("anabranch_producers", "gauge", "Connected producers, counted on each segment.")
    consumers = Family("anabranch_consumers", "gauge", "Connected consumers, counted on each segment.")
    backlog = Family("anabranch_backlog_messages", "gauge", "Messages not acknowledged yet.")
    unacked = Family("anabranch_unacked_messages", "gauge", "Messages delivered and not acknowledged yet.")
    for segment in segments:
        topic = str(segment.name.topic if segment.name.is_segment else segment.name)
        for family, value in zip(totals, segment.totals(), strict=True):
            family.add(value, topic=topic)
        for family, rate in zip(rates, segment.rates(), strict=True):
            family.add(rate, topic=topic)
        stored.add(segment.log.extent.size_bytes, topic=topic)
        producers.add(len(segment.producers.attached), topic=topic)
        for name, subscription in segment.subscriptions.items():
            if subscription.durable:
                backlog.add(subscription.backlog_messages, topic=topic, subscription=name)
            consumers.add(len(subscription.consumers), topic=topic, subscription=name)
            waiting = sum(consumer.unacked for consumer in subscription.consumers)
            unacked.add(waiting, topic=topic, subscription=name)
    return [*totals, *rates, stored, producers, consumers, backlog, unacked]


def _faults(segments: Iterable[ServedLog]) -> list[Family]:
    """Read errors and damage; a subscription appears with its first one."""
    errors = Family("anabranch_read_errors_total", "counter", "Reads that failed and were repeated.")
    damaged = Family(
        "anabranch_damaged_entries_total", "counter", "Damaged entries that were passed without delivery."
    )
    halted = Family("anabranch_delivery_halted", "gauge", "1 while entries cannot be read for delivery.")
    for segment in segments:
        topic = str(segment.name.topic if segment.name.is_segment else segment.name)
        for name, subscription in segment.subscriptions.items():
            if subscription.source.errors or subscription.troubles:
                errors.add(subscription.source.errors, topic=topic, subscription=name)
                damaged.add(subscription.counters.damaged_entries, topic=topic, subscription=name)
                halted.add(int(subscription.source.trouble is not None), topic=topic, subscription=name)
    return [errors, damaged, halted]


def _layouts(broker: Broker) -> list[Family]:
    epoch = Family("anabranch_layout_epoch", "gauge", "Epoch of the topic's layout; grows with each change.")
    segments = Family("anabranch_segments", "gauge", "Segments of the topic's layout.")
    for name, layout in broker.controllers.layouts().items():
        epoch.add(layout.epoch, topic=str(name))
        segments.add(len(layout.active), topic=str(name), state="active")
        segments.add(len(layout.sealed), topic=str(name), state="sealed")
    return [epoch, segments]


def _buckets(broker: Broker, served: Iterable[ServedLog]) -> list[Family]:
    """The metrics of PIP-483 and PIP-486, with Pulsar's prefix."""
    prefix = "pulsar_scalable_topic"
    active = Family(f"{prefix}_active_segments", "gauge", "Active segments.")
    buckets = Family(f"{prefix}_segment_buckets", "gauge", "Buckets of the segment.")
    done = {
        "splits": Family(f"{prefix}_auto_splits_total", "counter", "Splits made by auto-scaling."),
        "merges": Family(f"{prefix}_auto_merges_total", "counter", "Merges made by auto-scaling."),
        "splits_suppressed": Family(
            f"{prefix}_split_suppressed_max_segments_total",
            "counter",
            "Looks whose split maxSegments forbade.",
        ),
        "merges_suppressed": Family(
            f"{prefix}_merge_suppressed_max_depth_total", "counter", "Looks whose merge maxDagDepth forbade."
        ),
        "rebuckets": Family(
            f"{prefix}_rebucket_rollovers_total", "counter", "Segments replaced to change their buckets."
        ),
    }
    for name, layout in broker.controllers.layouts().items():
        active.add(len(layout.active), topic=str(name))
        for segment in layout.segments.values():
            buckets.add(segment.bucket_count, topic=str(name), segment=str(segment.id))
    for name, tally in broker.controllers.tallies().items():
        for field_name, family in done.items():
            family.add(getattr(tally, field_name), topic=str(name))
    return [active, buckets, *done.values(), *_sharing(served)]


def _sharing(served: Iterable[ServedLog]) -> list[Family]:
    prefix = "pulsar_scalable_topic_segment"
    sharers = Family(f"{prefix}_sharing_consumers", "gauge", "Consumers that share the segment by buckets.")
    moves = Family(
        f"{prefix}_bucket_reassignments_total", "counter", "Buckets that went from one consumer to another."
    )
    withheld = Family(
        f"{prefix}_buckets_withheld", "gauge", "Buckets held back until their former consumer acknowledges."
    )
    draining = Family(
        f"{prefix}_drain_mode", "gauge", "1 while consumers share a sealed segment to drain it, else 0."
    )
    entries = Family(f"{prefix}_entries_in_total", "counter", "Entries stored; each lies within one bucket.")
    messages = Family(f"{prefix}_messages_in_total", "counter", "Messages stored in them.")
    for segment in served:
        if segment.name.segment is None:
            continue
        where = {"topic": str(segment.name.topic), "segment": str(segment.name.segment.id)}
        entries.add(segment.entries_in, **where)
        messages.add(segment.totals()[0], **where)
        for name, subscription in segment.subscriptions.items():
            reading = subscription.reading
            if (
                not subscription.durable
                or not isinstance(reading, KeyedReading)
                or reading.boundaries is None
            ):
                continue
            count = len(subscription.consumers)
            shared_drain = segment.log.sealed and count > 1 and not subscription.done
            sharers.add(count, subscription=name, **where)
            moves.add(subscription.counters.bucket_moves, subscription=name, **where)
            withheld.add(reading.dispatch.withheld, subscription=name, **where)
            draining.add(int(shared_drain), subscription=name, **where)
    return [sharers, moves, withheld, draining, entries, messages]


def _process(broker: Broker) -> list[Family]:
    connections = Family("anabranch_connections", "gauge", "Open client connections.")
    connections.add(len(broker.connections))
    memory = Family("process_resident_memory_bytes", "gauge", "Resident memory of the broker.")
    resident = _resident_bytes()
    if resident is not None:
        memory.add(resident)
    return [connections, memory]


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return None


ROUTES = [route("GET", "/metrics", metrics), route("GET", "/metrics/", metrics)]
