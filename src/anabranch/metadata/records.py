"""The stored JSON and where it is kept.

Field names are Pulsar's where Pulsar has the field, in camel case on disk; the rest is ours. A record is
immutable: an update makes the next one, and carries over every field it does not change. Must not know how
a store works.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from anabranch.errors import MetadataError
from anabranch.model.names import TopicName, encode_part, parse_namespace

TOPICS = "/topics"
CLASSIC_TOPICS = "/persistent-topics"
LINEAGES = "/lineages"
TENANTS = "/tenants"
NAMESPACES = "/namespaces"
BROKERS = "/brokers"
STORES = "/stores"
INCARNATIONS = "/sequences/incarnation"

SubscriptionKind = Literal["STREAM", "QUEUE", "CHECKPOINT"]
InitialPosition = Literal["earliest", "latest"]
OperationKind = Literal["create", "split", "merge", "rebucket", "migrate"]
PolicyFields = dict[str, bool | int | float]

MEGABYTE = 1024 * 1024


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all stored values have in common."""


class RangeRecord(Record, frozen=True, kw_only=True, rename="camel"):
    start: int
    end: int


class SegmentRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """One node of the DAG."""

    segment_id: int
    hash_range: RangeRecord
    state: Literal["ACTIVE", "SEALED"] = "ACTIVE"
    parent_ids: tuple[int, ...] = ()
    child_ids: tuple[int, ...] = ()
    created_at_epoch: int = 0
    sealed_at_epoch: int = -1
    created_at_ms: int = 0
    sealed_at_ms: int = -1
    legacy_topic_name: str | None = None
    entry_bucket_splits: tuple[int, ...] = ()
    store: int = 0


class StepRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """Parents that are sealed together and the boundaries of what replaces them.

    `points` cut a split, `bucketSplits` are the new boundaries of a rebucket; a merge needs neither.
    """

    parent_ids: tuple[int, ...]
    points: tuple[int, ...] = ()
    bucket_splits: tuple[int, ...] = ()


class IntentRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A layout operation that was begun; whoever leads the topic next finishes it.

    Children take the ids from `firstId` on, which were reserved in the write that recorded the intent.
    """

    kind: OperationKind
    steps: tuple[StepRecord, ...]
    first_id: int
    child_names: tuple[str, ...]
    child_stores: tuple[int, ...]
    started_at_ms: int
    term: int
    reason: str = ""
    automatic: bool = False
    subscriptions: dict[str, SubscriptionKind] = {}
    """Of classic topics that are migrated: what becomes the topic's own."""


class GarbageRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """Storage that no layout names any more and that must go."""

    name: str
    since_ms: int
    store: int = 0


class TopicRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A scalable topic: its whole DAG, and what its leader is doing."""

    epoch: int
    next_segment_id: int
    segments: dict[int, SegmentRecord]
    properties: dict[str, str] = {}
    auto_scale_policy: PolicyFields | None = None
    hash_version: int = 1
    incarnation: int = 0
    store: int = 0
    """Whoever owns this store leads the topic."""
    term: int = 0
    created_at_ms: int = 0
    intent: IntentRecord | None = None
    garbage: tuple[GarbageRecord, ...] = ()
    history: dict[str, Any] = {}
    """What auto-scaling remembers apart from the DAG, so that pruning and failover forget nothing."""
    deleted: bool = False
    """Deletion has begun: nobody may see the topic any more, and its leader removes what is left."""


class AssignedRecord(Record, frozen=True, kw_only=True, rename="camel"):
    segment_id: int
    shared: bool = False


class ConsumerRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A registered consumer; `generation` is the group's when this assignment was last changed."""

    generation: int = 0
    joined: int = 0
    """The group's generation when it became a member: what its namesakes before it held does not count."""
    segments: tuple[AssignedRecord, ...] = ()
    whole: bool = False
    """Whether its client can only read segments alone, not by buckets."""
    finished: tuple[int, ...] | None = None
    """In a checkpoint group: the sealed segments it has read to the end; None when its client cannot tell."""
    instance: int | None = None
    """Tells it from others of its name; None when its client says nothing of the kind."""


class AimRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """An entry, and the messages of it that still count if not all do."""

    ledger: int
    entry: int
    ack_set: tuple[int, ...] = ()


class UnfinishedRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A change of a subscription that may have reached some of the segments only."""

    kind: Literal["create", "delete", "seek", "skip"]
    timestamp_ms: int = 0
    segment_id: int | None = None
    """The only segment to move; None for all."""
    aim: AimRecord | None = None
    """Where to move it, instead of to a time."""


class SubscriptionRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A subscription: registered before any segment has it, forgotten after none has it."""

    type: SubscriptionKind
    initial_position: InitialPosition | None = None
    drained: tuple[int, ...] = ()
    partly_drained: dict[int, tuple[RangeRecord, ...]] = {}
    """Of sealed segments that are not drained: the slots of the bucket hash that are."""
    consumers: dict[str, ConsumerRecord] = {}
    generation: int = 0
    term: int = 0
    created_at_ms: int = 0
    unfinished: UnfinishedRecord | None = None


class LineageRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """What outlives a topic of one name, so that its successor repeats no id, epoch or term."""

    next_segment_id: int = 0
    next_epoch: int = 0
    next_term: int = 1
    garbage: tuple[GarbageRecord, ...] = ()
    store: int = 0
    """The home of the last topic of the name; its owner sweeps the garbage."""


class ClassicTopicRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A `persistent://` topic; 0 partitions means that it is not partitioned."""

    partitions: int = 0
    properties: dict[str, str] = {}
    created_at_ms: int = 0
    stores: tuple[int, ...] = ()
    """Which store holds each partition, or the topic itself; those that are missing are in store 0."""
    migrated: bool = False
    """Whether a scalable topic has its place, so that no log may be made again once it is gone."""

    def store(self, partition: int = 0) -> int:
        return self.stores[partition] if partition < len(self.stores) else 0


class BrokerRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A broker that lives, for as long as its lease; `generation` numbers the starts of all brokers."""

    id: int
    url: str
    http_url: str
    generation: int


class StoreRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A store and who serves it; each owner has a higher term than those before it."""

    owner: int | None = None
    generation: int = 0
    """Of the owner: a broker that was started again owns nothing of what it owned before."""
    term: int = 0


class TenantRecord(Record, frozen=True, kw_only=True, rename="camel"):
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ("standalone",)


class NamespaceRecord(Record, frozen=True, kw_only=True, rename="camel"):
    scalable_topic_auto_scale_policy: PolicyFields | None = None
    policies: dict[str, Any] = {}
    """Other namespace policies as they were given, by Pulsar's names."""


class Retention(NamedTuple):
    """How long, and how much of a topic, acknowledged messages stay; beyond either limit they go.

    None is no limit.
    """

    time_s: float | None
    size_bytes: int | None = None


def retention(namespace: NamespaceRecord, default_s: float | None) -> Retention:
    """What messages of a namespace stay, by its own policy as far as it has one."""
    policy = namespace.policies.get("retention_policies")
    given = policy if isinstance(policy, dict) else {}
    minutes, megabytes = given.get("retentionTimeInMinutes"), given.get("retentionSizeInMB")
    time_s = default_s
    if isinstance(minutes, int | float):
        time_s = None if minutes < 0 else minutes * 60.0
    # No size beside some time means nothing: Pulsar refuses it, and nobody shall lose messages by it.
    if not isinstance(megabytes, int | float) or megabytes < 0 or (megabytes == 0 and time_s != 0):
        return Retention(time_s)
    return Retention(time_s, int(megabytes * MEGABYTE))


def creates_topics(namespace: NamespaceRecord, default: bool) -> bool:
    """Whether topics of a namespace are made on first use, by its own policy if it has one."""
    policy = namespace.policies.get("autoTopicCreationOverride")
    allowed = policy.get("allowAutoTopicCreation") if isinstance(policy, dict) else None
    return allowed if isinstance(allowed, bool) else default


R = TypeVar("R", bound=Record)

_ENCODER = msgspec.json.Encoder()


def encode(record: Record) -> bytes:
    """The JSON to store."""
    return _ENCODER.encode(record)


def decode(kind: type[R], data: bytes) -> R:
    """Undo `encode`; fields of a newer version are ignored."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"a stored {kind.__name__} cannot be read: {error}") from error


def namespace_path(root: str, namespace: str) -> str:
    """Where the records of a namespace, `tenant/namespace`, are kept below `root`."""
    tenant, local = parse_namespace(namespace)
    return f"{root}/{encode_part(tenant)}/{encode_part(local)}"


def _name_path(root: str, name: TopicName) -> str:
    return f"{root}/{encode_part(name.tenant)}/{encode_part(name.namespace)}/{encode_part(name.local)}"


def topic_path(name: TopicName) -> str:
    return _name_path(TOPICS, name)


def subscriptions_path(name: TopicName) -> str:
    return f"{topic_path(name)}/subscriptions"


def subscription_path(name: TopicName, subscription: str) -> str:
    return f"{subscriptions_path(name)}/{encode_part(subscription)}"


def lineage_path(name: TopicName) -> str:
    return _name_path(LINEAGES, name)


def broker_path(broker: int) -> str:
    return f"{BROKERS}/{broker}"


def store_path(store: int) -> str:
    return f"{STORES}/{store}"


def classic_path(name: TopicName) -> str:
    return _name_path(CLASSIC_TOPICS, name)


def tenant_path(tenant: str) -> str:
    return f"{TENANTS}/{encode_part(tenant)}"
