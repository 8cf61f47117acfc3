from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import mmh3
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from anabranch.errors import InvalidConfigurationError, SendTimeoutError
from anabranch.spark.options.queries import read_sink_options
from anabranch.spark.sink.writer import check_sink_schema, outgoing_rows, write_batches
from anabranch.spark.source.data_source import AnabranchSource
from anabranch.spark.topics import OutgoingRows, Sink, TopicReader

URL = "pulsar://127.0.0.1:6650"


class ListWriter:
    def __init__(self, service: ListService, topic: str) -> None:
        self._service = service
        self._topic = topic

    def write(self, rows: OutgoingRows) -> None:
        self._service.written.setdefault(self._topic, []).extend(rows.values.to_pylist())

    def finish(self) -> None:
        self._service.events.append(f"finish {self._topic}")
        if self._service.failing:
            raise SendTimeoutError("the broker is gone")

    def close(self) -> None:
        self._service.events.append(f"close {self._topic}")


class ListService:
    def __init__(self) -> None:
        self.written: dict[str, list[Any]] = {}
        self.events: list[str] = []
        self.failing = False

    def reader(self) -> TopicReader:
        raise NotImplementedError

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> ListWriter:
        return ListWriter(self, topic)

    def sink(self, namespace: str, sink_id: str) -> Sink:
        raise NotImplementedError


def options(**given: str) -> Any:
    return read_sink_options({"service.url": URL, **given})


def batches(*columns: dict[str, Any]) -> Iterator[Any]:
    return iter([pa.record_batch(c) for c in columns])


def test_rows_go_to_the_topic_of_the_option_and_are_stored_on_return() -> None:
    service = ListService()
    rows = batches(
        {"value": pa.array([b"a", b"b"]), "topic": pa.array(["x", "y"])},
        {"value": pa.array([b"c"]), "topic": pa.array(["x"])},
    )
    written = write_batches(service, options(topic="orders"), rows)
    assert written.rows == 3
    assert service.written == {"orders": [b"a", b"b", b"c"]}
    assert service.events == ["finish orders", "close orders"]


def test_without_the_option_the_topic_column_decides() -> None:
    service = ListService()
    rows = batches(
        {"value": pa.array([b"a", b"b", b"c"]), "topic": pa.array(["x", "topic://public/default/y", "x"])}
    )
    write_batches(service, options(), rows)
    assert service.written == {"x": [b"a", b"c"], "y": [b"b"]}


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="topic is null"):
        write_batches(
            ListService(),
            options(),
            batches({"value": pa.array([b"a"]), "topic": pa.array([None], pa.string())}),
        )


def test_a_failed_write_is_raised_and_everything_is_closed() -> None:
    service = ListService()
    service.failing = True
    with pytest.raises(SendTimeoutError):
        write_batches(service, options(topic="orders"), batches({"value": pa.array([b"a"])}))
    assert service.events[-1] == "close orders"


def test_no_rows_need_no_producer() -> None:
    service = ListService()
    assert write_batches(service, options(topic="orders"), batches()).rows == 0
    assert service.events == []


def test_keys_are_hashed_as_a_column() -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "key": pa.array(["k1", None])})
    rows = outgoing_rows(batch, options(topic="t"))
    assert rows.hashes is not None
    assert rows.hashes.tolist() == [mmh3.hash("k1", 0, False), 0]
    keyless = pa.record_batch({"value": pa.array([b"a"]), "key": pa.array([None], pa.binary())})
    assert outgoing_rows(keyless, options(topic="t")).keys is None


def test_an_event_time_wins_over_the_time_of_publishing() -> None:
    times = [datetime(2024, 1, 1, tzinfo=UTC), None]
    stamp = pa.timestamp("us", "UTC")
    both = pa.record_batch(
        {
            "value": pa.array([b"a", b"b"]),
            "timestamp": pa.array([datetime(2020, 1, 1, tzinfo=UTC)] * 2, stamp),
            "eventTime": pa.array(times, stamp),
        }
    )
    found = outgoing_rows(both, options(topic="t")).event_times_ms
    assert found is not None
    assert found.tolist() == [1_704_067_200_000, 0]
    only = outgoing_rows(both.drop_columns(["eventTime"]), options(topic="t")).event_times_ms
    assert only is not None
    assert only.tolist() == [1_577_836_800_000] * 2


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_a_time_before_1970_is_refused() -> None:
    (batch,) = batches(
        {
            "value": pa.array([b"a"], pa.binary()),
            "eventTime": pa.array([datetime(1969, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        }
    )
    with pytest.raises(InvalidConfigurationError, match="1970"):
        outgoing_rows(batch, options())


def test_headers_become_properties() -> None:
    rows = [[{"key": "a", "value": b"b"}], [], None]
    batch = pa.record_batch({"value": pa.array([b"a"] * 3), "headers": pa.array(rows, HEADERS)})
    assert outgoing_rows(batch, options(topic="t")).headers == [(("a", "b"),), None, None]
    assert outgoing_rows(batch, options(topic="t", includeHeaders="false")).headers is None


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([{"key": "a", "value": b"\xff"}], "'a' is not text.*binaryHeaders=base64"),
        ([{"key": "a", "value": None}], "null"),
        ([None], "a null header"),
    ],
)
def test_headers_without_a_wire_form_are_refused(pairs: list[dict[str, Any] | None], words: str) -> None:
    batch = pa.record_batch({"value": pa.array([b"a"]), "headers": pa.array([pairs], HEADERS)})
    with pytest.raises(InvalidConfigurationError, match=words):
        outgoing_rows(batch, options(topic="t"))


def test_a_repeated_header_stays_repeated_and_binary_ones_travel_as_base64() -> None:
    pairs = [{"key": "a", "value": b"1"}, {"key": "b", "value": b"\xff"}, {"key": "a", "value": b"2"}]
    batch = pa.record_batch({"value": pa.array([b"a"]), "headers": pa.array([pairs], HEADERS)})
    found = outgoing_rows(batch, options(topic="t", binaryHeaders="base64")).headers
    assert found == [(("a", "MQ=="), ("b", "/w=="), ("a", "Mg=="))]
    batch = pa.record_batch({"value": pa.array([b"a"]), "headers": pa.array([pairs[::2]], HEADERS)})
    assert outgoing_rows(batch, options(topic="t")).headers == [(("a", "1"), ("a", "2"))]


def schema(text: str) -> Any:
    # Parsing DDL needs a session; the few types of these tests do not.
    from pyspark.sql import types as t

    kinds = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "bigint": t.LongType(),
        "headers": t.ArrayType(
            t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
        ),
        "strings": t.ArrayType(t.StringType()),
    }
    fields = [part.split() for part in text.split(",")]
    return StructType([t.StructField(name, kinds[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    "text",
    [
        "value binary",
        "key string, value string, topic string",
        "value binary, headers headers, segment bigint, position bigint",
    ],
)
def test_usual_rows_are_accepted(text: str) -> None:
    check_sink_schema(schema(text), options(topic="t"))


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("key binary", {"topic": "t"}, "needs a column value"),
        ("value bigint", {"topic": "t"}, "binary or string"),
        ("value binary, amount bigint", {"topic": "t"}, "does not know column amount"),
        ("value binary", {}, "name the topic"),
        ("value binary, headers strings", {"topic": "t"}, "struct<key:string,value:binary>"),
        ("value binary, topic binary", {"topic": "t"}, "takes string"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_at_planning(
    text: str, given: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=words):
        check_sink_schema(schema(text), options(**given))


def test_unknown_columns_may_be_left_out() -> None:
    check_sink_schema(schema("value binary, amount bigint"), options(topic="t", failOnUnknownColumns="false"))


def test_a_topic_cannot_be_overwritten() -> None:
    source = AnabranchSource({"service.url": URL, "topic": "t"})
    with pytest.raises(InvalidConfigurationError, match="append"):
        source.writer(schema("value binary"), overwrite=True)
    with pytest.raises(InvalidConfigurationError, match="append"):
        source.streamWriter(schema("value binary"), overwrite=True)
