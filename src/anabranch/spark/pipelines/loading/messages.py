"""Turns the rows of a source into messages with keys, values, event times and an order.

It also finds the rows that cannot be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.loading.source_files import NewRows
from anabranch.spark.sink.message_columns import EVENT_TIME_BYTES, HEADER_BYTES


@dataclass(frozen=True)
class LoadOptions:
    """How to read the files, and how to turn their rows into messages.

    Example:
        pipelines.LoadOptions(key="customer", value="amount", order_by=["number:int"])
    """

    format: str | None = None
    """parquet, csv, json or iceberg; None to tell it from the names of the files."""
    read_options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's reader of this format, or of the reader of Iceberg tables."""
    key: str | None = None
    """Column of the key; None sends messages without keys."""
    value: str | None = None
    """Column of the value; None sends the whole row as JSON."""
    event_time: str | None = None
    """Column of the event time."""
    order_by: Sequence[str] = ()
    """Columns that define the order, as `name` or `name:type`; empty for the order of files and rows."""
    rows_per_commit: int = 1_000_000
    """Most rows of one step."""
    state: str | None = None
    """The directory that stores the progress; in `anabranch-state/` if None."""


def messages(new: NewRows, given: LoadOptions) -> Any:
    """Return the rows as messages, in order."""
    from pyspark.sql import functions as sql

    frame, columns = new.frame, new.frame.columns
    named = [given.key, given.value, given.event_time, *(part.partition(":")[0] for part in given.order_by)]
    for name in named:
        if name is not None and name not in columns:
            raise InvalidConfigurationError(
                f"the files have no column {name}; they have {', '.join(columns)}"
            )
    made = _key_and_value(frame, given)
    if given.event_time:
        made.append(sql.col(_quoted(given.event_time)).cast("timestamp").alias("eventTime"))
    # A task reads its parts of files one after the other, so row numbers ascend within each part.
    row = sql.monotonically_increasing_id()
    wanted = [_order(part) for part in given.order_by]
    order = {f"_order{at}": column for at, column in enumerate([*wanted, *new.place, row])}
    arranged = frame.select(*made, *(column.alias(name) for name, column in order.items()))
    return arranged.orderBy(*order).drop(*order)


def extremes(given: LoadOptions) -> list[Any]:
    """Return the aggregates of messages that `refuse_unsendable` checks."""
    from pyspark.sql import functions as sql

    first_time = sql.min("eventTime") if given.event_time else sql.lit(None).cast("timestamp")
    return [sql.unix_millis(first_time).alias("first_ms"), sql.max(_size(given)).alias("largest")]


def refuse_unsendable(found: Sequence[Any], new: NewRows, given: LoadOptions, bytes_max: int) -> None:
    """Raise PipelineError if the extremes show that a message cannot be sent."""
    if any(row.first_ms is not None and row.first_ms < 0 for row in found):
        raise PipelineError(
            f"column {given.event_time} contains a time before 1970, which cannot be sent as an event time"
        )
    largest = max((row.largest for row in found), default=0)
    if largest > bytes_max:
        raise PipelineError(
            f"a row makes a message of {largest} bytes ({_place_of_largest(new, given)}); the broker takes "
            f"up to {bytes_max}. No row of the new files was sent: make the row smaller, or remove it, or "
            "raise max_message_bytes of the broker, and run the load again"
        )


def _place_of_largest(new: NewRows, given: LoadOptions) -> str:
    """Describe the largest row by its key, and by its file if the source knows it."""
    from pyspark.sql import functions as sql

    file = new.place[0] if new.place else sql.lit(None)
    rows = new.frame.select(*_key_and_value(new.frame, given), file.alias("file"))
    row = rows.orderBy(_size(given).desc()).select("key", "file").first()
    key = "no key" if row.key is None else f"key {bytes(row.key).decode(errors='backslashreplace')}"
    return key if row.file is None else f"{key}, in {row.file}"


def _size(given: LoadOptions) -> Any:
    """Return the size of a message in bytes, as the sink estimates it from the columns key and value."""
    from pyspark.sql import functions as sql

    key = sql.expr("octet_length(if(is_valid_utf8(string(key)), key, binary(base64(key))))")
    header = HEADER_BYTES + (EVENT_TIME_BYTES if given.event_time else 0)
    return sum((sql.coalesce(part, sql.lit(0)) for part in (key, sql.octet_length("value"))), sql.lit(header))


def _key_and_value(frame: Any, given: LoadOptions) -> list[Any]:
    from pyspark.sql import functions as sql

    value = (
        _bytes(frame, given.value) if given.value else sql.to_json(sql.struct(*map(_quoted, frame.columns)))
    )
    key = _bytes(frame, given.key) if given.key else sql.lit(None).cast("binary")
    return [key.alias("key"), value.cast("binary").alias("value")]


def _order(part: str) -> Any:
    from pyspark.sql import functions as sql

    name, _, kind = part.partition(":")
    column = sql.col(_quoted(name))
    return column.cast(kind) if kind else column


def _bytes(frame: Any, name: str) -> Any:
    from pyspark.sql import functions as sql

    column, kind = sql.col(_quoted(name)), dict(frame.dtypes)[name]
    if kind == "binary":
        return column
    # Spark's own text form of a struct, such as {1, a}, has no names and cannot be parsed.
    nested = kind.startswith(("struct<", "array<", "map<", "variant"))
    return (sql.to_json(column) if nested else column.cast("string")).cast("binary")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
