"""The counters of a served log in the JSON of Pulsar's topic stats.

Fields that this broker does not measure are left out; clients use a default for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from anabranch.admin.lane_reports import lane_figures
from anabranch.broker.serving.acknowledging import backlog_messages
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.producer import ServedProducer
from anabranch.broker.serving.served_log import ServedLog
from anabranch.broker.serving.strategies import kind_name
from anabranch.broker.serving.subscription import Subscription
from anabranch.ledger.storage import SegmentLog
from anabranch.model.ids import Position
from anabranch.protocol.pb import pulsar_pb2 as pb

Json = dict[str, Any]

SUMMED = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "storageSize",
    "backlogSize",
    "publishRateLimitedTimes",
)


def topic_stats(segment: ServedLog, *, deduplication: bool, owner: str) -> Json:
    """The stats of one classic log or segment."""
    messages_in, bytes_in, messages_out, bytes_out = segment.totals()
    rate_in, throughput_in, rate_out, throughput_out = segment.rates()
    subscriptions = {name: subscription_stats(sub) for name, sub in sorted(segment.subscriptions.items())}
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": rate_out,
        "msgThroughputOut": throughput_out,
        "bytesInCounter": bytes_in,
        "msgInCounter": messages_in,
        "bytesOutCounter": bytes_out,
        "msgOutCounter": messages_out,
        "averageMsgSize": bytes_in / messages_in if messages_in else 0.0,
        "storageSize": segment.log.extent.size_bytes + segment.spilled_bytes,
        "backlogSize": max((sub["backlogSize"] for sub in subscriptions.values()), default=0),
        "publishers": [
            publisher_stats(producer) for _, producer in sorted(segment.producers.attached.items())
        ],
        "waitingPublishers": len(segment.producers.waiting),
        "publishRateLimitedTimes": segment.throttle.publish_holds,
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if deduplication else "Disabled",
        "topicEpoch": segment.producers.topic_epoch,
        "ownerBroker": owner,
        "lastPublishTimeStamp": segment.log.extent.last_timestamp_ms,
        "troubles": list(segment.troubles()),
    }


def add_up(parts: Iterable[Json]) -> Json:
    """The stats of a partitioned topic: the sums of the counters and rates of its partitions."""
    whole: Json = dict.fromkeys(SUMMED, 0)
    whole.update(publishers=[], subscriptions={}, replication={}, waitingPublishers=0, troubles=[])
    for part in parts:
        for name in SUMMED:
            whole[name] += part[name]
        whole["waitingPublishers"] += part["waitingPublishers"]
        whole["publishers"] += part["publishers"]
        whole["troubles"] += part["troubles"]
        for name, subscription in part["subscriptions"].items():
            known = whole["subscriptions"].get(name)
            whole["subscriptions"][name] = subscription if known is None else _joined(known, subscription)
    whole["averageMsgSize"] = (
        whole["bytesInCounter"] / whole["msgInCounter"] if whole["msgInCounter"] else 0.0
    )
    return whole


def _joined(one: Json, other: Json) -> Json:
    joined = dict(one)
    for name, value in other.items():
        if isinstance(value, list):
            joined[name] = [*one[name], *value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            joined[name] = max(one[name], value) if name.endswith("Timestamp") else one[name] + value
    return joined


def publisher_stats(producer: ServedProducer) -> Json:
    return {
        "accessMode": pb.ProducerAccessMode.Name(pb.ProducerAccessMode.ValueType(producer.options.mode)),
        "producerId": producer.id,
        "producerName": producer.name,
        "averageMsgSize": producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        "supportsPartialProducer": False,
        "address": producer.link.address,
        "connectedSince": _time(producer.options.connected_at_ms),
        "clientVersion": producer.link.client_version,
        "metadata": producer.options.metadata,
    }


def subscription_stats(subscription: Subscription) -> Json:
    consumers = list(subscription.consumers)
    counters = subscription.counters
    backlog = backlog_messages(subscription.log, subscription.cursor)
    lanes = lane_figures(subscription)
    return {
        "bytesOutCounter": counters.bytes_out,
        "msgOutCounter": counters.messages_out,
        "msgBacklog": subscription.backlog,
        "msgBacklogNoDelayed": subscription.backlog,
        "backlogMessages": backlog,
        "backlogSize": _backlog_bytes(subscription.log, backlog),
        **lanes,
        "consumableBacklog": subscription.backlog - lanes["laneEntries"],
        "consumableBacklogMessages": backlog - lanes["laneMessages"],
        "unackedMessages": sum(consumer.unacked for consumer in consumers),
        "type": kind_name(subscription.kind) if consumers else "",
        "activeConsumerName": consumers[0].name if consumers else "",
        "lastAckedTimestamp": subscription.last_acked_ms,
        "entriesFetched": counters.entries_fetched,
        "readErrors": subscription.source.errors,
        "damagedEntries": counters.damaged_entries,
        "damagedMessages": counters.damaged_messages,
        "troubles": subscription.troubles,
        "consumers": [consumer_stats(consumer) for consumer in consumers],
        "durable": subscription.durable,
        "isDurable": subscription.durable,
        "replicated": False,
        "isReplicated": False,
        "subscriptionProperties": dict(subscription.cursor.properties),
    }


def _backlog_bytes(log: SegmentLog, messages: int) -> int:
    stored = log.extent.next_index - log.extent.first_index
    return log.extent.size_bytes * messages // stored if stored else 0


def consumer_stats(consumer: ServedConsumer) -> Json:
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out)
        if consumer.entries_out
        else 1,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "address": consumer.link.address,
        "connectedSince": _time(consumer.options.connected_at_ms),
        "clientVersion": consumer.link.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_sent_ms,
        "keyHashRanges": [f"[{part.start}, {part.end}]" for part in consumer.ranges],
        "metadata": consumer.options.metadata,
    }


def internal_stats(segment: ServedLog) -> Json:
    """The ledgers of a log and the position of each cursor."""
    log = segment.log
    last = position_before(log, log.extent.next_ordinal)
    return {
        "entriesAddedCounter": log.extent.next_ordinal,
        "numberOfEntries": log.extent.next_ordinal - log.extent.first_ordinal,
        "totalSize": log.extent.size_bytes,
        "lastConfirmedEntry": _position_text(last),
        "state": "Terminated" if log.sealed else "LedgerOpened",
        "firstMessageIndex": log.extent.first_index,
        "nextMessageIndex": log.extent.next_index,
        "cursors": {
            name: {
                "markDeletePosition": _position_text(position_before(log, cursor.acks.mark)),
                "messagesConsumedCounter": cursor.acks.mark,
                "numberOfEntriesSinceFirstNotAckedMessage": log.extent.next_ordinal - cursor.acks.mark,
                "totalNonContiguousDeletedMessagesRange": cursor.acks.holes,
                "properties": dict(cursor.properties),
            }
            for name, cursor in sorted(log.cursors.items())
        },
    }


def position_before(log: SegmentLog, ordinal: int) -> Position:
    """The position of the entry before an ordinal; entry -1 if the log has no entry before it."""
    if ordinal <= log.extent.first_ordinal:
        return Position(log.extent.position_of(log.extent.first_ordinal).ledger, -1)
    return log.extent.position_of(ordinal - 1)


def _position_text(position: Position) -> str:
    return f"{position.ledger}:{position.entry}"


def message_id(position: Position, partition: int = -1) -> Json:
    """A classic message id as JSON."""
    return {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": partition}


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
