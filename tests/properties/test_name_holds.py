"""Laws of name holds: which timers run."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.decide.name_holds import (
    ConnectionLost,
    ConsumerGone,
    ConsumerJoined,
    NameHoldEvent,
    NameHolds,
    StartTimer,
)
from anabranch.errors import ConsumerBusyError

NAMES = st.sampled_from(["a", "b", "c", "d"])


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["join", "lose", "go"]), NAMES, st.integers(1, 6)), max_size=30))
def test_timers_run_for_exactly_the_names_whose_connection_is_lost(steps: list[tuple[str, str, int]]) -> None:
    holds, timers, token = NameHolds(), set[int](), 100
    for what, name, old in steps:
        event: NameHoldEvent
        if what == "join":
            token += 1
            event = ConsumerJoined("s", name, token)
        elif what == "lose":
            event = ConnectionLost(token - old)
        else:
            event = ConsumerGone(token - old)
        try:
            effects = holds.handle(event)
        except ConsumerBusyError:
            holder = holds.named("s", name)
            assert holder is not None
            assert holder.connected
            continue
        for effect in effects:
            if isinstance(effect, StartTimer):
                assert effect.token not in timers
                timers.add(effect.token)
            else:
                timers.remove(effect.token)
        assert timers == {hold.token for hold in holds.all("s") if not hold.connected}
        assert all(holds.of(hold.token) == holds.named("s", hold.name) == hold for hold in holds.all("s"))
