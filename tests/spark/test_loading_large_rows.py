"""A load with a row that is larger than its broker takes: named before it is planned, and after."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.spark import pipelines
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.progress import Show
from anabranch.spark.service import close_sessions
from simulation.harness.process import BrokerProcess
from tests.harness.stored_messages import messages_by_key

pytestmark = pytest.mark.timeout(300)

SMALL, LARGE = 64 * 2**10, 128 * 2**10
LIMIT = "max_message_bytes"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false", LIMIT: SMALL}) as process:
        yield process
        close_sessions()


def restart(broker: BrokerProcess, bytes_max: int) -> None:
    broker.stop()
    broker.settings[LIMIT] = bytes_max
    broker.start()


def write_rows(directory: Path, bytes_of_b: int) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "1.csv").write_text("key,value\na,1\n")
    # Compression would make an entry of another size.
    large = secrets.token_hex(bytes_of_b)[:bytes_of_b]
    (directory / "2.csv").write_text(f"key,value\nb,{large}\nc,1\n")


class LoadJob:
    """One load, run again and again."""

    def __init__(self, spark: Any, broker: BrokerProcess, root: Path) -> None:
        self.spark, self.source = spark, root / "rows"
        self.place = pipelines.TopicPlace("large", broker.url)
        self.options = pipelines.LoadOptions("csv", key="key", value="value", state=str(root / "state"))

    def run(self, show: Show = pipelines.silent) -> int:
        done = pipelines.load(self.spark, str(self.source), self.place, self.options, show)
        return int(done.rows)

    def sizes(self) -> dict[str, list[int]]:
        with anabranch.Client(self.place.url) as client:
            found = messages_by_key(client, self.place.name)
        return {key: [len(message.data) for message in messages] for key, messages in found.items()}


@pytest.fixture
def job(spark: Any, broker: BrokerProcess, tmp_path: Path) -> LoadJob:
    return LoadJob(spark, broker, tmp_path)


def test_a_row_that_is_too_large_is_named_before_it_is_planned(job: LoadJob) -> None:
    write_rows(job.source, 70_000)
    reason = r"a message of 70025 bytes \(key b, in .*/rows/2\.csv\); the broker takes up to \d+\. No row"
    for _ in range(2):
        with pytest.raises(PipelineError, match=reason):
            job.run()
    write_rows(job.source, 50_000)
    assert (job.run(), job.run()) == (3, 0)
    assert job.sizes() == {"a": [1], "b": [50_000], "c": [1]}


def test_a_load_goes_on_when_the_limit_of_the_broker_was_raised(job: LoadJob, broker: BrokerProcess) -> None:
    write_rows(job.source, 70_000)
    with pytest.raises(PipelineError, match="raise max_message_bytes of the broker"):
        job.run()
    restart(broker, LARGE)
    assert (job.run(), job.run()) == (3, 0)
    assert job.sizes() == {"a": [1], "b": [70_000], "c": [1]}


def test_a_planned_row_above_a_lowered_limit_is_an_error_with_advice(
    job: LoadJob, broker: BrokerProcess
) -> None:
    restart(broker, LARGE)
    write_rows(job.source, 100_000)

    def interrupt(progress: Any) -> None:
        if progress.step.startswith("step"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(interrupt)
    restart(broker, SMALL)
    (job.source / "2.csv").unlink()
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"entry of \d+ bytes .* in its state.* another --state"):
            job.run()
    restart(broker, LARGE)
    assert job.run() == 3
    assert job.sizes() == {"a": [1], "b": [100_000], "c": [1]}
