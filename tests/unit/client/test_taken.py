"""Messages that a blocking consumer has taken and not handed out."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client.blocking.taken import TakenMessages


def taken(count: int) -> TakenMessages[Any]:
    made: TakenMessages[Any] = TakenMessages()
    # Any objects will do.
    numbers: list[Any] = list(range(count))
    made.put(numbers)
    return made


@pytest.mark.parametrize("limits", [(4, 4, 4), (1, 1, 8), (3, 1, 2, 9), (10,), (11,), (1,) * 11])
def test_messages_leave_in_order_however_many_are_asked_for(limits: tuple[int, ...]) -> None:
    messages = taken(10)
    found: list[Any] = []
    for limit in limits:
        some: list[Any] = messages.pop(limit)
        assert len(some) == min(limit, 10 - len(found))
        found += some
        assert found + messages.waiting() == list(range(10))
        assert len(messages) == 10 - len(found)
    assert found == list(range(10))


def test_one_at_a_time_and_several_share_one_order() -> None:
    messages = taken(10)
    found: list[Any] = messages.pop(1)
    found.append(messages.singles.popleft())
    found += messages.pop(3)
    found.append(messages.singles.popleft())
    assert found + messages.waiting() == list(range(10))
    messages.clear()
    assert not messages
    assert messages.pop(5) == []
