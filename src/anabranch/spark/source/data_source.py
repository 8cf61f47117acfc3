"""The data source that Spark loads: it reads options and schema, and makes the reader or writer of a query.

Spark loads this module in many short-lived processes, so it imports the sink, decoders and the client only
when a query needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.options.given import Settings
from anabranch.spark.options.queries import (
    SinkOptions,
    SourceOptions,
    read_sink_options,
    read_source_options,
    sink_part,
)
from anabranch.spark.options.values import CORRUPT, ValueOptions
from anabranch.spark.source.batch_reader import BatchReader
from anabranch.spark.source.stream_reader import StreamReader
from anabranch.spark.source.tables import options_of_table, recall_options, with_comment
from anabranch.spark.topics import Service
from anabranch.spark.worker_memory import prepare_worker

if TYPE_CHECKING:
    # Imported late: the processes of a source need nothing of the sink, and few queries decode values.
    from anabranch.spark.sink.writer import BatchWriter, StreamWriter
    from anabranch.spark.values.planning import SchemaOf, ValueSchema

FORMAT = "anabranch"

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

COLUMNS: Mapping[str, Any] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "segment": LongType(),
    "position": LongType(),
    "timestamp": TimestampType(),
    "eventTime": TimestampType(),
    "headers": ArrayType(_HEADER),
    "keyHash": IntegerType(),
    "producer": StringType(),
    "sequence": LongType(),
}
"""Every column that the source can fill, with its type."""

_ALWAYS = ("key", "value", "topic", "segment", "position", "timestamp")

_NEVER_NULL = ("topic", "segment", "position", "timestamp", "producer")


def source_schema(*, event_time: bool, headers: bool, key_hash: bool, producer: bool = False) -> Any:
    """Return the schema of a query for which the user defined none."""
    wanted = [*_ALWAYS]
    wanted += ["eventTime"] if event_time else []
    wanted += ["headers"] if headers else []
    wanted += ["keyHash"] if key_hash else []
    wanted += ["producer", "sequence"] if producer else []
    return StructType([StructField(name, COLUMNS[name]) for name in wanted])


def check_source_schema(schema: Any, values: ValueOptions | None = None) -> None:
    """Refuse columns that the source cannot fill, already when Spark plans the query."""
    columns = COLUMNS if values is None else decoded_columns(schema, values)
    if values is not None and CORRUPT in schema.names and "value" not in schema.names:
        raise InvalidConfigurationError(f"column {CORRUPT} is filled together with value; add that column")
    seen = set()
    for column in schema.fields:
        kind = columns.get(column.name)
        if kind is None:
            raise InvalidConfigurationError(
                f"the source has no column {column.name}; it has {', '.join(columns)}"
            )
        if column.name in seen:
            raise InvalidConfigurationError(f"the schema names column {column.name} twice")
        seen.add(column.name)
        if column.dataType != kind:
            raise InvalidConfigurationError(
                f"column {column.name} is of type {kind.simpleString()}, not {column.dataType.simpleString()}"
            )
        if not column.nullable and column.name not in _NEVER_NULL:
            raise InvalidConfigurationError(f"column {column.name} may be null; declare it without NOT NULL")


def decoded_columns(schema: Any, values: ValueOptions) -> dict[str, Any]:
    """Return the columns of a query that decodes values; the type of the values is checked separately."""
    columns = dict(COLUMNS)
    if "value" in schema.names:
        columns["value"] = schema["value"].dataType
    if values.bad_rows == "column":
        columns[CORRUPT] = BinaryType()
    return columns


def with_values(columns: Any, kind: Any, values: ValueOptions) -> Any:
    """Return the schema with the type of decoded values; as text if the type is given as DDL."""
    kinds = {field.name: kind if field.name == "value" else field.dataType for field in columns}
    if values.bad_rows == "column":
        kinds[CORRUPT] = BinaryType()
    if not isinstance(kind, str):
        return StructType([StructField(name, of_column) for name, of_column in kinds.items()])
    # Only Spark's JVM can parse DDL, and it accepts a whole schema as DDL.
    texts = {name: kind if name == "value" else other.simpleString() for name, other in kinds.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def _registry(service: Service, options: SourceOptions) -> tuple[Sequence[str], SchemaOf]:
    """Return the topics of a query, and a function that asks a broker for their registered schemas."""
    if options.pattern is not None and options.values is not None and options.values.registered:
        raise InvalidConfigurationError(
            "valueSchema=registered needs topics by name, not by subscribePattern"
        )
    return options.topics, lambda topic: service.reader().schema(topic)


class AnabranchSource(DataSource):  # type: ignore[misc]
    """`.format("anabranch")` for `read`, `readStream`, `write` and `writeStream`.

    Example:
        spark.dataSource.register(AnabranchSource)
        orders = spark.read.format("anabranch").option("service.url", "pulsar://127.0.0.1:6650").load("orders")
        orders.groupBy("segment").count().show()
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def service(self, url: str, settings: Settings) -> Service:
        """Return the service through which readers and writers reach topics; tests override this."""
        prepare_worker()
        # Imported late: Spark loads this module in processes that never connect.
        from anabranch.spark.service import BrokerService

        return BrokerService(url, settings)

    def schema(self) -> Any:
        table = options_of_table(self.options)
        options = read_source_options(self.options if table is None else table)
        columns = self._columns(options)
        return columns if table is None else with_comment(columns, table)

    def _columns(self, options: SourceOptions) -> Any:
        columns = source_schema(
            event_time=options.include_event_time,
            headers=options.include_headers,
            key_hash=options.include_hash,
            producer=options.include_producer,
        )
        if options.values is None:
            return columns
        from anabranch.spark.values.planning import value_type

        service = self.service(options.service_url, options.client)
        kind = value_type(options.values, *_registry(service, options))
        return with_values(columns, kind, options.values)

    def reader(self, schema: Any) -> BatchReader:
        return BatchReader(*self._read_from(schema))

    def streamReader(self, schema: Any) -> StreamReader:  # noqa: N802
        return StreamReader(*self._read_from(schema))

    def _read_from(self, schema: Any) -> tuple[Service, SourceOptions, Any, ValueSchema | None]:
        options = read_source_options(recall_options(schema, self.options))
        check_source_schema(schema, options.values)
        service = self.service(options.service_url, options.client)
        values = None
        if options.values is not None and "value" in schema.names:
            from anabranch.spark.values.planning import plan_values

            values = plan_values(options.values, schema["value"].dataType, *_registry(service, options))
        return service, options, schema, values

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise InvalidConfigurationError('a topic cannot be overwritten; write with .mode("append")')
        from anabranch.spark.sink.writer import BatchWriter

        given = sink_part(recall_options(schema, self.options))
        return BatchWriter(*self._write_to(schema, given, streaming=False))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802
        if overwrite:
            raise InvalidConfigurationError(
                'a topic cannot be overwritten; use .outputMode("append"), or foreachBatch for complete mode'
            )
        from anabranch.spark.sink.writer import StreamWriter

        # A column may carry the comment of the table that the stream reads, which is not the one to write to.
        return StreamWriter(*self._write_to(schema, self.options, streaming=True))

    def _write_to(
        self, schema: Any, given: Mapping[str, str], *, streaming: bool
    ) -> tuple[Service, SinkOptions]:
        from anabranch.spark.sink.writer import check_sink_schema

        options = read_sink_options(given, streaming=streaming)
        check_sink_schema(schema, options)
        return self.service(options.service_url, options.client), options
