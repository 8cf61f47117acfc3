"""Which logs of sinks may be removed without an order of the user."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.sink.logs import SinkLog, SinkUse, checkpoint_sink, job_sink, sinks_of, why_kept
from anabranch.spark.options.queries import read_sink_options

JOB = job_sink("0123456789abcdef" * 2)
HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS


def log(sink: str, part: str, used_ms: int = NOW_MS - 25 * HOUR_MS, writers: int = 0) -> SinkLog:
    return SinkLog(f"persistent://public/default/__sink-{sink}-{part}", used_ms, writers, 10)


def kept(*logs: SinkLog) -> str | None:
    (sink,) = sinks_of(logs).values()
    return why_kept(sink, NOW_MS, 24 * 3600)


def test_logs_are_grouped_by_their_sink_with_the_rows_first() -> None:
    other = SinkLog("persistent://public/default/orders", 1, 0, 10)
    found = sinks_of([log("a", "records"), other, log("b-rows", "rows"), log("a", "rows")])
    assert found == {
        "a": SinkUse("a", (log("a", "rows"), log("a", "records"))),
        "b-rows": SinkUse("b-rows", (log("b-rows", "rows"),)),
    }
    assert found["a"].size_bytes == 20


@pytest.mark.parametrize("sink", ["nightly", checkpoint_sink("/jobs/copy"), JOB[:-1], f"{JOB}0", "f" * 32])
def test_the_sink_of_a_query_or_of_a_name_stays_however_old_it_is(sink: str) -> None:
    assert kept(log(sink, "rows", 1), log(sink, "records", 1)) == "its query or job may be started again"


def test_the_sink_of_a_job_goes_once_it_was_not_used_for_long() -> None:
    assert kept(log(JOB, "rows"), log(JOB, "records")) is None
    assert kept(log(JOB, "rows")) is None
    assert kept(log(JOB, "rows"), log(JOB, "records", NOW_MS - HOUR_MS)) == "its job may still run"
    assert kept(log(JOB, "rows", writers=1), log(JOB, "records")) == "a task writes to it"
    assert kept(log(JOB, "rows", 0)) == "its job may still run"


def test_a_user_cannot_take_the_name_of_a_job() -> None:
    given = {"service.url": "pulsar://localhost", "topic": "orders", "sinkId": JOB}
    with pytest.raises(InvalidConfigurationError, match="choose another one"):
        read_sink_options(given)
    assert read_sink_options({**given, "sinkId": "job-1"}).sink_id == "job-1"
