"""A state directory belongs to one job: another job must not go on from its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.errors import InvalidConfigurationError
from anabranch.spark import pipelines
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.state_directories import claim_state
from simulation.harness.process import BrokerProcess

pytestmark = pytest.mark.timeout(300)

JOB = {"pipeline": "mirror", "from": "orders", "to": "copy"}


def test_a_state_without_progress_goes_to_the_next_job(spark: Any, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path / "state"))
    claim_state(files, {**JOB, "to": "elsewhere"})
    claim_state(files, JOB)
    (tmp_path / "state" / "offsets").mkdir()
    claim_state(files, JOB)
    with pytest.raises(InvalidConfigurationError, match=r"another job .*, to copy.*; this one .*, to other"):
        claim_state(files, {**JOB, "to": "other"})


def test_no_pipeline_goes_on_from_the_progress_of_another_job(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    with anabranch.Client(broker.url) as client:
        client.create_producer("orders").send(b"1", key="a")
    orders, other = (pipelines.TopicPlace(name, broker.url) for name in ("orders", "other"))
    lake, rows, state = str(tmp_path / "lake"), tmp_path / "rows.csv", str(tmp_path / "state")
    rows.write_text("n\n1\n")
    pipelines.archive(spark, orders, lake, show=pipelines.silent)
    (tmp_path / "state" / "offsets").mkdir(parents=True)
    claim_state(Files(spark, state), JOB)
    runs: list[Callable[[], object]] = [
        lambda: pipelines.mirror(spark, orders, other, pipelines.MirrorOptions(state)),
        lambda: pipelines.compact_to_topic(spark, orders, other, pipelines.CompactOptions(state=state)),
        lambda: pipelines.compact_to_table(
            spark, orders, str(tmp_path / "table"), pipelines.CompactOptions(state=state)
        ),
        lambda: pipelines.archive(spark, orders, lake, pipelines.ArchiveOptions(state=state)),
        lambda: pipelines.replay_to_topic(spark, lake, orders, other, pipelines.ReplayOptions(state=state)),
        lambda: pipelines.load(spark, str(rows), other, pipelines.LoadOptions(state=state)),
    ]
    for run in runs:
        with pytest.raises(InvalidConfigurationError, match="has the progress of another job"):
            run()


class _Brokers:
    """Two brokers with a topic each, and the jobs that write to one of them with a state for each job."""

    def __init__(self, spark: Any, root: Path, urls: Sequence[str]) -> None:
        self.spark, self.root = spark, root
        for url in urls:
            with anabranch.Client(url) as client:
                client.create_producer("orders").send(b"1", key="a")
        self.orders = pipelines.TopicPlace("orders", urls[0])
        self.lake, self.rows = str(root / "lake"), root / "rows.csv"
        self.rows.write_text("n\n1\n")
        pipelines.archive(spark, self.orders, self.lake, show=pipelines.silent)

    def run(self, job: str, url: str) -> int:
        to, state = pipelines.TopicPlace(f"{job}-target", url), str(self.root / job)
        show = pipelines.silent
        if job == "mirror":
            done = pipelines.mirror(self.spark, self.orders, to, pipelines.MirrorOptions(state), show)
        elif job == "compact":
            options = pipelines.CompactOptions(state=state)
            done = pipelines.compact_to_topic(self.spark, self.orders, to, options, show)
        elif job == "replay":
            given = pipelines.ReplayOptions(state=state, show=show)
            done = pipelines.replay_to_topic(self.spark, self.lake, None, to, given)
        else:
            done = pipelines.load(self.spark, str(self.rows), to, pipelines.LoadOptions(state=state), show)
        return int(done.rows)


@pytest.mark.timeout(600)
def test_no_pipeline_goes_on_with_a_target_on_another_broker(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "other", {"auto_scale.enabled": "false"}) as other:
        brokers = _Brokers(spark, tmp_path, (broker.url, other.url))
        for job in ("mirror", "compact", "replay", "load"):
            assert brokers.run(job, broker.url) == 1
            with pytest.raises(InvalidConfigurationError, match="the progress of a job with other brokers"):
                brokers.run(job, other.url)
            # The same broker under another name has the record.
            assert brokers.run(job, broker.url.replace("127.0.0.1", "localhost")) == 0
        elsewhere = pipelines.TopicPlace("orders", other.url)
        with pytest.raises(PipelineError, match="or it is on another broker"):
            pipelines.archive(spark, elsewhere, brokers.lake, show=pipelines.silent)
