"""Permits: how many messages the broker may send, and how the buffer grows."""

from __future__ import annotations

import pytest

from anabranch.client.decide.consuming.permits import GROWN_BYTES_MAX, MESSAGE_BYTES_MIN, Permits

SIZE = 1000


class BufferedReader:
    """A buffer, and a broker that always has more messages."""

    def __init__(self, permits: Permits) -> None:
        self.permits = permits
        self.granted = self.buffered = 0
        self.grant(permits.size)

    def grant(self, count: int) -> None:
        self.permits.grant(count)
        self.granted += count

    def read(self, message_bytes: float, times: int = 1) -> None:
        """Let the broker use all permits, and empty the buffer."""
        for _ in range(times):
            self.permits.use(self.granted)
            self.granted, self.buffered = 0, self.buffered + self.granted
            while self.buffered:
                self.buffered -= 1
                self.permits.fit(message_bytes, emptied=not self.buffered)
                if due := self.permits.give_back(1):
                    self.grant(due)


def grown(message_bytes: float) -> BufferedReader:
    reader = BufferedReader(Permits(SIZE, grows=True))
    reader.read(message_bytes, 10)
    return reader


def test_permits_are_granted_when_half_of_the_buffer_is_free() -> None:
    permits = Permits(10)
    permits.grant(10)
    assert [permits.give_back(count) for count in (4, 0, 1)] == [0, 0, 5]
    permits.grant(5)
    assert [permits.give_back(count) for count in (4, 1)] == [0, 5]


def test_a_reset_forgets_earlier_permits() -> None:
    permits = Permits(10)
    permits.grant(10)
    permits.give_back(4)
    permits.reset()
    assert permits.give_back(1) == 0


def test_more_room_is_granted_at_once_and_less_when_messages_have_left() -> None:
    permits = Permits(10)
    permits.grant(10)
    permits.resize(30)
    assert permits.give_back(0) == 20
    permits.grant(20)
    permits.resize(10)
    assert [permits.give_back(count) for count in (20, 4, 1)] == [0, 0, 5]


@pytest.mark.parametrize(
    ("message_bytes", "size"),
    [(0.1, 16_000), (64, 16_000), (100, 8000), (524, 2000), (525, 1000), (2000, 1000)],
)
def test_a_buffer_grows_up_to_a_number_of_bytes(message_bytes: float, size: int) -> None:
    reader = grown(message_bytes)
    assert reader.permits.size == size
    assert size == SIZE or size * max(message_bytes, MESSAGE_BYTES_MIN) <= GROWN_BYTES_MAX


def test_a_buffer_of_fixed_size_or_that_is_never_emptied_stays() -> None:
    given = BufferedReader(Permits(SIZE))
    given.read(100, 10)
    assert given.permits.size == SIZE
    slow = Permits(SIZE, grows=True)
    slow.grant(SIZE)
    slow.use(SIZE)
    slow.fit(100, emptied=False)
    assert slow.size == SIZE


def test_a_buffer_grows_each_time_the_broker_has_used_all_permits() -> None:
    permits = Permits(SIZE, grows=True)

    def size_after(sent: int) -> int:
        permits.use(sent)
        permits.fit(100, emptied=True)
        return permits.size

    permits.grant(SIZE)
    assert [size_after(sent) for sent in (100, SIZE - 100)] == [SIZE, 2 * SIZE]
    permits.grant(2 * SIZE)
    assert size_after(100) == 2 * SIZE
    permits.reset()
    permits.grant(2 * SIZE)
    assert size_after(2 * SIZE) == 4 * SIZE


@pytest.mark.parametrize(
    ("message_bytes", "size"), [(130, 8000), (200, 4000), (300, 2000), (1000, 1000), (2**20, 1000)]
)
def test_a_buffer_shrinks_when_messages_become_larger(message_bytes: float, size: int) -> None:
    reader = grown(1)
    assert reader.permits.size == 16_000
    reader.read(message_bytes)
    assert reader.permits.size == size


def test_the_broker_never_has_more_permits_than_the_buffer_has_room() -> None:
    reader = grown(1)
    for message_bytes in (1000, 100, 200, 1, 300, 5000):
        reader.read(message_bytes)
        assert reader.granted <= reader.permits.size
        assert reader.granted * 2 > reader.permits.size
