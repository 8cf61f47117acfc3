"""The one pass of a verification: it turns messages into sums by segment, block of positions and producer.

All messages of a key come to one task, which compares them with their neighbours. Spark sorts and counts, so
neither the keys nor the messages of a task have to fit into memory. `spark.decide.pipelines.evidence`
interprets the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.pipelines.evidence import BLOCK_POSITIONS
from anabranch.spark.decide.pipelines.verify_report import Kind


@dataclass(frozen=True, slots=True)
class Expectations:
    """Promises of the application and of the operator, in addition to those of the broker.

    Example:
        pipelines.Expectations(sequence_path="$.sequence", sequence_first=1, complete=True)
    """

    sequence_header: str | None = None
    """The header with the application's own number, which rises by one within each key."""
    sequence_path: str | None = None
    """The JSON path of that number in the value, such as $.sequence."""
    sequence_first: int | None = None
    """The application's first number of each key."""
    dense_producers: bool = False
    """Whether each producer uses all sequence ids, so that a missing one is a lost message."""
    complete: bool = False
    """Whether no message has ever been removed by retention."""
    clock_tolerance_s: float = 60.0
    """How far the publish times of a producer may go backwards."""

    def __post_init__(self) -> None:
        if self.sequence_header is not None and self.sequence_path is not None:
            raise InvalidConfigurationError("give either a header or a path for the sequence, not both")
        if self.sequence_first is not None and not self.numbered:
            raise InvalidConfigurationError("a first number needs the header or the path of the sequence")
        if self.sequence_path is not None and not self.sequence_path.startswith("$"):
            raise InvalidConfigurationError(
                f"{self.sequence_path!r} is not a JSON path; it has to begin with $, such as $.number"
            )
        if not self.clock_tolerance_s >= 0:
            raise InvalidConfigurationError(
                f"the clock tolerance is {self.clock_tolerance_s}; it must be at least 0 seconds"
            )

    @property
    def numbered(self) -> bool:
        return self.sequence_header is not None or self.sequence_path is not None


class VerifyPass:
    """The one pass: it turns messages into sums by segment, block and producer."""

    def __init__(self, expect: Expectations, *, counted: bool) -> None:
        """`counted` means that positions count messages; otherwise a segment is one block."""
        self._expect = expect
        self._counted = counted

    def over(self, messages: Any) -> Any:
        """Return the sums. A key's messages come to one task; keyless ones go by producer and sequence id."""
        # A separate column that every comparison is partitioned by, so that one shuffle serves them all.
        spread = sql.xxhash64("producer", sql.coalesce("sequence", "position"))
        group = sql.when(sql.col("key").isNull(), spread)
        rows = messages.withColumn("keyGroup", group.otherwise(sql.xxhash64("key"))).withColumn(
            "number", self._number()
        )
        rows = self._by_producer(rows.drop("headers", "value").repartition("keyGroup"))
        if self._expect.numbered:
            rows = self._by_number(rows)
        block = sql.expr(f"position div {BLOCK_POSITIONS}" if self._counted else "0L").alias("block")
        return rows.groupBy("segment", block, "producer").agg(*self._sums(), *self._faults())

    def _number(self) -> Any:
        """Return the application's own number of a message, or null if it has none."""
        expect = self._expect
        if expect.sequence_header is not None:
            name = expect.sequence_header
            named = sql.filter("headers", lambda header: header["key"] == sql.lit(name))
            return sql.try_element_at(named, sql.lit(1))["value"].cast("string").try_cast("bigint")
        if expect.sequence_path is not None:
            return sql.get_json_object(sql.col("value").cast("string"), expect.sequence_path).try_cast(
                "bigint"
            )
        return sql.lit(None).cast("bigint")

    def _by_producer(self, rows: Any) -> Any:
        """Compare each message with the earlier ones of its producer and key."""
        keyed = Window.partitionBy("keyGroup", "key", "producer")
        before = keyed.orderBy("segment", "position").rowsBetween(Window.unboundedPreceding, -1)
        # This one needs the same order as `before`, so Spark does not sort again.
        first_of_key = Window.partitionBy("keyGroup", "key").orderBy("producer", "segment", "position")
        alike = keyed.orderBy("sequence", "segment", "position")
        has_key = sql.col("key").isNotNull()
        step = sql.col("timestamp") + sql.make_dt_interval(secs=sql.lit(self._expect.clock_tolerance_s))
        return (
            rows.withColumn("highest", sql.max("sequence").over(before))
            .withColumn("latest", sql.max("timestamp").over(before))
            .withColumn("newKey", has_key & (sql.row_number().over(first_of_key) == 1))
            .withColumn("twin", sql.lag(sql.struct("sequence", "segment", "position")).over(alike))
            .withColumn(
                "again", sql.coalesce(sql.col("twin.sequence") == sql.col("sequence"), sql.lit(False))
            )
            .withColumn("late", has_key & ~sql.col("again") & (sql.col("sequence") < sql.col("highest")))
            .withColumn("backwards", has_key & (sql.col("latest") > step))
        )

    def _by_number(self, rows: Any) -> Any:
        """Compare the application's own numbers within each key."""
        keyed = Window.partitionBy("keyGroup", "key")
        before = keyed.orderBy("segment", "position").rowsBetween(Window.unboundedPreceding, -1)
        ascending = keyed.orderBy("number", "segment", "position")
        number, has_key = sql.col("number"), sql.col("key").isNotNull()
        lower = sql.col("lower.number")
        # Null after the largest possible number, which nothing can follow.
        wanted = sql.try_add(lower, sql.lit(1))
        if self._expect.sequence_first is not None:
            wanted = sql.when(lower.isNull(), sql.lit(self._expect.sequence_first)).otherwise(wanted)
        return (
            rows.withColumn("highestNumber", sql.max("number").over(before))
            .withColumn("lower", sql.lag(sql.struct("number", "segment", "position")).over(ascending))
            .withColumn("wanted", wanted)
            .withColumn(
                "numberAgain", has_key & sql.coalesce(sql.col("lower.number") == number, sql.lit(False))
            )
            .withColumn("numberGap", has_key & (number > sql.col("wanted")))
            .withColumn("numberLate", has_key & ~sql.col("numberAgain") & (number < sql.col("highestNumber")))
        )

    def _sums(self) -> list[Any]:
        position, slot = sql.col("position"), sql.shiftrightunsigned("keyHash", 16).alias("slot")
        spot = sql.when(sql.col("key").isNotNull(), sql.struct(slot, "position", "key"))
        return [
            sql.count("*").alias("messages"),
            sql.min("position").alias("first"),
            sql.max("position").alias("last"),
            sql.sum(position % BLOCK_POSITIONS).alias("offsetSum"),
            sql.min(spot).alias("lowest"),
            sql.max(spot).alias("highestSlot"),
            sql.count_if("newKey").alias("keys"),
            sql.count_if(sql.col("key").isNull()).alias("withoutKey"),
            sql.count_if(sql.col("sequence").isNull()).alias("withoutSequence"),
            sql.count_if(sql.col("number").isNull()).alias("withoutNumber"),
            sql.min("sequence").alias("lowestSequence"),
            sql.max("sequence").alias("highestSequence"),
        ]

    def _faults(self) -> list[Any]:
        found = []
        for fault in FAULTS:
            if fault.of_number and not self._expect.numbered:
                continue
            here = sql.col(fault.column)
            place = sql.struct(
                "position",
                "key",
                sql.format_string(fault.expected, *map(_shown, fault.expected_columns)).alias("expected"),
                sql.format_string(fault.found, *map(_shown, fault.found_columns)).alias("found"),
            )
            found += [
                sql.count_if(here).alias(fault.number),
                sql.min(sql.when(here, place)).alias(fault.first),
            ]
        return found


def _shown(name: str) -> Any:
    # Spark formats a time as a number unless it is text.
    return sql.col(name).cast("string") if name in ("latest", "timestamp") else sql.col(name)


@dataclass(frozen=True, slots=True)
class MessageFault:
    """A kind of fault: the column that marks faulty messages, and texts with the columns that fill them."""

    kind: Kind
    column: str
    expected: str
    expected_columns: tuple[str, ...]
    found: str
    found_columns: tuple[str, ...]
    of_number: bool = False

    @property
    def number(self) -> str:
        """The column with the number of faulty messages."""
        return f"{self.column}Count"

    @property
    def first(self) -> str:
        """The column with the place of the first faulty message."""
        return f"{self.column}First"


FAULTS = (
    MessageFault(
        "repeated",
        "again",
        "sequence id %d of the producer once",
        ("sequence",),
        "also at position %d of segment %d",
        ("twin.position", "twin.segment"),
    ),
    MessageFault(
        "reordered",
        "late",
        "a sequence id of the producer above %d",
        ("highest",),
        "sequence id %d",
        ("sequence",),
    ),
    MessageFault(
        "clock",
        "backwards",
        "a publish time of the producer near %s or later",
        ("latest",),
        "%s",
        ("timestamp",),
    ),
    MessageFault("missing", "numberGap", "number %d of the key", ("wanted",), "number %d", ("number",), True),
    MessageFault(
        "repeated",
        "numberAgain",
        "number %d of the key once",
        ("number",),
        "also at position %d of segment %d",
        ("lower.position", "lower.segment"),
        True,
    ),
    MessageFault(
        "reordered",
        "numberLate",
        "a number of the key above %d",
        ("highestNumber",),
        "number %d",
        ("number",),
        True,
    ),
)
