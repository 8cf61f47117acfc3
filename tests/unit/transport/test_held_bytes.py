from __future__ import annotations

from anabranch.errors import TooManyRequestsError
from anabranch.transport.held_bytes import HeldBytes


class SlowPeer:
    """A connection that records the reason of its end."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def abort(self, error: Exception | None = None) -> None:
        self.error = error


async def test_the_longest_holder_is_closed_above_the_limit() -> None:
    held = HeldBytes("answers", 100)
    first, second, third = SlowPeer(), SlowPeer(), SlowPeer()
    held.hold(first, 40)
    held.hold(second, 40)
    held.hold(first, 50)
    held.hold(third, 10)
    assert (held.total, held.dropped) == (100, 0)
    held.hold(third, 20)
    assert isinstance(first.error, TooManyRequestsError)
    assert (second.error, third.error, held.total) == (None, None, 60)


async def test_a_peer_whose_bytes_are_new_goes_last() -> None:
    held = HeldBytes("answers", 100)
    first, second = SlowPeer(), SlowPeer()
    held.hold(first, 40)
    held.hold(second, 40)
    held.hold(first, 45, anew=True)
    held.hold(first, 70)
    assert (first.error, second.error is not None, held.total) == (None, True, 70)


async def test_released_bytes_do_not_count() -> None:
    held = HeldBytes("answers", 100)
    one = SlowPeer()
    for _ in range(10):
        held.hold(one, 90)
        held.hold(one, 0)
        held.hold(one, 0, anew=True)
    assert (held.total, one.error) == (0, None)


async def test_a_peer_that_was_closed_is_forgotten() -> None:
    held = HeldBytes("answers", 100)
    one = SlowPeer()
    held.hold(one, 200)
    assert (held.total, one.error is not None) == (0, True)
    held.hold(one, 0)
    assert held.total == 0
