"""What users may set on a source or sink, read and checked once, when a query is planned.

Spark hands over option names in lower case. A name we do not know is refused with the nearest one we do,
because a misspelt limit or start that is silently ignored costs data or money.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import TopicName
from anabranch.spark.decide.offsets import Cut, Start, parse_request

Ordering = Literal["key", "none"]
Settings = tuple[tuple[str, Any], ...]
"""Keyword arguments of the client, as a value that can be compared, hashed and pickled."""

_SOURCE = (
    "service.url",
    "subscribe",
    "topic",
    "topics",
    "path",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxPartitions",
    "minPartitions",
    "maxRecordsPerPartition",
    "splitBytes",
    "ordering",
    "chainSegments",
    "bucketsPerSegment",
    "failOnDataLoss",
    "includeHeaders",
    "includeEventTime",
    "includeHash",
    "pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "metadata.cache.ttl.ms",
)
_SOURCE_LATER = (
    "subscribePattern",
    "assign",
    "paths",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "includeProducer",
    "subscription",
    "waitForTopic",
    "isolation",
    "columnNames",
)
_SINK = (
    "service.url",
    "topic",
    "path",
    "checkpointLocation",
    "delivery",
    "flushBytes",
    "compression",
    "includeHeaders",
    "failOnUnknownColumns",
)
_SINK_LATER = (
    "sinkId",
    "txnId",
    "batchId",
    "sequenceColumn",
    "producerColumn",
    "txnTimeout",
    "lingerMs",
    "maxInFlight",
)

_CLIENT = {
    "operationtimeout": "operation_timeout",
    "connecttimeout": "connect_timeout",
    "keepaliveinterval": "keep_alive_interval",
}

_COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")
_UNITS_S = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS_BYTES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read, batch or stream; None where the user set nothing and there is no default."""

    service_url: str
    client: Settings
    topics: tuple[str, ...]
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
    include_headers: bool
    include_event_time: bool
    include_hash: bool
    poll_timeout_s: float
    retries: int
    retry_interval_s: float
    view_ttl_s: float


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write, batch or stream."""

    service_url: str
    client: Settings
    topic: str | None
    flush_bytes: int
    compression: str | None
    include_headers: bool
    refuse_unknown_columns: bool


def read_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidConfigurationError with the option's name and what it takes."""
    options = _Options(given, _SOURCE, _SOURCE_LATER, "source")
    topics = _topics(options)
    buckets = options.read("bucketsPerSegment", _count) or 1
    ordering = options.read("ordering", lambda text: _word(text, ("key", "none")))
    found = SourceOptions(
        service_url=options.required("service.url"),
        client=options.client(),
        topics=topics,
        starting=_request(options, "startingOffsets"),
        ending=_request(options, "endingOffsets"),
        max_rows=options.either(("maxOffsetsPerTrigger", "maxRecordsPerTrigger"), _count),
        max_bytes=options.read("maxBytesPerTrigger", _size),
        min_rows=options.read("minOffsetsPerTrigger", _count),
        max_delay_s=options.read("maxTriggerDelay", _duration, 15 * 60.0),
        max_partitions=options.read("maxPartitions", _count),
        min_partitions=options.read("minPartitions", _count),
        max_partition_rows=options.read("maxRecordsPerPartition", _count),
        split_bytes=options.read("splitBytes", _size),
        ordering=None if ordering is None else "key" if ordering == "key" else "none",
        chain=options.read("chainSegments", _flag, True),
        buckets=buckets,
        fail_on_data_loss=options.read("failOnDataLoss", _flag, True),
        include_headers=options.read("includeHeaders", _flag, False),
        include_event_time=options.read("includeEventTime", _flag, False),
        include_hash=options.read("includeHash", _flag, False),
        poll_timeout_s=options.read("pollTimeoutMs", _duration, 120.0),
        retries=options.read("fetchOffset.numRetries", _whole, 3),
        retry_interval_s=options.read("fetchOffset.retryIntervalMs", _duration, 0.01),
        view_ttl_s=options.read("metadata.cache.ttl.ms", _duration, 0.05),
    )
    if found.min_rows and found.max_rows and found.min_rows > found.max_rows:
        raise InvalidConfigurationError("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
    return found


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises InvalidConfigurationError with the option's name and what it takes."""
    options = _Options(given, _SINK, _SINK_LATER, "sink")
    delivery = options.text("delivery") or "at-least-once"
    if delivery != "at-least-once":
        raise InvalidConfigurationError(
            f"delivery={delivery} is not supported yet; at-least-once is: a task that is retried writes again"
        )
    # LZ4 costs less than the bytes it saves on their way through broker and disk; Zstandard does not.
    compression = options.read("compression", lambda text: _word(text, _COMPRESSIONS)) or "lz4"
    topic = options.text("topic") or options.text("path")
    return SinkOptions(
        service_url=options.required("service.url"),
        client=options.client(),
        topic=None if topic is None else short_name(topic),
        flush_bytes=options.read("flushBytes", _size, 2**20),
        compression=None if compression == "none" else compression,
        include_headers=options.read("includeHeaders", _flag, True),
        refuse_unknown_columns=options.read("failOnUnknownColumns", _flag, True),
    )


def short_name(text: str) -> str:
    """One spelling per topic: the bare name in topic://public/default, the full name elsewhere.

    Offsets and the topic column carry it, so a query may be restarted with the topic spelt differently.
    """
    name = TopicName.parse(text.strip(), default_domain="topic")
    full = str(name)
    return full.removeprefix("topic://public/default/")


class _Options:
    """The options of one query by their lower-case names."""

    def __init__(
        self, given: Mapping[str, str], known: tuple[str, ...], later: tuple[str, ...], what: str
    ) -> None:
        self._given = {name.lower(): text for name, text in given.items()}
        self._check(known, later, what)

    def _check(self, known: tuple[str, ...], later: tuple[str, ...], what: str) -> None:
        names = {name.lower(): name for name in known}
        not_yet = {name.lower(): name for name in later}
        for name in sorted(self._given):
            if name in names or name.startswith("client."):
                continue
            if name in not_yet:
                raise InvalidConfigurationError(f"option {not_yet[name]} of the {what} is not supported yet")
            near = get_close_matches(name, [*names, *not_yet], 1, 0.5)
            hint = f"did you mean {(names | not_yet)[near[0]]}?" if near else f"known are {', '.join(known)}"
            raise InvalidConfigurationError(f"the {what} has no option {name}; {hint}")

    def text(self, name: str) -> str | None:
        found = self._given.get(name.lower())
        return None if found is None or not found.strip() else found.strip()

    def required(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise InvalidConfigurationError(
                f"option {name} is required"
                + (", for instance pulsar://127.0.0.1:6650" if name == "service.url" else "")
            )
        return found

    def read(self, name: str, parse: Callable[[str], T], otherwise: Any = None) -> Any:
        text = self.text(name)
        if text is None:
            return otherwise
        try:
            return parse(text)
        except ValueError as error:
            raise InvalidConfigurationError(f"option {name} is {text!r}; {error}") from None

    def either(self, names: tuple[str, ...], parse: Callable[[str], T]) -> Any:
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise InvalidConfigurationError(f"options {' and '.join(given)} mean the same; give one of them")
        return self.read(given[0], parse) if given else None

    def client(self) -> Settings:
        """Settings that go on to the client; their names are matched without case and punctuation."""
        found = {}
        for name in sorted(self._given):
            if name.startswith("client."):
                setting = re.sub(r"[^a-z]", "", name.removeprefix("client."))
                if setting not in _CLIENT:
                    raise InvalidConfigurationError(
                        f"option {name} is not supported; the client takes "
                        "client.operationTimeout, client.connectTimeout and client.keepAliveInterval"
                    )
                found[_CLIENT[setting]] = self.read(name, _duration)
        return tuple(sorted(found.items()))


def _topics(options: _Options) -> tuple[str, ...]:
    given = [name for name in ("subscribe", "topic", "topics", "path") if options.text(name) is not None]
    if len(given) != 1:
        said = " and ".join(given) if given else "none of them"
        raise InvalidConfigurationError(
            f"name the topic with one of the options subscribe, topic, topics or load(...); given: {said}"
        )
    names = [short_name(part) for part in (options.text(given[0]) or "").split(",") if part.strip()]
    if len(set(names)) < len(names):
        raise InvalidConfigurationError(f"option {given[0]} names a topic twice: {', '.join(names)}")
    return tuple(sorted(names))


def _request(options: _Options, name: str) -> Start | None:
    text = options.text(name)
    if text is None:
        return None
    request = parse_request(text, name)
    if isinstance(request.at, str):
        return request
    return Start(Cut({short_name(topic): cut for topic, cut in request.at.topics.items()}))


def _flag(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError("it takes true or false")
    return words[text.lower()]


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise ValueError("it takes a whole number")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise ValueError("it takes a whole number of at least 1")
    return int(text)


def _word(text: str, allowed: tuple[str, ...]) -> str:
    if text.lower() not in allowed:
        raise ValueError(f"it takes one of {', '.join(allowed)}")
    return text.lower()


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if not match or match[2] not in _UNITS_BYTES or int(match[1]) < 1:
        raise ValueError("it takes bytes, such as 1048576, 512k, 64m or 1g")
    return int(match[1]) * _UNITS_BYTES[match[2]]


def _duration(text: str) -> float:
    """Seconds; a bare number is in milliseconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if not match or match[2] not in _UNITS_S:
        raise ValueError("it takes a time, such as 500 (milliseconds), 500ms, 10s or 15m")
    return float(match[1]) * _UNITS_S[match[2]]


def text_of(options: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark takes them: text, with cuts and other values as JSON; None is left out."""
    found = {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        else:
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found
