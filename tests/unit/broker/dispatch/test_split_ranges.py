"""One range of slots for each consumer, in the places where Pulsar puts them."""

from __future__ import annotations

import pytest

from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.selectors import SplitRanges
from anabranch.errors import ConsumerAssignError
from anabranch.model.ranges import HASH_SLOTS


class RoomyLine:
    """A connection with room."""

    writable = True


def receivers(count: int) -> list[Receiver]:
    return [Receiver(f"c{n}", n, RoomyLine()) for n in range(count)]


def shown(selector: SplitRanges) -> str:
    """The last slot of each range in hexadecimal, and its owner."""
    owners = [selector.owner(slot) for slot in range(HASH_SLOTS)]
    ends = [n for n in range(HASH_SLOTS) if n + 1 == HASH_SLOTS or owners[n] is not owners[n + 1]]
    return " ".join(f"{end:04x}={owner.name}" for end in ends if (owner := owners[end]) is not None)


def joined(selector: SplitRanges, newcomer: Receiver) -> str:
    selector.join(newcomer)
    return shown(selector)


def test_a_newcomer_gets_the_lower_half_of_the_largest_range() -> None:
    selector = SplitRanges()
    assert selector.owner(5) is None
    one, two, three, four, five = receivers(5)
    assert joined(selector, one) == "ffff=c0"
    assert joined(selector, two) == "8000=c1 ffff=c0"
    assert joined(selector, three) == "4000=c2 8000=c1 ffff=c0"
    assert joined(selector, four) == "4000=c2 8000=c1 c000=c3 ffff=c0"
    assert joined(selector, five) == "2000=c4 4000=c2 8000=c1 c000=c3 ffff=c0"


def test_a_range_goes_to_the_one_above_and_the_last_one_to_the_one_below() -> None:
    selector = SplitRanges()
    one, two, three, four = receivers(4)
    for receiver in (one, two, three, four):
        selector.join(receiver)
    selector.leave(three)
    assert shown(selector) == "8000=c1 c000=c3 ffff=c0"
    selector.leave(one)
    assert shown(selector) == "8000=c1 ffff=c3"
    selector.leave(two)
    assert shown(selector) == "ffff=c3"
    selector.leave(four)
    assert selector.owner(0) is None
    assert joined(selector, one) == "ffff=c0"


def test_more_receivers_than_slots_are_refused() -> None:
    selector = SplitRanges(4)
    for receiver in receivers(4):
        selector.join(receiver)
    with pytest.raises(ConsumerAssignError, match="4 consumers"):
        selector.join(receivers(1)[0])
