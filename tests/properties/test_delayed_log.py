"""Laws of the delayed entries of a log: none goes out early or is forgotten, in little memory or restarts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from anabranch.broker.dispatch.delayed_log import LEAD_MS, WINDOW_MS, DelayedLog

BITS = 2
"""Blocks of four entries, so that small logs have many."""

STEP_MS = LEAD_MS // 2
DELAYS = st.sampled_from(
    (
        0,
        1,
        STEP_MS,
        3 * STEP_MS,
        WINDOW_MS - STEP_MS,
        WINDOW_MS,
        WINDOW_MS + STEP_MS,
        2 * WINDOW_MS,
        3 * WINDOW_MS,
    )
)
WAITS = st.sampled_from((1, STEP_MS, LEAD_MS, WINDOW_MS - STEP_MS, WINDOW_MS, 2 * WINDOW_MS))


class DelayedLogMachine(RuleBasedStateMachine):
    """Reads a log through one DelayedLog, as a Shared subscription does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.log: list[int] = []
        self.acked: set[int] = set()
        self.durable = b""

    @initialize(memory=st.sampled_from((0, 2, 8)))
    def begin(self, memory: int) -> None:
        self.memory = memory
        self.start()

    def start(self) -> None:
        self.delayed = DelayedLog(self.memory, BITS)
        self.delayed.load(self.durable)
        self.next = 0
        self.out: set[int] = set()
        self.due: set[int] = set()

    @rule(delays=st.lists(DELAYS, min_size=1, max_size=12))
    def append(self, delays: list[int]) -> None:
        self.log += [self.now + delay if delay else 0 for delay in delays]

    @rule(passed=WAITS)
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(turns=st.integers(1, 5))
    def some_turns(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    @rule()
    def everything_due_goes_out(self) -> None:
        while self.turn():
            pass
        late = {at for at, time in enumerate(self.log) if time <= self.now}
        assert late <= self.acked | self.out

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if self.out:
            chosen = data.draw(st.sets(st.sampled_from(sorted(self.out))))
            self.acked |= chosen
            self.out -= chosen

    @rule()
    def write_the_note(self) -> None:
        self.durable = self.delayed.note(self.next, self.out | self.due, self.now)

    @rule()
    def restart(self) -> None:
        self.start()

    def turn(self) -> bool:
        """One step of each kind; whether any changed something."""
        due = {one.ordinal for one in self.delayed.pop_due(self.now, 3)}
        self.due |= due
        return any((due, self.scan(), self.deliver(), self.read()))

    def scan(self) -> bool:
        block = self.delayed.to_read(self.now)
        if block is None:
            return False
        start, end = block[0], min(block[1], self.next)
        stop = min(start + 2, end)
        for at in range(start, stop):
            known = at in self.acked or at in self.out
            if not known and self.delayed.found(self.log[at], at, self.now):
                self.due.add(at)
        self.delayed.read_until(stop, end)
        return True

    def deliver(self) -> bool:
        for at in self.due - self.acked:
            assert self.log[at] <= self.now, "no entry goes out before its time"
            assert at not in self.out, "no entry goes out twice"
            self.out.add(at)
        found, self.due = bool(self.due), set()
        return found

    def read(self) -> bool:
        before, self.next = self.next, self.delayed.passed(self.next)
        if self.next < len(self.log):
            at = self.next
            self.next += 1
            if at not in self.acked | self.out:
                if self.log[at] > self.now:
                    self.delayed.add(self.log[at], at, self.now)
                else:
                    self.due.add(at)
        return self.next != before

    @invariant()
    def the_timer_is_set(self) -> None:
        if not hasattr(self, "delayed"):
            return
        known = range(min(self.next, len(self.log)))
        waiting = [self.log[at] for at in known if at not in self.acked | self.out | self.due]
        if waiting and self.delayed.to_read(self.now) is None:
            assert self.delayed.next_ms is not None
            assert self.delayed.next_ms <= min(waiting)


TestDelayedLog = DelayedLogMachine.TestCase


@given(delays=st.lists(st.integers(2 * LEAD_MS, 10 * WINDOW_MS), min_size=8, max_size=100))
def test_a_restart_reads_nothing_that_is_delayed_for_long(delays: list[int]) -> None:
    before = DelayedLog(1000, BITS)
    for at, delay in enumerate(delays):
        before.add(delay, at, 0)
    after = DelayedLog(1000, BITS)
    after.load(before.note(len(delays), (), 0))
    whole = len(delays) >> BITS << BITS
    assert after.passed(0) == whole
    assert after.to_read(0) is None
    assert after.next_ms == min(delays[:whole]) - LEAD_MS


def test_bytes_of_another_kind_are_no_note() -> None:
    delayed = DelayedLog()
    for note in (b"", b"{}", b"delays1\nabc", b"delays1\n"):
        delayed.load(note)
        assert not delayed.waiting
        assert delayed.passed(0) == 0
