"""The logs of sinks on a real broker: removed when no job returns to them, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.errors import TopicNotFoundError
from anabranch.spark.decide.sink.logs import checkpoint_sink, job_sink
from simulation.harness.process import BrokerProcess
from tests.harness.spark_rows import Writing, check_rows, read_rows

JOB = job_sink("0123456789abcdef" * 2)


@pytest.fixture
def broker(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> BrokerProcess:
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)
    return broker


def logs(broker: BrokerProcess) -> set[str]:
    with AdminClient(broker.http_url) as admin:
        names = admin.classic_topics("public/default")
    return {name.removeprefix("persistent://public/default/__sink-") for name in names if "__sink-" in name}


def clean(hours: float) -> int:
    return main(["sink", "clean", "--older-than-hours", str(hours), "--yes"])


def test_only_old_logs_of_batch_jobs_are_cleaned(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    job, query = Writing(broker, JOB, "run"), Writing(broker)
    job.commit(job.stage(0, range(300)))
    query.commit(query.stage(0, range(300, 500)))
    assert clean(1) == 0
    assert logs(broker) == {f"{JOB}-rows", f"{JOB}-records", "copy-rows", "copy-records"}
    assert main(["sink", "clean", "--older-than-hours", "0"]) == 1
    refusal = "this would remove the logs of 1 batch job in public/default for good; confirm it with --yes"
    assert refusal in capsys.readouterr().err
    assert len(logs(broker)) == 4
    assert clean(0) == 0
    assert "removed the logs of 1 batch job; the logs of 1 other sink stay" in capsys.readouterr().out
    assert logs(broker) == {"copy-rows", "copy-records"}
    assert main(["sink", "list"]) == 0
    assert "its query or job may be started again" in capsys.readouterr().out
    # Spark repeats the last batch of the query, and goes on.
    query.commit(query.stage(0, range(300, 500)))
    query.commit(query.stage(1, range(500, 700)))
    check_rows(read_rows(broker), 700)


def test_a_job_whose_logs_are_gone_before_its_commit_fails_and_writes_nothing(broker: BrokerProcess) -> None:
    other, job = Writing(broker), Writing(broker, JOB, "run")
    other.commit(other.stage(0, range(100)))
    staged = job.stage(0, range(100, 300))
    assert clean(0) == 0
    with pytest.raises(TopicNotFoundError):
        job.commit(staged)
    check_rows(read_rows(broker), 100)


def test_a_sink_with_a_task_or_a_checkpoint_is_not_removed(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "checkpoint"
    query = Writing(broker, checkpoint_sink(str(checkpoint)))
    query.commit(query.stage(0, range(100)))
    checkpoint.mkdir()
    by_checkpoint = ["sink", "remove", "--checkpoint", checkpoint.as_uri(), "--yes"]
    assert main(by_checkpoint) == 1
    assert "its query may be started again" in capsys.readouterr().err
    assert main(["sink", "remove", query.sink_id]) == 1
    assert "to which no job may return, for good; confirm it with --yes" in capsys.readouterr().err
    checkpoint.rmdir()
    stager = query.service.sink("public/default", query.sink_id).stager("late", 2000, "lz4")
    assert main(by_checkpoint) == 1
    assert "a task writes to" in capsys.readouterr().err
    stager.close()
    assert len(logs(broker)) == 2
    assert main(by_checkpoint) == 0
    assert logs(broker) == set()
    assert main(["sink", "remove", "nothing", "--yes"]) == 1
    assert "no sink nothing has logs in public/default" in capsys.readouterr().err
