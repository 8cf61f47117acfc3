"""Two writes of one micro-batch are told apart from a repetition of the micro-batch."""

from __future__ import annotations

import pytest

from anabranch.spark.decide.sink.attempts import attempt_name, batch_run_of, has_other_write

ONE = "6b1f7c3e-7d0a-4c55-9f0e-0c1b2d3e4f50"
TWO = "0a1f7c3e-7d0a-4c55-9f0e-0c1b2d3e4f51"
FIRST, SECOND = "1" * 32, "2" * 32


@pytest.mark.parametrize(
    ("group", "batch", "write", "other"),
    [
        (ONE, "4", SECOND, True),
        # The same write, another run of the query, another micro-batch, and a group that a user named.
        (ONE, "4", FIRST, False),
        (TWO, "4", SECOND, False),
        (ONE, "5", SECOND, False),
        ("nightly", "4", SECOND, False),
        (None, None, SECOND, False),
    ],
)
def test_only_another_write_in_the_same_run_of_a_batch_is_one(
    group: str | None, batch: str | None, write: str, other: bool
) -> None:
    stored = attempt_name(batch_run_of(ONE, "4"), FIRST, "a" * 32)
    assert has_other_write([stored], batch_run_of(group, batch), write) is other


def test_an_attempt_outside_of_a_stream_tells_nothing() -> None:
    stored = attempt_name(None, FIRST, "a" * 32)
    assert stored == "a" * 32
    assert not has_other_write([stored], batch_run_of(ONE, "4"), SECOND)


def test_a_constant_group_of_a_user_never_stops_a_repetition() -> None:
    stored = attempt_name(batch_run_of("nightly", "4"), FIRST, "a" * 32)
    assert not has_other_write([stored], batch_run_of("nightly", "4"), SECOND)
