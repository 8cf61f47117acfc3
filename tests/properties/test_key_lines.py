"""Laws of the lines of keys, for any arrivals, any order of completion, and any failures."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.decide.consuming.acknowledgements import leading
from anabranch.client.decide.consuming.key_lines import KeyLine, KeyLines
from anabranch.client.decide.consuming.key_pauses import KeyPauses
from anabranch.model.acks import bits_at

Numbered = tuple[str | None, int]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["a", "b", "c", None])),
        st.tuples(st.just("start"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["finish", "fail", "withdraw"]), st.integers(0, 10)),
        st.tuples(st.just("resume"), st.integers(0, 30)),
    ),
    max_size=120,
)


class LineModel:
    """Runs steps on lines, and checks each start against the messages that arrived before."""

    def __init__(self, concurrency: int) -> None:
        self.lines: KeyLines[Numbered] = KeyLines(concurrency)
        self.running: list[KeyLine[Numbered]] = []
        self.unfinished: dict[str | None, list[int]] = defaultdict(list)
        self.due: dict[Numbered, float] = {}
        self.now = 0.0
        self.concurrency = concurrency
        self.next_number = count().__next__

    def add(self, key: str | None) -> None:
        number = self.next_number()
        self.unfinished[key].append(number)
        self.lines.add(key, (key, number))

    def start(self, times: int = 1) -> None:
        for _ in range(times):
            if (line := self.lines.start()) is not None:
                self.check(line)

    def check(self, line: KeyLine[Numbered]) -> None:
        key, number = line.first
        assert all(other.first != line.first for other in self.running), "started twice"
        assert number in self.unfinished[key], "started again after it had finished"
        if key is not None:
            assert self.unfinished[key][0] == number, "an earlier message of the key is unfinished"
            assert all(other.first[0] != key for other in self.running)
        assert self.due.pop(line.first, self.now) <= self.now, "started before its pause was over"
        self.running.append(line)
        assert len(self.running) <= self.concurrency

    def finish(self, at: int) -> None:
        if self.running:
            line = self.running.pop(at % len(self.running))
            self.unfinished[line.first[0]].remove(line.first[1])
            self.lines.finish(line)

    def fail(self, at: int) -> None:
        if self.running:
            line = self.running.pop(at % len(self.running))
            self.due[line.first] = self.now + at
            self.lines.pause(line, line.first, self.now + at)

    def withdraw(self, at: int) -> None:
        removed = self.lines.withdraw(lambda message: message[1] % 11 == at)
        assert not {line.first for line in self.running} & {*removed}
        for key, number in removed:
            self.unfinished[key].remove(number)
            self.due.pop((key, number), None)

    def resume(self, after: int) -> None:
        self.now += after
        self.lines.resume(self.now)

    def finish_all(self) -> None:
        """Everything that arrived is started and finished in the end."""
        while self.lines.held:
            self.resume(100)
            self.start(self.lines.held)
            assert self.running, "messages wait, and none can start"
            self.finish(0)
        assert not any(self.unfinished.values())
        assert (self.lines.running, self.lines.ready, self.lines.paused) == (0, 0, 0)
        assert not self.lines.keys()


@given(STEPS, st.integers(1, 4))
def test_messages_of_a_key_start_in_order_and_all_finish(steps: list[tuple[str, object]], most: int) -> None:
    model = LineModel(most)
    for name, argument in steps:
        step = getattr(model, name)
        step(argument)
        assert model.lines.held == sum(map(len, model.unfinished.values()))
    model.finish_all()


@given(st.sets(st.integers(0, 200)), st.sets(st.integers(0, 200)))
def test_an_acknowledgement_never_passes_an_unfinished_message(wanted: set[int], finished: set[int]) -> None:
    found = leading(bits_at(sorted(wanted)), bits_at(sorted(finished)))
    expected = []
    for index in sorted(wanted):
        if index not in finished:
            break
        expected.append(index)
    assert found == bits_at(expected)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), st.sampled_from(["a", "a", "b", None])),
            st.tuples(st.just("refuse"), st.integers(0, 20)),
            st.tuples(st.just("acknowledge"), st.integers(0, 20)),
            st.tuples(st.just("pass"), st.integers(0, 10)),
        ),
        max_size=80,
    )
)
def test_refused_messages_come_again_before_later_ones_of_their_key(steps: list[tuple[str, object]]) -> None:
    pauses: KeyPauses[Numbered] = KeyPauses(lambda message: message[0])
    next_number = count().__next__
    outside: list[Numbered] = []
    """Messages that the application has, in the order in which it got them."""
    waiting: set[Numbered] = set()
    now = 0.0

    def hand_out(messages: list[Numbered]) -> None:
        for message in messages:
            key, number = message
            earlier = [other for other in waiting if other[0] == key is not None and other[1] < number]
            assert not earlier, "a later message of the key overtakes a refused one"
            waiting.discard(message)
            outside.append(message)

    for name, argument in steps:
        if name == "arrive":
            message: Numbered = (argument, next_number())  # type: ignore[assignment]
            free = pauses.sift([message])
            waiting.update({message} - {*free})
            hand_out(free)
        elif name == "pass":
            now += int(str(argument))
            hand_out(pauses.take_due(now))
        elif outside:
            chosen = outside.pop(int(str(argument)) % len(outside))
            if name == "refuse":
                pauses.refuse(chosen, chosen[1], now + 5)
                waiting.add(chosen)
        assert pauses.held == len(waiting)
    assert {*pauses.take_due(now + 5)} == waiting
    assert not pauses
