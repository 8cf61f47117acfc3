"""The stored JSON records and their paths.

Field names are Pulsar's where Pulsar has the field, in camel case on disk. A record is immutable: an update
makes the next record and copies every field that it does not change. This module must not know how a store
works.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from anabranch.errors import MetadataError
from anabranch.model.names import TopicName, encode_part, parse_namespace

TOPICS = "/topics"
CLASSIC_TOPICS, LIVE_TOPICS = "/persistent-topics", "/non-persistent-topics"
LINEAGES = "/lineages"
TENANTS, NAMESPACES = "/tenants", "/namespaces"
BROKERS, STORES = "/brokers", "/stores"
INCARNATIONS = "/sequences/incarnation"

SubscriptionKind = Literal["STREAM", "QUEUE", "CHECKPOINT"]
InitialPosition = Literal["earliest", "latest"]
OperationKind = Literal["create", "split", "merge", "rebucket", "migrate", "renew"]
PolicyFields = dict[str, bool | int | float]


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all stored records."""


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


class PrunedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A pruned segment, as a list and not an object, because a topic keeps many of them."""

    start: int
    end: int
    next_index: int
    child_ids: tuple[int, ...] = ()


class StepRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """Parents that are sealed together, and the boundaries of their children.

    `points` are the cuts of a split, `bucketSplits` the new boundaries of a rebucket; a merge has neither.
    """

    parent_ids: tuple[int, ...]
    points: tuple[int, ...] = ()
    bucket_splits: tuple[int, ...] = ()


class IntentRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A layout operation that was begun; the next leader of the topic finishes it.

    Children take the ids from `firstId` on; the write that recorded the intent reserved these ids.
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
    """In a migration: the subscriptions of the classic topics that become the topic's own."""


class GarbageRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A log that is in no layout any more and has to be deleted."""

    name: str
    since_ms: int
    store: int = 0


class TopicRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A scalable topic: its layout, and the operation that its leader began."""

    epoch: int
    next_segment_id: int
    segments: dict[int, SegmentRecord]
    properties: dict[str, str] = {}
    auto_scale_policy: PolicyFields | None = None
    hash_version: int = 1
    incarnation: int = 0
    store: int = 0
    """The owner of this store leads the topic."""
    term: int = 0
    created_at_ms: int = 0
    intent: IntentRecord | None = None
    garbage: tuple[GarbageRecord, ...] = ()
    pruned: dict[int, PrunedRecord] = {}
    """The newest pruned segments by id, for readers that were stopped when retention removed them."""
    history: dict[str, Any] = {}
    """History of auto-scaling; separate from the DAG, so that pruning and failover keep it."""
    deleted: bool = False
    """Whether the deletion has begun: clients cannot see the topic, and its leader deletes the rest."""


class AssignedRecord(Record, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    segment_id: int
    shared: bool = False
    buckets: tuple[RangeRecord, ...] = ()
    """In a checkpoint group: the open slots of a shared segment that the member reads."""


class ConsumerRecord(Record, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A registered consumer; `generation` is the group's when this assignment was last changed."""

    generation: int = 0
    joined: int = 0
    """Generation of the group when the consumer joined; earlier consumers of its name do not count."""
    segments: tuple[AssignedRecord, ...] = ()
    whole: bool = False
    """Whether the client can only read whole segments, not buckets."""
    finished: tuple[int, ...] | None = None
    """In a checkpoint group: sealed segments read to the end; None if the client does not report them."""
    partly_finished: dict[int, tuple[RangeRecord, ...]] = {}
    """In a checkpoint group: slots read to the end, of sealed segments that are read in part."""
    leaving: dict[int, tuple[RangeRecord, ...]] = {}
    """In a checkpoint group: slots that the member reads no further, and may still commit."""
    instance: int | None = None
    """Distinguishes consumers of one name; None if the client sends no instance."""
    principal: str = ""
    """The role that the name belongs to; empty without authentication."""


class AimRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """An entry to seek to, and its messages that are still pending if not all are."""

    ledger: int
    entry: int
    ack_set: tuple[int, ...] = ()


class UnfinishedRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A change of a subscription that some segments may not have yet."""

    kind: Literal["create", "delete", "seek", "skip"]
    timestamp_ms: int = 0
    segment_id: int | None = None
    """The segment to move; None for all segments."""
    aim: AimRecord | None = None
    """The target of the move, instead of a time."""


class SubscriptionRecord(Record, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A subscription; the record is created before, and deleted after, the cursors of the segments."""

    type: SubscriptionKind
    initial_position: InitialPosition | None = None
    drained: tuple[int, ...] = ()
    partly_drained: dict[int, tuple[RangeRecord, ...]] = {}
    """Drained slots of the bucket hash, of sealed segments that are drained in part."""
    consumers: dict[str, ConsumerRecord] = {}
    generation: int = 0
    term: int = 0
    created_at_ms: int = 0
    unfinished: UnfinishedRecord | None = None
    commits: bool = False
    """In a checkpoint group: whether a member has committed positions; members share segments then."""
    positions: bytes = b""
    """In a checkpoint group: a checkpoint with the positions that members committed, and their starts."""


class LineageRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """State of a topic name that outlives the topic, so that the next topic repeats no id, epoch or term."""

    next_segment_id: int = 0
    next_epoch: int = 0
    next_term: int = 1
    garbage: tuple[GarbageRecord, ...] = ()
    store: int = 0
    """The store of the last topic of the name; the owner of the store deletes the garbage."""


class ClassicTopicRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A `persistent://` or `non-persistent://` topic; 0 partitions means that it is not partitioned."""

    partitions: int = 0
    properties: dict[str, str] = {}
    created_at_ms: int = 0
    stores: tuple[int, ...] = ()
    """The store of each partition, or of the topic; missing partitions are in store 0."""
    migrated: bool = False
    """Whether a scalable topic replaced this one; then its log must not be created again."""
    made_by_use: bool = False
    """Whether a client made the topic by using it; such a live topic is removed once no client uses it."""

    def store(self, partition: int = 0) -> int:
        return self.stores[partition] if partition < len(self.stores) else 0


class StoreRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """A store and its owner; each owner has a higher term than the owners before."""

    owner: int | None = None
    generation: int = 0
    """Generation of the owner; a broker that was started again owns none of its earlier stores."""
    term: int = 0
    store_id: int = 0
    """Identity of the files of the store; 0 if they have none, or if their loss was accepted."""


class TenantRecord(Record, frozen=True, kw_only=True, rename="camel"):
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ("standalone",)
    quotas: dict[str, Any] = {}


class NamespaceRecord(Record, frozen=True, kw_only=True, rename="camel"):
    scalable_topic_auto_scale_policy: PolicyFields | None = None
    policies: dict[str, Any] = {}
    """Other namespace policies, as given, by Pulsar's names."""


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
        raise MetadataError(f"a stored {kind.__name__} cannot be decoded: {error}") from error


def namespace_path(root: str, namespace: str) -> str:
    """Path below `root` of the records of a namespace, `tenant/namespace`."""
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
    return _name_path(LIVE_TOPICS if name.is_live else CLASSIC_TOPICS, name)


def tenant_path(tenant: str) -> str:
    return f"{TENANTS}/{encode_part(tenant)}"
