"""Options of tables in Spark's catalog, which Spark passes only once."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructField, StructType

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.options.queries import sink_part
from anabranch.spark.source.tables import options_of_table, recall_options, with_comment
from tests.spark.files import FilesSource, FileTopic

GIVEN = {"service.url": "pulsar://a:1", "subscribe": "it's", "startingoffsets": "earliest"}
CREATED = {"provider": "anabranch", "owner": "me", **GIVEN, **{f"option.{n}": t for n, t in GIVEN.items()}}


def test_the_options_of_a_created_table_are_found_among_its_properties() -> None:
    assert options_of_table({**CREATED, "comment": "x"}) == GIVEN
    assert options_of_table(GIVEN) is None


def test_a_table_keeps_its_options_in_a_comment(topic: FileTopic) -> None:
    options = {"service.url": str(topic.root), "subscribe": topic.name, "valueFormat": "json"}
    created = {"provider": "anabranch", **options, **{f"option.{n}": t for n, t in options.items()}}
    del created["option.valueFormat"], created["valueFormat"]
    schema = FilesSource(created).schema()
    topic.send([("a", b"1")])
    reader = FilesSource({}).reader(schema)
    (batch,) = (batch for partition in reader.partitions() for batch in reader.read(partition))
    assert batch.column("value").to_pylist() == [b"1"]


def test_a_ddl_keeps_them_too() -> None:
    text = with_comment("key binary, value struct<a int, b int>", {"subscribe": "it's \\ x"})
    assert text == (
        'key binary COMMENT \'anabranch {"subscribe": "it\\\'s \\\\\\\\ x"}\', value struct<a int, b int>'
    )


def commented(comment: str) -> StructType:
    return StructType([StructField("key", FIELD, True, {"comment": comment})])


FIELD = FilesSource({"service.url": "x", "subscribe": "y"}).schema()["key"].dataType


def test_options_of_the_query_go_before_those_of_the_table() -> None:
    schema = with_comment(StructType([StructField("key", FIELD)]), GIVEN)
    assert recall_options(schema, {}) == GIVEN
    assert recall_options(schema, {"startingOffsets": "latest"})["startingoffsets"] == "latest"
    # The frame may come from a table while the query names its own topic.
    own = {"service.url": "pulsar://b:1", "topic": "copy"}
    assert recall_options(schema, own) == own


def test_a_table_without_options_names_the_form_that_works() -> None:
    for comment in ("", "anabranch is a river"):
        with pytest.raises(InvalidConfigurationError, match="leave the list out of CREATE TABLE"):
            recall_options(commented(comment), {})


def test_a_secret_does_not_go_into_the_catalog() -> None:
    with pytest.raises(InvalidConfigurationError, match="put the secret into a file"):
        options_of_table({"provider": "anabranch", "option.client.auth.token": "s3cr3t"})


def test_writing_to_a_table_leaves_the_options_of_reading_out() -> None:
    assert sink_part(GIVEN) == {"service.url": "pulsar://a:1", "subscribe": "it's"}
