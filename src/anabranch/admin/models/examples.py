"""An example of each body that users write or read most, for the description of the API."""

from __future__ import annotations

from typing import Any, Final

from anabranch.admin.models.body import ErrorBody
from anabranch.admin.models.brokers import (
    BrokerInfo,
    ClusterData,
    InternalConfiguration,
    LeaderBroker,
    LookupAnswer,
)
from anabranch.admin.models.lanes import LaneInfo, LaneMessage, SkippedEntries
from anabranch.admin.models.namespaces import (
    AuthPolicies,
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuotaBody,
    Bundles,
    NamespacePolicies,
    RetentionPolicies,
)
from anabranch.admin.models.scalable import (
    AutoScaleOverride,
    Explanation,
    HashRangeBody,
    ScalableMetadata,
    ScalableStats,
    ScalableSubscriptionStats,
    SegmentInfo,
    SegmentStats,
)
from anabranch.admin.models.schemas import (
    AllSchemas,
    PostedSchema,
    SchemaCompatibility,
    SchemaInfo,
    SchemaVersion,
)
from anabranch.admin.models.tenants import (
    DispatchRate,
    PublishRate,
    TenantInfo,
    TenantLimits,
    TenantUsage,
    TopicPermissions,
)
from anabranch.admin.models.topics import (
    BacklogAnalysis,
    CompactionStatus,
    ConsumerStats,
    CursorPosition,
    CursorStats,
    InternalStats,
    LedgerStats,
    MessageIdBody,
    PartitionedInternalStats,
    PartitionedMetadata,
    PartitionedTopicStats,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
)

_URL: Final = "http://127.0.0.1:8080"
_BROKER: Final = "pulsar://127.0.0.1:6650"
_STORE: Final = "sqlite:/var/lib/anabranch/metadata.db"
_SEGMENT: Final = SegmentInfo(segment_id=0, hash_range=HashRangeBody(start=0, end=0xFFFF))
_SCHEMA: Final = SchemaInfo(version=0, type="STRING", timestamp=1767322800000, data="")

EXAMPLES: Final[dict[type, Any]] = {
    type(example): example
    for example in (
        ErrorBody(reason="topic://public/default/orders does not exist"),
        ClusterData(service_url=_URL, broker_service_url=_BROKER),
        BrokerInfo(id=0, service_url=_BROKER, web_service_url=_URL, stores=[0]),
        LeaderBroker(broker_id="127.0.0.1:8080", service_url=_URL),
        InternalConfiguration(metadata_store_url=_STORE, configuration_metadata_store_url=_STORE),
        LookupAnswer(broker_url=_BROKER, http_url=_URL, native_url=_BROKER, broker_id="127.0.0.1:8080"),
        PostedSchema(type="AVRO", schema='{"type":"record","name":"Order","fields":[]}'),
        _SCHEMA,
        AllSchemas(get_schema_responses=[_SCHEMA]),
        SchemaVersion(version=0),
        SchemaCompatibility(compatibility=True, schema_compatibility_strategy="FULL"),
        TenantInfo(admin_roles=["alice"], allowed_clusters=["standalone"]),
        TenantLimits(max_topics=1000, publish_rate=PublishRate(publish_throttling_rate_in_msg=10_000)),
        TenantUsage(connections=3, namespaces=1, topics=12, producers=2, consumers=4),
        TopicPermissions(topic="persistent://public/default/orders", role="shop", actions=["produce"]),
        PublishRate(publish_throttling_rate_in_msg=10_000),
        DispatchRate(dispatch_throttling_rate_in_msg=50_000),
        MessageIdBody(ledger_id=7, entry_id=42),
        CompactionStatus(status="SUCCESS"),
        CursorPosition(ledger_id=7, entry_id=42, is_excluded=True),
        PartitionedMetadata(partitions=4, properties={"team": "sales"}),
        TopicStats(
            msg_rate_in=120.0,
            msg_in_counter=5000,
            publishers=[PublisherStats(producer_name="shop-1", address="127.0.0.1:50112")],
            subscriptions={
                "billing": SubscriptionStats(
                    msg_backlog=10, type="Shared", consumers=[ConsumerStats(consumer_name="billing-1")]
                )
            },
            owner_broker="127.0.0.1:8080",
        ),
        PartitionedTopicStats(
            metadata=PartitionedMetadata(partitions=1),
            partitions={"persistent://public/default/orders-partition-0": TopicStats(msg_in_counter=5000)},
        ),
        PartitionedInternalStats(
            metadata=PartitionedMetadata(partitions=1),
            partitions={
                "persistent://public/default/orders-partition-0": InternalStats(last_confirmed_entry="7:42")
            },
        ),
        NamespacePolicies(
            auth_policies=AuthPolicies(namespace_auth={"shop": ["produce"]}),
            replication_clusters=["standalone"],
            bundles=Bundles(),
            retention_policies=RetentionPolicies(retention_time_in_minutes=1440, retention_size_in_mb=-1),
        ),
        Bundles(),
        RetentionPolicies(retention_time_in_minutes=1440, retention_size_in_mb=-1),
        AutoTopicCreation(allow_auto_topic_creation=True, topic_type="partitioned", default_num_partitions=4),
        AutoSubscriptionCreation(allow_auto_subscription_creation=False),
        BacklogQuotaBody(limit_size=2**30, policy="producer_request_hold"),
        PublishRate(publish_throttling_rate_in_msg=1000),
        DispatchRate(dispatch_throttling_rate_in_byte=2**20),
        BacklogAnalysis(entries=10, messages=1000, first_position="7:33", last_position="7:42"),
        InternalStats(
            entries_added_counter=43,
            number_of_entries=43,
            last_confirmed_entry="7:42",
            state="LedgerOpened",
            ledgers=[LedgerStats(ledger_id=7, entries=43, size=8600)],
            cursors={"billing": CursorStats(mark_delete_position="7:32")},
        ),
        _SEGMENT,
        ScalableMetadata(epoch=0, next_segment_id=1, segments={0: _SEGMENT}),
        ScalableStats(
            total_segments=1,
            active_segments=1,
            segments={"0": SegmentStats(name="segment://public/default/orders/0000-ffff-0", state="ACTIVE")},
            subscriptions={"billing": ScalableSubscriptionStats(type="STREAM", backlog=10)},
        ),
        AutoScaleOverride(max_segments=32, split_msg_rate_in_threshold=20_000),
        Explanation(topic="topic://public/default/orders", epoch=3, term=1),
        LaneInfo(lane="0:4711", slot=4711, reason="parked", held_entries=3, sample_key="alice"),
        LaneMessage(message_id="7:42:0", key="alice", payload="one tea", size_bytes=7),
        SkippedEntries(skipped_entries=3),
    )
}
"""By type. A body without an example here has only types in the description."""
