"""The settings of a broker: frozen, validated once, passed down, never global.

The declaration of a setting contains its description; `files` makes the default file from it. Knows
nothing of files, or of the modules that use a setting.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from anabranch.config.authentication import AuthenticationConfig
from anabranch.config.authorization import AuthorizationConfig
from anabranch.config.doors import DoorsConfig
from anabranch.config.fields import OFF, check_choice, check_value, port_setting, setting
from anabranch.config.lanes import KEYED_DISPATCH, LaneConfig
from anabranch.config.quotas import QuotaConfig
from anabranch.config.schemas import SchemaConfig
from anabranch.config.tls import TlsConfig
from anabranch.errors import InvalidConfigurationError
from anabranch.model.scaling.policy import AutoScalePolicy, check_policy

KIB, MIB = 2**10, 2**20
LOG_LEVELS = ("debug", "info", "warning", "error")
DAMAGED_ENTRIES = ("stop", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(
    TlsConfig,
    DoorsConfig,
    AuthenticationConfig,
    AuthorizationConfig,
    QuotaConfig,
    SchemaConfig,
    LaneConfig,
):
    """All settings of one broker process."""

    host: str = setting(
        "127.0.0.1", "Address to listen on, for both ports. 0.0.0.0 listens everywhere.", pulsar="bindAddress"
    )
    port: int = port_setting(6650, "Port of the binary protocol.", pulsar="brokerServicePort")
    http_port: int = port_setting(8080, "Port of the admin API and metrics.", pulsar="webServicePort")
    data: str = setting("./anabranch-data", "Directory of all stored data; used by one broker at a time.")
    workers: int = setting(
        1,
        "Broker processes on one data directory, to use several cores. A process that dies is replaced.",
        low=1,
        high=64,
    )
    lease_s: float = setting(
        5.0,
        "A worker that has been silent for this long is killed; the other workers take over its stores.",
        low=0.2,
    )
    cluster: str = setting("standalone", "Name of the cluster in the admin API.", pulsar="clusterName")
    advertised_host: str | None = setting(
        None,
        "Host name that clients connect to; the listen address if unset.",
        pulsar="advertisedAddress",
    )
    max_message_bytes: int = setting(
        5 * MIB, "Largest entry a producer may send.", pulsar="maxMessageSize", low=KIB, high=1024 * MIB
    )
    keep_alive_s: float = setting(
        30.0,
        "The broker pings a connection after this long without traffic, and closes it after twice as long.",
        pulsar="keepAliveIntervalSeconds",
        low=0.1,
    )
    connections_max: int = setting(
        10_000,
        "Most connections at once; further connections are refused. Fewer if file descriptors are few.",
        pulsar="brokerMaxConnections",
        low=1,
    )
    handshake_timeout_s: float = setting(
        10.0,
        "A connection whose client has not sent CONNECT by then is closed.",
        low=0.1,
        high=15.0,
    )
    http_connections_max: int = setting(
        1000,
        "Most HTTP connections at once; those without a whole request make room for new ones.",
        pulsar="maxHttpServerConnections",
        low=1,
    )
    http_request_timeout_s: float = setting(
        10.0,
        "An HTTP client has this long to send the head of a request, and as long again for its body.",
        low=0.1,
        high=300.0,
    )
    deduplication: bool = setting(
        True,
        "Store each (producer, sequence id) once, even if a producer sends it again to another segment.",
        pulsar="brokerDeduplicationEnabled",
    )
    auto_create_topics: bool = setting(
        True, "Create a topic when a client first uses it.", pulsar="allowAutoTopicCreation"
    )
    bucket_budget: int = setting(
        4,
        "Entry buckets of a new topic over all its segments: how many consumers can share it in key order.",
        pulsar="scalableTopicEntryBucketBudget",
        low=1,
        high=1024,
    )
    auto_scale_interval_s: float = setting(
        60.0,
        "Interval between two decisions of auto-scaling for a topic.",
        pulsar="scalableTopicAutoScaleIntervalSeconds",
        low=0.05,
    )
    load_report_interval_s: float = setting(
        10.0,
        "Period over which rates are averaged.",
        pulsar="scalableTopicLoadReportIntervalSeconds",
        low=0.05,
    )
    log_idle_s: float = setting(
        10.0,
        "A log that no client used for this long is unloaded: only its durable state stays in memory.",
        low=0,
    )
    consumer_grace_s: float = setting(
        60.0,
        "How long a stream consumer without a connection keeps its segments.",
        pulsar="scalableTopicConsumerSessionGracePeriodSeconds",
        low=0,
    )
    segment_retention_s: float = setting(
        604_800.0,
        "Messages stay for this long, and until every subscription acknowledged them. -1 means for ever.",
        low=-1,
    )
    max_unacked_per_consumer: int = setting(
        50_000,
        "Most unacknowledged messages of one shared consumer. 0 means no limit.",
        pulsar="maxUnackedMessagesPerConsumer",
        low=0,
    )
    max_unacked_per_subscription: int = setting(
        200_000,
        "Most unacknowledged messages of all consumers of a shared subscription. 0 means no limit.",
        pulsar="maxUnackedMessagesPerSubscription",
        low=0,
    )
    dispatch_max_entries: int = setting(
        100, "Most entries in one read for a subscription.", pulsar="dispatcherMaxReadBatchSize", low=1
    )
    dispatch_max_bytes: int = setting(
        5 * MIB, "Most bytes in one read for a subscription.", pulsar="dispatcherMaxReadSizeBytes", low=1
    )
    partial_frames_bytes_max: int = setting(
        256 * MIB,
        "Bytes of incomplete frames of all connections; above this, the longest incomplete one is dropped.",
        low=MIB,
    )
    unsent_bytes_max: int = setting(
        256 * MIB,
        "Bytes for all connections whose clients read too slowly; above this, the slowest one is closed.",
        low=MIB,
    )
    publish_pending_bytes_max: int = setting(
        64 * MIB,
        "Bytes of one connection that wait for the disk; above this, reading from the connection pauses.",
        low=64 * KIB,
    )
    publish_pending_total_bytes_max: int = setting(
        256 * MIB,
        "Bytes of all connections that wait for the disk; above this, reading from busy ones pauses.",
        low=MIB,
    )
    publish_credit_bytes: int = setting(
        MIB // 2,
        "Bytes that the producers of an Anabranch client may send ahead on one connection; 0 means no limit.",
        low=0,
    )
    cache_bytes: int = setting(64 * MIB, "Memory for recently written or read entries.", low=0)
    journal_bytes_max: int = setting(
        256 * MIB, "Size of the journal at which a checkpoint starts the next journal file.", low=4 * KIB
    )
    disk_reserve_bytes: int = setting(
        64 * MIB,
        "Publishing is refused while the disk has less room; a small disk keeps a sixteenth of itself.",
        low=0,
    )
    damaged_entries: str = setting(
        "stop",
        "Delivery of damaged stored entries: stop there until an operator decides, or skip and count them.",
    )
    topic_metrics: bool = setting(
        True,
        "Metrics of each topic; without them, a broker with very many topics adds them up by namespace.",
        pulsar="exposeTopicLevelMetricsInPrometheus",
    )
    log_level: str = setting(
        "info", "Lowest level of log messages on standard error: debug, info, warning, error."
    )
    auto_scale: AutoScalePolicy = dataclasses.field(default_factory=AutoScalePolicy)

    def __post_init__(self) -> None:
        for field in plain_fields():
            check_value(field, getattr(self, field.name))
        wrong = check_policy(self.auto_scale)
        if wrong:
            raise InvalidConfigurationError(f"the auto-scale settings cannot be used: {'; '.join(wrong)}")
        check_choice("log_level", self.log_level.lower(), LOG_LEVELS)
        check_choice("damaged_entries", self.damaged_entries, DAMAGED_ENTRIES)
        check_choice("keyed_dispatch", self.keyed_dispatch, KEYED_DISPATCH)
        self.schema_policy()
        if self.authorization and not self.authentication:
            raise InvalidConfigurationError(
                "authorization needs proven roles: set authentication = true too, or authorization = false"
            )
        for name in ("host", "data", "cluster"):
            if not getattr(self, name):
                raise InvalidConfigurationError(f"setting {name} must not be empty")
        if (self.port, self.tls_port).count(OFF) == 2 or (self.http_port, self.https_port).count(OFF) == 2:
            raise InvalidConfigurationError("switch on port or tls_port, and http_port or https_port")
        self.check_tls()

    def url_of(self, scheme: str, port: int) -> str:
        """Return the URL at which clients reach a port of this process."""
        host = self.advertised_host or self.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def plain_fields() -> list[dataclasses.Field[Any]]:
    """Return the fields of BrokerConfig outside the auto-scale policy, those of its bases last."""
    own = BrokerConfig.__annotations__
    fields = [field for field in dataclasses.fields(BrokerConfig) if field.name != "auto_scale"]
    return sorted(fields, key=lambda field: field.name not in own)
