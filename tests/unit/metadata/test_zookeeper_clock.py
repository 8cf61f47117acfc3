from __future__ import annotations

import pytest

from anabranch.metadata.zookeeper.zookeeper_clock import ContactClock


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def clock(hand: Hand) -> ContactClock:
    clock = ContactClock(hand)
    clock.connected(100.0, session_s=10.0)
    return clock


def test_a_session_that_never_began_has_no_time_left(hand: Hand) -> None:
    assert ContactClock(hand).left_s() <= 0


def test_a_session_is_certain_for_its_timeout_after_it_was_asked_for(clock: ContactClock, hand: Hand) -> None:
    assert clock.left_s() == 10
    hand.now_s += 10
    assert clock.left_s() == 0


def test_an_answer_counts_from_the_time_of_its_request(clock: ContactClock, hand: Hand) -> None:
    hand.now_s = 104
    clock.sent()
    hand.now_s = 109
    assert clock.left_s() == 1, "a request without an answer proves nothing"
    clock.answered()
    assert clock.left_s() == 5


def test_answers_belong_to_requests_in_their_order(clock: ContactClock, hand: Hand) -> None:
    for now_s in (101, 102, 103):
        hand.now_s = now_s
        clock.sent()
    clock.answered()
    clock.answered()
    assert clock.left_s() == 9


def test_an_interrupted_connection_forgets_its_requests(clock: ContactClock, hand: Hand) -> None:
    hand.now_s = 101
    clock.sent()
    clock.connected(105.0, session_s=8.0)
    clock.answered()
    hand.now_s = 106
    assert clock.left_s() == 7


def test_a_process_that_was_stopped_sees_at_once_that_its_time_is_over(
    clock: ContactClock, hand: Hand
) -> None:
    hand.now_s += 3600
    assert clock.left_s() < 0
