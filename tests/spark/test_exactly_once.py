"""Exactly-once writes to a real broker, without Spark in between: attempts, crashes, drivers, layouts."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anabranch.admin.client import AdminClient
from anabranch.failpoints import FailpointReachedError
from anabranch.spark.sink_writing import StagedTask
from anabranch.testing.process import BrokerProcess
from tests.spark.live_rows import ORDERS, Writing, check_rows, read_rows


class OtherDriver:
    """A driver in a process of its own that commits one batch of staged rows, and stops at a step."""

    def __init__(self, broker: BrokerProcess, staged: StagedTask, step: str, scratch: Path) -> None:
        # The first step of this name removes the file, so the driver stops once.
        steps = scratch / "failpoints"
        steps.write_text(f"sink.{step}=stop")
        code = (
            "import pickle, sys; from anabranch.spark.live import LiveService;"
            "from anabranch.spark.sink_writing import commit_staged;"
            "commit_staged(LiveService(sys.argv[1]), [pickle.loads(sys.stdin.buffer.read())])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, broker.url],
            env={**os.environ, "ANABRANCH_FAILPOINTS": f"@{steps}"},
            stdin=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(staged))
        self._process.stdin.close()
        state = Path(f"/proc/{self._process.pid}/stat")
        while " T " not in state.read_text():
            assert self._process.poll() is None, "the driver ended before it reached the step"
            time.sleep(0.02)

    def resume(self) -> int:
        self._process.send_signal(signal.SIGCONT)
        try:
            return self._process.wait(60)
        finally:
            self._process.kill()


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


@pytest.mark.parametrize("step", ["pinned", "publishing", "published", "done"])
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
        # Spark replays the batch, with other tasks; a crash before the pin would have left nothing of it.
        writing.commit(writing.stage(1, range(300, 1000)))
        writing.commit(writing.stage(2, range(1000, 1200)))
    check_rows(read_rows(broker), 1200)


@pytest.mark.parametrize("step", ["pinned", "publishing", "published"])
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
