"""The formats of a load, and which options go to its reader and which to its sink."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.pipelines.loading.sources import divide_options, format_of, open_source
from anabranch.spark.pipelines.topic_places import TopicPlace, check_target


def test_names_tell_the_format() -> None:
    names = ["/a/b.csv", "x.JSONL.gz", "s3a://lake/*.parquet", "/data.d/events", "x.txt", "a.ndjson"]
    assert [format_of(name) for name in names] == ["csv", "json", "parquet", None, None, "json"]
    assert [format_of("t/00001-a.metadata.json"), format_of("metadata.json")] == ["iceberg", "json"]


def test_each_option_of_a_load_goes_to_the_end_that_knows_it() -> None:
    given = {
        "Header": "false",
        "compression": "zstd",
        "client.operationTimeout": "9s",
        "fs.s3a.endpoint": "x",
    }
    assert divide_options("csv", given) == (
        {"compression": "zstd", "client.operationTimeout": "9s"},
        {"Header": "false", "fs.s3a.endpoint": "x"},
    )


@pytest.mark.parametrize(
    ("kind", "option", "reason"),
    [
        ("csv", "maxOffsetsPerTrigger", "maxOffsetsPerTrigger is for reading topics, but load reads files"),
        ("csv", "heder", r"csv has no option heder \(did you mean header\?\), and neither has the sink"),
        ("json", "header", "the reader of json has no option header, and neither"),
        ("iceberg", "s3.endpoint", "the reader of iceberg has no option s3.endpoint, and neither"),
    ],
)
def test_an_option_that_no_end_knows_is_refused(kind: str, option: str, reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=reason):
        divide_options(kind, {option: "1"})


def test_a_reader_refuses_an_option_that_it_would_ignore() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"did you mean mergeSchema\?"):
        open_source(None, "a.parquet", None, {"mergeShema": "true"})
    with pytest.raises(InvalidConfigurationError, match="cannot load orc; the formats are parquet, csv"):
        open_source(None, "a.orc", "orc", {})
    open_source(None, "lake.events", "iceberg", {"catalog": "lake", "pyiceberg.s3.endpoint": "x"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxOffsetsPerTrigger": 5}, "the sink has no option maxoffsetspertrigger"),
        ({"flushBytes": "much"}, "option flushBytes is 'much'; it takes bytes"),
        ({"sinkId": "mine"}, "load sets the option sinkId itself"),
    ],
)
def test_a_target_refuses_options_that_its_sink_would_ignore(options: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=reason):
        check_target(TopicPlace("loaded", options=options), ("sinkId",), "load")
