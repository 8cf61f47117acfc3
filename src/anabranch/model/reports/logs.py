"""Figures of one log, which is a classic topic, one of its partitions, or the log behind a segment.

The owner of a log makes these objects, other brokers pass them on, and admin clients return them to users.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from anabranch.model.reports.body import Body

LongNumber = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that Java keeps in a `long`."""


class MessageIdBody(Body, frozen=True, kw_only=True):
    """The id of a classic message; a batch index of -1 means the whole entry."""

    ledger_id: LongNumber
    entry_id: LongNumber
    partition_index: int = -1
    batch_index: int = -1


class PublisherStats(Body, frozen=True, kw_only=True):
    """One connected producer."""

    access_mode: str = "Shared"
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    chunked_message_rate: float = 0.0
    producer_id: int = 0
    producer_name: str = ""
    supports_partial_producer: bool = False
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    metadata: dict[str, str] = {}


class ConsumerStats(Body, frozen=True, kw_only=True):
    """One connected consumer."""

    consumer_name: str = ""
    available_permits: int = 0
    unacked_messages: int = 0
    avg_messages_per_entry: int = 1
    blocked_consumer_on_unacked_msgs: bool = False
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    key_hash_ranges: list[str] | None = None
    metadata: dict[str, str] = {}


class CompactionStatus(Body, frozen=True, kw_only=True):
    """The state of the last compaction: NOT_RUN, RUNNING, SUCCESS or ERROR."""

    status: str = "NOT_RUN"
    last_error: str = ""


class SubscriptionStats(Body, frozen=True, kw_only=True):
    """One subscription of a log; `msgBacklog` counts entries, `backlogMessages` messages."""

    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    msg_rate_expired: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_drop_counter: int = 0
    """Only on a live topic: messages for which no consumer had room."""
    msg_backlog: int = 0
    msg_backlog_no_delayed: int = 0
    msg_delayed: int = 0
    """Entries that wait for their delivery time, as far as the broker has read."""
    msg_in_replay: int = 0
    """Entries that were read before and wait: they were taken back, or a slow consumer holds their key."""
    backlog_messages: int = 0
    backlog_size: int = 0
    earliest_msg_publish_time_in_backlog: int = 0
    """Only if the call asks for it with `getEarliestTimeInBacklog`; 0 otherwise, and without a backlog."""
    lanes: int = 0
    lane_entries: int = 0
    lane_messages: int = 0
    lane_bytes: int = 0
    spilled_bytes: int = 0
    consumable_backlog: int = 0
    consumable_backlog_messages: int = 0
    unacked_messages: int = 0
    blocked_subscription_on_unacked_msgs: bool = False
    type: str = ""
    """Empty until the first consumer attaches."""
    active_consumer_name: str = ""
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    last_consumed_flow_timestamp: int = 0
    last_mark_delete_advanced_timestamp: int = 0
    last_expire_timestamp: int = 0
    entries_fetched: int = 0
    """Entries that were read from the disk for it."""
    read_errors: int = 0
    damaged_entries: int = 0
    damaged_messages: int = 0
    troubles: list[str] = []
    consumers: list[ConsumerStats] = []
    durable: bool = True
    is_durable: bool = True
    replicated: bool = False
    is_replicated: bool = False
    allow_out_of_order_delivery: bool = False
    """Never here: a key keeps its order, also for consumers that would allow otherwise."""
    key_shared_mode: str | None = None
    subscription_properties: dict[str, str] = {}


class CompactionStats(Body, frozen=True, kw_only=True):
    """The last compactions since the log was loaded."""

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0


class TopicStats(Body, frozen=True, kw_only=True):
    """Counters and rates of a classic topic or of the log of a segment, with its clients."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_in_counter: int = 0
    msg_in_counter: int = 0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_drop_rate: float = 0.0
    msg_drop_counter: int = 0
    """Only of a live topic: messages that were not delivered, counted for each subscription."""
    average_msg_size: float = 0.0
    msg_chunk_published: bool = False
    storage_size: int = 0
    backlog_size: int = 0
    offloaded_storage_size: int = 0
    """Always 0: there is no second tier of storage."""
    oldest_backlog_message_age_seconds: int = -1
    """The age of the oldest message that a durable subscription has not acknowledged; -1 without one."""
    publishers: list[PublisherStats] = []
    waiting_publishers: int = 0
    publish_rate_limited_times: int = 0
    subscriptions: dict[str, SubscriptionStats] = {}
    replication: dict[str, Any] = {}
    deduplication_status: str = "Disabled"
    topic_epoch: int | None = None
    owner_broker: str = ""
    topic_creation_time_stamp: int = 0
    last_publish_time_stamp: int = 0
    compaction: CompactionStats = CompactionStats()
    ongoing_txn_count: int = 0
    """The counts of transactions are always 0, because transactions are refused."""
    aborted_txn_count: int = 0
    committed_txn_count: int = 0
    troubles: list[str] = []


class LedgerStats(Body, frozen=True, kw_only=True):
    """One ledger: a file of a log."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    offloaded: bool = False


class CursorStats(Body, frozen=True, kw_only=True):
    """The position of one subscription in a log."""

    mark_delete_position: str = ""
    messages_consumed_counter: int = 0
    number_of_entries_since_first_not_acked_message: int = 0
    total_non_contiguous_deleted_messages_range: int = 0
    properties: dict[str, str] = {}


class InternalStats(Body, frozen=True, kw_only=True):
    """The ledgers of a log and the position of each cursor."""

    entries_added_counter: int = 0
    number_of_entries: int = 0
    total_size: int = 0
    last_confirmed_entry: str = ""
    state: str = ""
    first_message_index: int = 0
    next_message_index: int = 0
    ledgers: list[LedgerStats] = []
    cursors: dict[str, CursorStats] = {}


class BacklogAnalysis(Body, frozen=True, kw_only=True):
    """The result of a scan of a backlog; the scan ends early at the limits of the broker."""

    entries: int = 0
    messages: int = 0
    filter_rejected_entries: int = 0
    filter_accepted_entries: int = 0
    filter_rescheduled_entries: int = 0
    filter_rejected_messages: int = 0
    filter_accepted_messages: int = 0
    filter_rescheduled_messages: int = 0
    aborted: bool = False
    first_position: str = ""
    last_position: str = ""
