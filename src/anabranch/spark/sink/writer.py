"""The sink that Spark calls: Arrow batches in, messages out.

With `delivery=at-least-once`, a task writes to the topic and ends when all its messages are stored; a task
that Spark retries writes its rows again. With `exactly-once`, a task stages its rows, and `commit` publishes
them; see `exactly_once`. `abort` undoes nothing.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType, TimestampType

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.columns import hash_column
from anabranch.spark.decide.source.topic_names import short_name
from anabranch.spark.options.queries import SinkOptions
from anabranch.spark.sink.exactly_once import commit_staged, stage_rows
from anabranch.spark.topics import Headers, OutgoingRows, Service, TopicWriter

log = logging.getLogger("anabranch.spark")

_BYTES = (BinaryType, StringType)
_ACCEPTED: Mapping[str, tuple[Any, ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (StringType,),
    "eventTime": (TimestampType,),
    "timestamp": (TimestampType,),
    "headers": (ArrayType,),
}
_NOT_WRITTEN = ("segment", "position", "keyHash", "producer", "sequence")
"""Columns of the source that describe where a row came from; the sink ignores them."""


def check_sink_schema(schema: Any, options: SinkOptions) -> None:
    """Refuse columns that cannot be written, already when Spark plans the query."""
    names = [column.name for column in schema.fields]
    if "value" not in names:
        raise InvalidConfigurationError(
            f"the sink needs a column value, binary or string; the columns are {', '.join(names)}"
        )
    for column in schema.fields:
        _check_column(column, options)
    if "headers" in names and options.include_headers:
        _check_headers(schema["headers"].dataType)
    if options.topic is None and "topic" not in names:
        raise InvalidConfigurationError("name the topic with the option topic, or add a column topic")


def _check_column(column: Any, options: SinkOptions) -> None:
    if column.name in _NOT_WRITTEN:
        return
    kinds = _ACCEPTED.get(column.name)
    if kinds is None:
        if options.refuse_unknown_columns:
            raise InvalidConfigurationError(
                f"the sink does not know column {column.name}; it writes {', '.join(_ACCEPTED)}. "
                "Drop the column or set failOnUnknownColumns=false"
            )
    elif not isinstance(column.dataType, kinds):
        raise InvalidConfigurationError(
            f"column {column.name} is of type {column.dataType.simpleString()}; "
            f"the sink takes {' or '.join(kind.typeName() for kind in kinds)}"
        )


def _check_headers(kind: Any) -> None:
    element = kind.elementType
    fields = [(f.name, type(f.dataType)) for f in element.fields] if isinstance(element, StructType) else []
    if [name for name, _ in fields] != ["key", "value"] or any(kind not in _BYTES for _, kind in fields):
        raise InvalidConfigurationError(
            f"column headers is of type {kind.simpleString()}; "
            "the sink takes array<struct<key:string,value:binary>>"
        )


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """The number of rows that one task wrote."""

    rows: int


class _Writer:
    def __init__(self, service: Service, options: SinkOptions) -> None:
        self.service = service
        self.options = options
        self.write_id = uuid4().hex
        """Names this write. The writers in tasks and the one that commits are copies of one object."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if self.options.exactly_once:
            rows = _rows_by_topic(iterator, self.options)
            return stage_rows(self.service, self.options, self.write_id, rows)
        return write_batches(self.service, self.options, iterator)


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of a batch job."""

    def commit(self, messages: list[Any]) -> None:
        """Publish staged rows. With at-least-once, all rows are already stored."""
        if self.options.exactly_once:
            commit_staged(self.service, messages)

    def abort(self, messages: list[Any]) -> None:
        _warn_of_leftovers(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the rows of micro-batches."""

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Publish staged rows. With at-least-once, all rows are already stored."""
        if self.options.exactly_once:
            commit_staged(self.service, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        _warn_of_leftovers(messages)


def _warn_of_leftovers(messages: list[Any]) -> None:
    # A failed task is None in the list. Staged rows are not visible and need no warning.
    rows = sum(message.rows for message in messages if isinstance(message, Written))
    if rows:
        log.warning("the write failed after %d rows were stored; a retry writes these rows again", rows)


def write_batches(service: Service, options: SinkOptions, batches: Iterator[Any]) -> Written:
    """Write all rows and wait until they are stored; the rows of each topic keep their order."""
    writers: dict[str, TopicWriter] = {}
    rows = 0
    try:
        for batch in batches:
            rows += batch.num_rows
            for topic, part in _by_topic(batch, options.topic):
                if topic not in writers:
                    writers[topic] = service.writer(topic, options.flush_bytes, options.compression)
                writers[topic].write(outgoing_rows(part, options))
        for writer in writers.values():
            writer.finish()
    finally:
        for writer in writers.values():
            writer.close()
    return Written(rows)


def _rows_by_topic(batches: Iterator[Any], options: SinkOptions) -> Iterator[tuple[str, OutgoingRows]]:
    for batch in batches:
        for topic, part in _by_topic(batch, options.topic):
            yield topic, outgoing_rows(part, options)


def _by_topic(batch: Any, topic: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the batch with its topic, or a part for each topic in the topic column, rows in order."""
    if batch.num_rows == 0:
        return
    if topic is not None:
        yield topic, batch
        return
    names = batch.column(batch.schema.get_field_index("topic"))
    if names.null_count:
        raise InvalidConfigurationError("column topic is null in a row, and the option topic is not set")
    distinct = sorted(pc.unique(names).to_pylist())
    for name in distinct:
        part = batch if len(distinct) == 1 else batch.filter(pc.equal(names, pa.scalar(name, names.type)))
        yield short_name(name), part


def outgoing_rows(batch: Any, options: SinkOptions) -> OutgoingRows:
    """Return the columns of a batch as messages."""
    columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    keys = columns.get("key")
    if keys is not None and keys.null_count == len(keys):
        keys = None
    # Without a column eventTime, the publish time at the source becomes the event time.
    times = columns.get("eventTime", columns.get("timestamp"))
    headers = columns.get("headers") if options.include_headers else None
    return OutgoingRows(
        values=columns["value"],
        keys=keys,
        hashes=None if keys is None else hash_column(keys),
        event_times_ms=None if times is None or times.null_count == len(times) else _milliseconds(times),
        headers=None
        if headers is None
        else [_header_pairs(pairs, as_base64=options.base64_headers) for pairs in headers.to_pylist()],
    )


def _milliseconds(times: Any) -> Any:
    microseconds = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    found = np.asarray(pc.fill_null(microseconds, 0)) // 1000
    if len(found) and found.min() < 0:
        raise InvalidConfigurationError(
            "a column of times holds a time before 1970, which cannot be sent; make it null"
        )
    return found


def _header_pairs(pairs: list[dict[str, Any]] | None, *, as_base64: bool) -> Headers | None:
    """Return the headers of a row in their order; a repeated key stays repeated."""
    found = []
    for pair in pairs or ():
        key, value = (None, None) if pair is None else (pair["key"], pair["value"])
        if key is None or value is None:
            raise InvalidConfigurationError(
                "column headers holds a null header, key or value, which cannot be sent; remove it"
            )
        raw = value.encode() if isinstance(value, str) else bytes(value)
        found.append((_header_text(key), b64encode(raw).decode() if as_base64 else _header_text(raw, key)))
    return tuple(found) or None


def _header_text(raw: bytes | str, key: object = "") -> str:
    try:
        return raw if isinstance(raw, str) else raw.decode()
    except UnicodeDecodeError:
        raise InvalidConfigurationError(
            f"the header {key!r} is not text, and headers are sent as UTF-8 properties; encode the value in "
            "the query, or set binaryHeaders=base64, which sends all values of headers as Base64"
        ) from None
