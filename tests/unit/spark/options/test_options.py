from __future__ import annotations

from typing import Any

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.sink.logs import job_sink
from anabranch.spark.decide.source.offsets import Cut, Start, TopicCut
from anabranch.spark.decide.source.topic_names import short_name
from anabranch.spark.options.queries import (
    read_sink_options,
    read_source_options,
    sink_part,
    source_part,
    text_of,
)

URL = {"service.url": "pulsar://127.0.0.1:6650"}
SOURCE = {**URL, "subscribe": "orders"}
SINK = {**URL, "topic": "orders"}


def test_names_are_read_without_regard_to_case() -> None:
    options = read_source_options({**SOURCE, "MAXOFFSETSPERTRIGGER": "7", "failondataloss": "False"})
    assert (options.max_rows, options.fail_on_data_loss) == (7, False)


def test_a_topic_has_one_spelling() -> None:
    assert short_name("orders") == short_name("topic://public/default/orders") == "orders"
    assert short_name("topic://acme/sales/orders") == "topic://acme/sales/orders"
    assert short_name("persistent://public/default/x") == "persistent://public/default/x"
    options = read_source_options({**URL, "topics": "b, topic://public/default/a"})
    assert options.topics == ("a", "b")


@pytest.mark.parametrize("name", ["subscribe", "topic", "topics", "path"])
def test_the_topic_may_be_given_in_four_ways(name: str) -> None:
    assert read_source_options({**URL, name: "orders"}).topics == ("orders",)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"startingoffset": "earliest"}, "did you mean startingOffsets"),
        ({"xyzzy": "1"}, "its options are"),
        ({"assign": "{}"}, "assign of the source is not supported yet"),
        ({"maxPartitions": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "many"}, "64m"),
        ({"chainSegments": "yes"}, "true or false"),
        ({"ordering": "time"}, "key, none"),
        ({"topic": "orders"}, "subscribe and topic"),
        ({"subscribe": ""}, "given: none"),
        ({"subscribe": "orders,orders"}, "twice"),
        ({"subscribe": ", ,"}, "names no topic"),
        ({"service.url": ""}, "service.url is required"),
        ({"startingOffsets": "soon"}, "earliest, latest"),
        ({"maxRecordsPerTrigger": "3", "maxOffsetsPerTrigger": "4"}, "mean the same"),
        ({"minOffsetsPerTrigger": "30", "maxOffsetsPerTrigger": "4"}, "above"),
        (
            {"client.auth.tokn": "secret"},
            "client.auth.tokn is not supported; the client takes client.auth.token",
        ),
    ],
)
def test_an_invalid_option_is_refused_with_a_hint(changed: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=words):
        read_source_options({**SOURCE, **changed})


def test_sizes_and_times_have_units() -> None:
    options = read_source_options(
        {**SOURCE, "maxBytesPerTrigger": "64m", "maxTriggerDelay": "2m", "pollTimeoutMs": "1500"}
    )
    assert (options.max_bytes, options.max_delay_s, options.poll_timeout_s) == (64 * 2**20, 120.0, 1.5)


def test_a_start_may_name_topics_in_any_spelling() -> None:
    text = '{"v":1,"topics":{"topic://public/default/orders":{"segs":{"0":5}}}}'
    options = read_source_options({**SOURCE, "startingOffsets": text})
    assert options.starting == Start(Cut({"orders": TopicCut({0: 5})}))


def test_client_settings_go_on_to_the_client() -> None:
    options = read_source_options(
        {**SOURCE, "client.operationTimeout": "5s", "client.connect_timeout": "250"}
    )
    assert dict(options.client) == {"operation_timeout": 5.0, "connect_timeout": 0.25}


def test_a_sink_is_at_least_once_and_says_so() -> None:
    assert read_sink_options({**SINK, "delivery": "at-least-once"}).topic == "orders"
    for delivery in ("idempotent", "transactional"):
        with pytest.raises(InvalidConfigurationError, match="at-least-once"):
            read_sink_options({**SINK, "delivery": delivery})


def test_a_sink_refuses_options_of_the_source() -> None:
    with pytest.raises(InvalidConfigurationError, match="sink has no option startingoffsets"):
        read_sink_options({**SINK, "startingOffsets": "earliest"})
    with pytest.raises(InvalidConfigurationError, match="txnTimeout of the sink is not supported yet"):
        read_sink_options({**SINK, "txntimeout": "7"})


def test_options_that_spark_adds_are_none_of_ours() -> None:
    added = {"queryName": "q", "outputMode": "append"}
    assert read_sink_options({**SINK, **added}) == read_sink_options(SINK)
    assert read_source_options({**SOURCE, **added}) == read_source_options(SOURCE)


def test_progress_that_is_stored_now_and_then_excludes_exactly_once() -> None:
    tracking = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "1000"}
    with pytest.raises(InvalidConfigurationError, match="other rows the number of a batch"):
        read_sink_options({**SINK, **tracking}, streaming=True)
    loose = {**SINK, "delivery": "at-least-once"}
    assert read_sink_options({**loose, **tracking}, streaming=True) == read_sink_options(
        loose, streaming=True
    )
    off = {**SINK, "asyncProgressTrackingEnabled": "false"}
    assert read_sink_options(off, streaming=True).exactly_once


def test_a_sink_is_named_after_its_checkpoint_or_by_its_option() -> None:
    def place(**options: str) -> tuple[str, str | None]:
        found = read_sink_options({**SINK, **options}, streaming=True)
        assert found.exactly_once
        return found.sink_namespace, found.sink_id

    assert place() == ("public/default", None)
    assert place(checkpointLocation="/c") == place(checkpointLocation="file:///c/")
    assert place(checkpointLocation="/c") != place(checkpointLocation="/d")
    assert place(checkpointLocation="/c", sinkId="mine") == ("public/default", "mine")
    assert place(topic="topic://t/n/x", sinkId="mine") == ("t/n", "mine")
    assert place(topic="topic://t/n/x", sinkId="a/b/mine") == ("a/b", "mine")
    for wrong in ("a/b", "ü", "a b", "x" * 101):
        with pytest.raises(InvalidConfigurationError, match="sinkId"):
            place(sinkId=wrong)
    with pytest.raises(InvalidConfigurationError, match="reserved for batch jobs"):
        place(sinkId=job_sink("0" * 32))


@pytest.mark.parametrize("name", ["txnId", "batchId"])
def test_a_batch_has_a_name_only_where_it_prevents_a_repetition(name: str) -> None:
    known = {**SINK, "delivery": "exactly-once", "sinkId": "job", name: "7"}
    assert read_sink_options(known).sink_id == "job"
    with pytest.raises(InvalidConfigurationError, match="a stream numbers its batches itself"):
        read_sink_options(known, streaming=True)
    for missing in ("delivery", "sinkId"):
        with pytest.raises(InvalidConfigurationError, match=f"{name} is for batch writes .* a sinkId"):
            read_sink_options({key: text for key, text in known.items() if key != missing})
    with pytest.raises(InvalidConfigurationError, match="both name a batch"):
        read_sink_options({**known, "txnId": "1", "batchId": "1"})


def test_compression_may_be_switched_off_by_name() -> None:
    assert read_sink_options({**SINK, "compression": "ZSTD"}).compression == "zstd"
    assert read_sink_options({**SINK, "compression": "none"}).compression is None
    assert read_sink_options(SINK).compression == "lz4"


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (5, "5"), ("x", "x"), ({"v": 1}, '{"v": 1}')])
def test_values_become_the_text_spark_wants(value: Any, text: str) -> None:
    assert text_of({"name": value, "left": None}) == {"name": text}


def test_options_of_both_ends_are_told_apart() -> None:
    given = {
        "MAXBYTESPERTRIGGER": "1m",
        "compression": "zstd",
        "client.operationTimeout": "9s",
        "unknown": "1",
    }
    both = {"client.operationTimeout": "9s", "unknown": "1"}
    assert source_part(given) == {"MAXBYTESPERTRIGGER": "1m", **both}
    assert sink_part(given) == {"compression": "zstd", **both}
