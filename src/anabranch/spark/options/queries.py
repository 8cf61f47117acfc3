"""The options of a source or sink, parsed and checked once, when Spark plans a query.

Spark passes option names in lower case. This module must not know what an option does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import TopicName, validate_subscription
from anabranch.spark.decide.sink.logs import checkpoint_sink, is_job_sink
from anabranch.spark.decide.source.offsets import Start
from anabranch.spark.decide.source.topic_names import TopicPattern, short_name
from anabranch.spark.options.given import (
    ASYNC_PROGRESS,
    PREFIXES,
    GivenOptions,
    Settings,
    byte_size,
    count,
    duration_s,
    flag,
    whole_number,
    word,
)
from anabranch.spark.options.starts import (
    END_OPTIONS,
    START_OPTIONS,
    TOPIC_OPTIONS,
    read_end,
    read_start,
    read_topics,
)
from anabranch.spark.options.values import VALUE_OPTIONS, ValueOptions, read_value_options

Ordering = Literal["key", "none"]
BadEntries = Literal["fail", "skip"]

_MAX_ROWS_NAMES = ("maxOffsetsPerTrigger", "maxRecordsPerTrigger")


_SOURCE_FIELDS: Mapping[str, tuple[str, Callable[[str], Any], Any]] = {
    "max_bytes": ("maxBytesPerTrigger", byte_size, None),
    "min_rows": ("minOffsetsPerTrigger", count, None),
    "max_delay_s": ("maxTriggerDelay", duration_s, 15 * 60.0),
    "max_partitions": ("maxPartitions", count, None),
    "min_partitions": ("minPartitions", count, None),
    "max_partition_rows": ("maxRecordsPerPartition", count, None),
    "split_bytes": ("splitBytes", byte_size, None),
    "ordering": ("ordering", lambda text: word(text, ("key", "none")), None),
    "chain": ("chainSegments", flag, True),
    "buckets": ("bucketsPerSegment", count, 1),
    "fail_on_data_loss": ("failOnDataLoss", flag, True),
    "bad_entries": ("badEntries", lambda text: word(text, ("fail", "skip")), "fail"),
    "include_headers": ("includeHeaders", flag, False),
    "include_event_time": ("includeEventTime", flag, False),
    "include_hash": ("includeHash", flag, False),
    "include_producer": ("includeProducer", flag, False),
    "subscription": ("subscription", validate_subscription, None),
    "wait_for_topic": ("waitForTopic", flag, False),
    "poll_timeout_s": ("pollTimeoutMs", duration_s, 120.0),
    "retries": ("fetchOffset.numRetries", whole_number, 3),
    "retry_interval_s": ("fetchOffset.retryIntervalMs", duration_s, 0.01),
    "view_ttl_s": ("metadata.cache.ttl.ms", duration_s, 0.05),
}
"""By field of SourceOptions: the option, the function that parses its text, and the default."""

_ROLE = ("authPluginClassName", "authParams")

_SOURCE = (
    "service.url",
    *_ROLE,
    *TOPIC_OPTIONS,
    *START_OPTIONS,
    *END_OPTIONS,
    *_MAX_ROWS_NAMES,
    *VALUE_OPTIONS,
    *(option for option, _, _ in _SOURCE_FIELDS.values()),
)
_SOURCE_LATER = (
    "assign",
    "isolation",
    "columnNames",
)
_SINK = (
    "service.url",
    *_ROLE,
    "topic",
    "subscribe",
    "path",
    "checkpointLocation",
    "delivery",
    "flushBytes",
    "compression",
    "includeHeaders",
    "binaryHeaders",
    "failOnUnknownColumns",
    "sinkId",
    "txnId",
    "batchId",
)
_SINK_LATER = (
    "sequenceColumn",
    "producerColumn",
    "txnTimeout",
    "lingerMs",
    "maxInFlight",
)

_DELIVERIES = ("exactly-once", "at-least-once")
"""The default of streams, and the default of batches."""

_COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a batch or streaming read; None if the user set nothing and there is no default."""

    service_url: str
    client: Settings
    topics: tuple[str, ...]
    """In their short form; empty if a pattern says which topics are read."""
    pattern: TopicPattern | None
    starting: Start | None
    ending: Start | None
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay_s: float
    max_partitions: int | None
    min_partitions: int | None
    max_partition_rows: int | None
    split_bytes: int | None
    ordering: Ordering | None
    chain: bool
    buckets: int
    fail_on_data_loss: bool
    bad_entries: BadEntries
    include_headers: bool
    include_event_time: bool
    include_hash: bool
    include_producer: bool
    subscription: str | None
    wait_for_topic: bool
    poll_timeout_s: float
    retries: int
    retry_interval_s: float
    view_ttl_s: float
    values: ValueOptions | None = None
    """How values are decoded; None leaves them as bytes."""

    def reads(self, topic: str) -> bool:
        """Whether the query reads a topic, which may not exist."""
        return topic in self.topics if self.pattern is None else self.pattern.matches(topic)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a batch or streaming write."""

    service_url: str
    client: Settings
    topic: str | None
    flush_bytes: int
    compression: str | None
    include_headers: bool
    base64_headers: bool
    """Send all values of headers as Base64, because properties are text."""
    refuse_unknown_columns: bool
    streaming: bool
    exactly_once: bool
    sink_namespace: str
    """The namespace of the sink's logs, such as public/default."""
    sink_id: str | None
    """None if the query or job uses a sink of its own."""
    transaction: str | None
    batch: int | None


def read_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options of a read; InvalidConfigurationError names the option and what it accepts."""
    options = GivenOptions(given, _SOURCE, _SOURCE_LATER, "source")
    topics, pattern = read_topics(options)
    found = SourceOptions(
        topics=topics,
        pattern=pattern,
        service_url=options.required("service.url"),
        client=options.client(),
        starting=read_start(options, topics, pattern),
        ending=read_end(options, topics, pattern),
        max_rows=options.either(_MAX_ROWS_NAMES, count),
        values=read_value_options(options),
        **{field: options.read(*how) for field, how in _SOURCE_FIELDS.items()},
    )
    if found.min_rows and found.max_rows and found.min_rows > found.max_rows:
        raise InvalidConfigurationError("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
    return found


def read_sink_options(given: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
    """Return the options of a write; InvalidConfigurationError names the option and what it accepts."""
    options = GivenOptions(given, _SINK, _SINK_LATER, "sink")
    # LZ4 costs less time than the smaller entries save at the broker and its disk; Zstandard costs more.
    compression = options.read("compression", lambda text: word(text, _COMPRESSIONS), "lz4")
    delivery = options.read("delivery", lambda text: word(text, _DELIVERIES), _DELIVERIES[not streaming])
    exactly_once = delivery == "exactly-once"
    if exactly_once and options.read(ASYNC_PROGRESS, flag, False):
        raise InvalidConfigurationError(
            f"{ASYNC_PROGRESS} stores progress only from time to time: after a crash Spark gives other rows "
            "the number of a batch that was already written, so delivery=exactly-once cannot hold; leave "
            "that option out, or set delivery=at-least-once"
        )
    # The options of a view or table name the topic with the options for reading.
    topic = options.text("topic") or options.text("path") or options.text("subscribe")
    name = None if topic is None else short_name(topic)
    namespace, sink_id = _sink_name(options, name)
    _check_repetition(options, None if streaming or not exactly_once else sink_id)
    return SinkOptions(
        service_url=options.required("service.url"),
        client=options.client(),
        topic=name,
        flush_bytes=options.read("flushBytes", byte_size, 2**20),
        compression=None if compression == "none" else compression,
        include_headers=options.read("includeHeaders", flag, True),
        base64_headers=options.read("binaryHeaders", lambda text: word(text, ("fail", "base64")), "fail")
        == "base64",
        refuse_unknown_columns=options.read("failOnUnknownColumns", flag, True),
        streaming=streaming,
        exactly_once=exactly_once,
        sink_namespace=namespace,
        sink_id=sink_id,
        transaction=options.text("txnId"),
        batch=options.read("batchId", whole_number, None),
    )


def _sink_name(options: GivenOptions, topic: str | None) -> tuple[str, str | None]:
    """Return namespace and id of the sink: as given, or the topic's namespace and the checkpoint's id."""
    namespace = TopicName.parse(topic or "any", default_domain="topic").namespace_name
    given = options.text("sinkId")
    if given is not None:
        *place, sink_id = given.split("/")
        if len(place) not in (0, 2) or not re.fullmatch(r"[\w.-]{1,100}", sink_id, re.ASCII):
            raise InvalidConfigurationError(
                f"option sinkId is {given!r}; it takes up to 100 letters, digits, dots, dashes and "
                "underscores, with tenant/namespace/ before them if the sink's logs belong elsewhere"
            )
        if is_job_sink(sink_id):
            raise InvalidConfigurationError(
                f"option sinkId is {given!r}, but such names are reserved for batch jobs without sinkId; "
                "choose another one"
            )
        return "/".join(place) or namespace, sink_id
    checkpoint = options.text("checkpointLocation")
    return namespace, None if checkpoint is None else checkpoint_sink(checkpoint)


def _check_repetition(options: GivenOptions, sink_id: str | None) -> None:
    """Refuse names of batches where they cannot identify a repeated batch; `sink_id` is None for a stream.

    A stream would take all its micro-batches for the same batch, and write only the first one.
    """
    given = [name for name in ("txnId", "batchId") if options.text(name) is not None]
    if len(given) > 1:
        raise InvalidConfigurationError(f"options {' and '.join(given)} both name a batch; give one of them")
    if given and sink_id is None:
        raise InvalidConfigurationError(
            f"option {given[0]} is for batch writes with delivery=exactly-once and a sinkId, to recognise a "
            "job that is run again; a stream numbers its batches itself"
        )


def sink_part(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table or pipeline without those that only reading needs."""
    sink = {name.lower() for name in _SINK}
    reading = {name.lower() for name in _SOURCE} - sink
    return {name: text for name, text in options.items() if name.lower() not in reading}


def source_part(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a pipeline without those that only writing needs."""
    source = {name.lower() for name in _SOURCE}
    writing = {name.lower() for name in _SINK} - source
    return {name: text for name, text in options.items() if name.lower() not in writing}


def is_sink_option(name: str) -> bool:
    """Whether the sink has an option of this name, in upper or lower case."""
    return name.lower().startswith(PREFIXES) or name.lower() in map(str.lower, (*_SINK, *_SINK_LATER))


def is_source_option(name: str) -> bool:
    """Whether the source has an option of this name, in upper or lower case."""
    return name.lower().startswith(PREFIXES) or name.lower() in map(str.lower, (*_SOURCE, *_SOURCE_LATER))


def text_of(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as text, as Spark requires: cuts and other values as JSON, None left out."""
    found = {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        else:
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found
