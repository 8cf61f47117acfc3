"""How many messages a blocking consumer takes at once."""

from __future__ import annotations

from itertools import accumulate, repeat

import pytest

from anabranch.client.decide.consuming.look_ahead import AHEAD_S, TAKEN_MAX, next_look_ahead


def steps(message_s: float, count: int) -> list[int]:
    """The numbers that a consumer takes whose application needs `message_s` for each message."""
    return list(
        accumulate(
            repeat(0, count), lambda ahead, _: next_look_ahead(ahead, ahead, ahead * message_s), initial=1
        )
    )


def test_a_quick_application_takes_more_and_more_up_to_the_limit() -> None:
    assert steps(1e-6, 12) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, TAKEN_MAX]
    assert next_look_ahead(5, 5, 0.0) == 10


def test_messages_that_were_not_there_do_not_slow_a_quick_application_down() -> None:
    assert next_look_ahead(TAKEN_MAX // 2, 10, 10e-6) == TAKEN_MAX


def test_a_slow_application_takes_one_at_a_time() -> None:
    assert steps(1.0, 3) == [1, 1, 1, 1]
    assert next_look_ahead(TAKEN_MAX, TAKEN_MAX, AHEAD_S * TAKEN_MAX) == 1


@pytest.mark.parametrize("message_s", [0.0001, 0.001, 0.004])
def test_messages_wait_for_their_application_about_as_long_as_allowed(message_s: float) -> None:
    assert steps(message_s, 15)[-1] * message_s == pytest.approx(AHEAD_S, rel=0.3)
