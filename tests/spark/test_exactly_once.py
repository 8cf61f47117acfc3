"""Exactly-once writes to a real broker, without Spark in between: attempts, crashes, drivers, layouts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from anabranch.admin.client import AdminClient
from anabranch.failpoints import FailpointReachedError
from anabranch.spark.options.queries import read_sink_options
from anabranch.spark.service import BrokerService
from anabranch.spark.sink.writer import BatchWriter, StreamWriter, Written
from simulation.harness.process import BrokerProcess
from tests.harness.spark_rows import ORDERS, OtherDriver, Writing, check_rows, numbered, read_rows


def test_only_the_attempts_of_the_first_commit_are_published(broker: BrokerProcess) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
    writing = Writing(broker)
    writing.stage(0, range(500), fails=True)
    speculative = writing.stage(0, range(500))
    chosen = writing.stage(0, range(500))
    writing.commit(chosen)
    writing.commit(chosen)
    writing.commit(speculative)
    assert writing.stage(0, range(500)).staged is None
    writing.commit(writing.stage(1, range(500, 900)), writing.stage(1, range(900, 1000)))
    check_rows(read_rows(broker), 1000)


@pytest.mark.parametrize("step", ["staged", "pinned", "publishing", "published", "done"])
def test_a_commit_that_dies_at_any_step_is_completed_by_the_next(
    broker: BrokerProcess, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
        writing = Writing(broker)
        writing.commit(writing.stage(0, range(300)))
        staged = writing.stage(1, range(300, 1000))
        monkeypatch.setenv("ANABRANCH_FAILPOINTS", f"sink.{step}=raise")
        with pytest.raises(FailpointReachedError):
            writing.commit(staged)
        monkeypatch.delenv("ANABRANCH_FAILPOINTS")
        api.merge(ORDERS, [0, 1])
        api.split(ORDERS, 2, parts=3)
        # Spark replays the batch, with other tasks; a crash before the pin has left nothing of it.
        writing.commit(writing.stage(1, range(300, 1000)))
        writing.commit(writing.stage(2, range(1000, 1200)))
    check_rows(read_rows(broker), 1200)


@pytest.mark.parametrize("step", ["staged", "pinned", "publishing", "published"])
def test_a_driver_that_sleeps_and_wakes_up_again_does_no_harm(
    broker: BrokerProcess, step: str, tmp_path: Path
) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
        writing = Writing(broker)
        writing.commit(writing.stage(0, range(300)))
        sleeping = OtherDriver(broker, writing.stage(1, range(300, 1000)), step, tmp_path)
        api.merge(ORDERS, [0, 1])
        writing.commit(writing.stage(1, range(300, 1000)))
        writing.commit(writing.stage(2, range(1000, 1200)))
        api.split(ORDERS, 2)
        sleeping.resume()
        writing.commit(writing.stage(3, range(1200, 1300)))
    check_rows(read_rows(broker), 1300)


def test_rows_without_a_key_are_written_once(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
        writing = Writing(broker)
        staged = writing.stage(0, range(1000), keyless=True)
        monkeypatch.setenv("ANABRANCH_FAILPOINTS", "sink.publishing=raise")
        with pytest.raises(FailpointReachedError):
            writing.commit(staged)
        monkeypatch.delenv("ANABRANCH_FAILPOINTS")
        api.merge(ORDERS, [0, 1])
        writing.commit(staged)
    assert sorted(value for _, value, _, _ in read_rows(broker)) == list(range(1000))


def test_a_forgotten_task_that_writes_on_for_a_batch_of_the_past_does_no_harm(broker: BrokerProcess) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
    writing = Writing(broker)
    zombie, fellow = writing.stager(0), writing.stager(0)
    writing.write(zombie, range(100))
    writing.commit(writing.stage(0, range(300)))
    # Batch 0 is published, and its rows may be trimmed; the zombies still have theirs to append.
    writing.write(zombie, range(100, 200))
    task = writing.stager(1)
    for lo in range(300, 700, 100):
        writing.write(task, range(lo, lo + 100))
        writing.write(zombie, range(200, 250))
        writing.write(fellow, range(300))
    staged = writing.finish(task, 1)
    late = writing.finish(zombie, 0)
    writing.commit(staged)
    # The driver of the zombies lives on, too.
    writing.commit(late, writing.finish(fellow, 0))
    writing.commit(writing.stage(2, range(700, 800)))
    check_rows(read_rows(broker), 800)


@pytest.mark.parametrize("partitions", [0, 3])
def test_rows_go_to_a_classic_topic_once(
    broker: BrokerProcess, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "persistent://public/default/classic"
    if partitions:
        with AdminClient(broker.http_url) as api:
            api.call("PUT", "/admin/v2/persistent/public/default/classic/partitions", body=partitions)
    writing = Writing(broker, topic=topic)
    writing.commit(writing.stage(0, range(300)))
    staged = writing.stage(1, range(300, 1000))
    for step in ("publishing", "published"):
        monkeypatch.setenv("ANABRANCH_FAILPOINTS", f"sink.{step}=raise")
        with pytest.raises(FailpointReachedError):
            writing.commit(staged)
    monkeypatch.delenv("ANABRANCH_FAILPOINTS")
    broker.kill()
    broker.start()
    writing.commit(writing.stage(1, range(300, 1000)))
    writing.commit(writing.stage(2, range(1000, 1100)))
    rows = read_rows(broker, subscribe=topic)
    check_rows(rows, 1100)
    assert len({segment for _, _, segment, _ in rows}) == max(1, partitions)


def test_abort_publishes_nothing_and_takes_failed_tasks(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(ORDERS, 2)
    writing = Writing(broker)
    given = {"service.url": broker.url, "topic": "orders"}
    stream = StreamWriter(writing.service, read_sink_options(given, streaming=True))
    job = BatchWriter(writing.service, read_sink_options(given))
    staged = writing.stage(0, range(200))
    with caplog.at_level(logging.WARNING):
        stream.abort([None, staged, None], 0)
        job.abort([None, None])
        assert not caplog.messages
        job.abort([None, Written(7), Written(2)])
    assert "9 rows" in caplog.text
    assert read_rows(broker) == []
    # Spark may abort a batch whose commit took effect; nothing of it is taken back.
    stream.commit([staged], 0)
    stream.abort([staged, None], 0)
    stream.commit([staged], 0)
    check_rows(read_rows(broker), 200)


def test_a_task_of_a_batch_that_is_written_leaves_its_rows_unread(broker: BrokerProcess) -> None:
    given = {"service.url": broker.url, "topic": "orders", "delivery": "exactly-once"}
    options = read_sink_options({**given, "sinkId": "job", "txnId": "monday"})
    writer = BatchWriter(BrokerService(broker.url), options)
    rows = iter([numbered(range(100))])
    writer.commit([writer.write(rows)])
    again = iter([numbered(range(100))])
    message = writer.write(again)
    assert next(again).num_rows == 100
    writer.commit([message, None])
    check_rows(read_rows(broker), 100)
