"""`load` of files into a topic of a real broker: formats, later files, changed files and a lost state."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import anabranch
from anabranch.spark import pipelines
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.service import close_sessions
from simulation.harness.process import BrokerProcess
from tests.harness.stored_messages import messages_by_key, numbers_by_key

pytestmark = pytest.mark.timeout(900)

KEYS = 5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("loading") / "data"
    with BrokerProcess(data, {"auto_scale.enabled": "false"}) as process:
        yield process
        close_sessions()


def table(numbers: Sequence[int]) -> Any:
    return pa.table({"key": [f"key-{n % KEYS}" for n in numbers], "value": [str(n) for n in numbers]})


def write_csv(numbers: Sequence[int], path: Path) -> None:
    pyarrow.csv.write_csv(table(numbers), path)


def write_json(numbers: Sequence[int], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table(numbers).to_pylist()))


def write_parquet(numbers: Sequence[int], path: Path) -> None:
    pq.write_table(table(numbers), path)


WRITERS: dict[str, Callable[[Sequence[int], Path], None]] = {
    "csv": write_csv,
    "json": write_json,
    "parquet": write_parquet,
}


def received(broker: BrokerProcess, topic: str) -> dict[str, list[int]]:
    with anabranch.Client(broker.url) as client:
        return numbers_by_key(client, topic)


def expected(numbers: Sequence[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for n in numbers:
        found[f"key-{n % KEYS}"].append(n)
    return dict(found)


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_of_files_and_of_later_files_arrive_once_and_in_order(
    spark: Any, broker: BrokerProcess, tmp_path: Path, kind: str
) -> None:
    source, write = tmp_path / "events", WRITERS[kind]
    source.mkdir()
    place = pipelines.TopicPlace(f"loaded-{kind}", broker.url)
    options = pipelines.LoadOptions(
        kind, key="key", value="value", rows_per_commit=30, state=str(tmp_path / "state")
    )

    def run(given: pipelines.LoadOptions = options) -> tuple[int, int]:
        done = pipelines.load(spark, str(source), place, given, pipelines.silent)
        return done.rows, done.files

    # Without an order of its own, a load follows the names of the files, and the rows in each.
    write(range(50, 100), source / f"b.{kind}")
    write(range(50), source / f"a.{kind}")
    assert run() == (100, 2)
    assert run() == (0, 0)
    # The rows of later files come behind all earlier rows, also under a name that sorts before them.
    write(range(139, 99, -1), source / f"0.{kind}")
    assert run(replace(options, order_by=["value:int"])) == (40, 1)
    assert received(broker, place.name) == expected(range(140))
    write(range(60), source / f"a.{kind}")
    with pytest.raises(PipelineError, match=rf"a\.{kind} changed after its rows were read"):
        run()
    assert received(broker, place.name) == expected(range(140))


def test_the_columns_of_directories_and_of_any_name_are_sent(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    source = tmp_path / "events"
    for day in ("2026-01-01", "2026-01-02"):
        (source / f"day={day}").mkdir(parents=True)
        # Spark gives the place of a row under a name that a column of the files may have too.
        (source / f"day={day}" / "a.csv").write_text("customer,_metadata,a.b\nx,1,2\n")
    place = pipelines.TopicPlace("by-day", broker.url)
    options = pipelines.LoadOptions("csv", key="day", state=str(tmp_path / "state"))
    assert pipelines.load(spark, str(source), place, options, pipelines.silent).rows == 2
    with anabranch.Client(broker.url) as client:
        found = messages_by_key(client, "by-day")
    values = {key: [json.loads(message.data) for message in messages] for key, messages in found.items()}
    row = {"customer": "x", "_metadata": "1", "a.b": "2"}
    assert values == {day: [{**row, "day": day}] for day in ("2026-01-01", "2026-01-02")}


@pytest.mark.parametrize(
    "case",
    [
        ("a.csv", "key,value\nx,1\ny,2,3\n", r"a\.csv.*Malformed CSV record: y,2,3"),
        ("a.csv", "key,value\nx,1\ny\n", r"a\.csv.*Malformed CSV record: y"),
        ("a.json", '{"key": "x", "value": "1"}\nno JSON\n', "Malformed records .* Unrecognized token 'no'"),
        ("b.json", None, r"Path does not exist: .*b\.json"),
    ],
)
def test_a_row_that_cannot_be_parsed_fails_the_load_unless_it_may_pass(
    spark: Any, broker: BrokerProcess, tmp_path: Path, case: tuple[str, str | None, str]
) -> None:
    name, text, reason = case
    source = tmp_path / name
    place = pipelines.TopicPlace("strict", broker.url)
    options = pipelines.LoadOptions(key="key", value="value", state=str(tmp_path / "state"))
    if text is not None:
        source.write_text(text)
    with pytest.raises(PipelineError, match=reason):
        pipelines.load(spark, str(source), place, options, pipelines.silent)
    if text is not None:
        lenient = replace(options, read_options={"Mode": "PERMISSIVE"})
        assert pipelines.load(spark, str(source), place, lenient, pipelines.silent).rows == 2


def test_a_load_whose_state_was_deleted_sends_all_rows_again(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    source, state = tmp_path / "events", tmp_path / "state"
    source.mkdir()
    place = pipelines.TopicPlace("reloaded", broker.url)
    options = pipelines.LoadOptions("csv", key="key", value="value", rows_per_commit=20, state=str(state))
    write_csv(range(50), source / "a.csv")
    assert pipelines.load(spark, str(source), place, options, pipelines.silent).rows == 50
    shutil.rmtree(state)
    write_csv(range(50, 60), source / "b.csv")
    assert pipelines.load(spark, str(source), place, options, pipelines.silent).rows == 60
    assert received(broker, "reloaded") == expected([*range(50), *range(60)])


def test_a_nested_value_is_sent_as_json(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": [1], "order": {"n": 1, "name": "\u00e9"}}\n')
    place = pipelines.TopicPlace("nested", broker.url)
    options = pipelines.LoadOptions(key="id", value="order", state=str(tmp_path / "state"))
    pipelines.load(spark, str(tmp_path / "a.json"), place, options, pipelines.silent)
    with anabranch.Client(broker.url) as client:
        found = messages_by_key(client, "nested")
    assert {key: [json.loads(one.data) for one in messages] for key, messages in found.items()} == {
        "[1]": [{"n": 1, "name": "\u00e9"}]
    }


def test_a_time_that_cannot_be_sent_leaves_the_load_as_it_was(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    source, place = tmp_path / "a.csv", pipelines.TopicPlace("early", broker.url)
    options = pipelines.LoadOptions(event_time="at", state=str(tmp_path / "state"))
    source.write_text("at\n2026-01-01T00:00:00Z\n1969-12-31T23:59:59Z\n")
    with pytest.raises(PipelineError, match="column at contains a time before 1970"):
        pipelines.load(spark, str(source), place, options, pipelines.silent)
    source.write_text("at\n2026-01-01T00:00:00Z\n")
    assert pipelines.load(spark, str(source), place, options, pipelines.silent).rows == 1


def test_a_source_without_files_is_named(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    place = pipelines.TopicPlace("none", broker.url)
    options = pipelines.LoadOptions("csv", state=str(tmp_path / "state"))
    with pytest.raises(PipelineError, match="none has no csv file with columns"):
        pipelines.load(spark, str(tmp_path / "none"), place, options, pipelines.silent)


def test_a_value_that_does_not_fit_is_named_without_places_of_our_code(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("key,at\nx,yesterday\n")
    place = pipelines.TopicPlace("none", broker.url)
    options = pipelines.LoadOptions(event_time="at", state=str(tmp_path / "state"))
    with pytest.raises(PipelineError, match=r"The value 'yesterday' .* cannot be cast") as failed:
        pipelines.load(spark, str(tmp_path / "a.csv"), place, options, pipelines.silent)
    assert "loading.py" not in str(failed.value)
