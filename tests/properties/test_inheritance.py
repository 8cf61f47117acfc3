"""Inherited sequence ids against the plainest model of a topic: which messages are stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from anabranch.model.inheritance import Known, Piece, Pieces, handed_on, inherit
from anabranch.model.ranges import FULL, LAST_SLOT, HashRange

SLOTS = [0, 1, 9000, 20000, 30000, 32767, 32768, 40000, 50000, 65000, LAST_SLOT]
POINTS = [9000, 20000, 30000, 32768, 40000, 50000, 65000]
slots = st.sampled_from(SLOTS)
producers = st.sampled_from(["p", "q"])


@dataclass
class ModelMessage:
    producer: str
    sequence: int
    slot: int
    stored: int = 0


@dataclass
class ModelLog:
    """A segment: its last stored id of each producer, its inheritance, and messages in flight."""

    range: HashRange
    inherited: Pieces = ()
    own: dict[str, int] = field(default_factory=dict)
    late: list[ModelMessage] = field(default_factory=list)

    def is_duplicate(self, message: ModelMessage, slot: int | None) -> bool:
        if message.sequence <= self.own.get(message.producer, -1):
            return True
        return Known(self.inherited, message.producer).is_duplicate(message.sequence, slot)

    def take(self, message: ModelMessage) -> None:
        if not self.is_duplicate(message, message.slot):
            message.stored += 1
            self.own[message.producer] = message.sequence


class TopicMachine(RuleBasedStateMachine):
    """Producers send with rising ids, some messages are late, and the layout changes under them.

    As clients do: what did not arrive before a seal goes first to the successors, in order, and nothing of
    that producer passes it on its way.
    """

    pieces_max = 32
    bytes_max = 10_000

    @initialize()
    def begin(self) -> None:
        self.logs = [ModelLog(FULL)]
        self.messages: list[ModelMessage] = []

    def log_of(self, slot: int) -> ModelLog:
        return next(log for log in self.logs if slot in log.range)

    @rule(producer=producers, slot=slots, late=st.booleans())
    def send(self, producer: str, slot: int, late: bool) -> None:
        message = ModelMessage(producer, len(self.messages), slot)
        self.messages.append(message)
        log = self.log_of(slot)
        if late or any(waiting.producer == producer for waiting in log.late):
            log.late.append(message)
        else:
            log.take(message)

    @rule(slot=slots)
    def arrive(self, slot: int) -> None:
        log = self.log_of(slot)
        for message in log.late:
            assert not log.is_duplicate(message, message.slot)
            assert not log.is_duplicate(message, None)
            log.take(message)
        log.late.clear()

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        known = [message for message in self.messages if message.stored]
        if known:
            message = data.draw(st.sampled_from(known))
            log = self.log_of(message.slot)
            # A repetition does not pass the late messages of its producer either.
            if not any(waiting.producer == message.producer for waiting in log.late):
                log.take(message)

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        log = data.draw(st.sampled_from(self.logs))
        points = [point for point in POINTS if log.range.start < point <= log.range.end]
        if points:
            chosen = sorted(data.draw(st.sets(st.sampled_from(points), min_size=1, max_size=3)))
            self.replace([log], list(log.range.split(chosen)))

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.logs) - 1))
        count = data.draw(st.integers(2, 4))
        parents = self.logs[first : first + count]
        if len(parents) > 1:
            self.replace(parents, [HashRange.join(log.range for log in parents)])

    @rule(data=st.data())
    def rebucket(self, data: st.DataObject) -> None:
        log = data.draw(st.sampled_from(self.logs))
        self.replace([log], [log.range])

    def replace(self, parents: list[ModelLog], ranges: list[HashRange]) -> None:
        told = [
            piece
            for log in parents
            for piece in handed_on(log.range, log.own, log.inherited, bytes_max=self.bytes_max)
        ]
        children = [
            ModelLog(part, inherit(part, told, pieces_max=self.pieces_max, bytes_max=self.bytes_max))
            for part in ranges
        ]
        self.logs = sorted(
            [log for log in self.logs if log not in parents] + children, key=lambda log: log.range
        )
        late = sorted((m for log in parents for m in log.late), key=lambda m: m.sequence)
        for message in late:
            self.log_of(message.slot).late.append(message)

    @invariant()
    def nothing_that_is_not_stored_passes_for_a_repetition(self) -> None:
        for log in self.logs:
            for message in log.late:
                assert not log.is_duplicate(message, message.slot)
                assert not log.is_duplicate(message, None)

    @invariant()
    def pieces_tile_the_segment_and_are_few(self) -> None:
        for log in self.logs:
            if log.inherited:
                assert HashRange.join(piece.range for piece in log.inherited) == log.range
                assert len(log.inherited) <= self.pieces_max
                assert 13 * sum(len(piece.sequences) for piece in log.inherited) <= self.bytes_max

    @invariant()
    def every_repetition_is_recognised(self) -> None:
        for message in self.messages:
            assert message.stored <= 1
            if message.stored:
                assert self.log_of(message.slot).is_duplicate(message, message.slot)


class BoundedTopicMachine(TopicMachine):
    """With a tiny bound on the inheritance, a repetition may be stored, but no message is dropped."""

    pieces_max = 2
    bytes_max = 40

    @invariant()
    def every_repetition_is_recognised(self) -> None:
        """Not promised here."""


TestTopic = TopicMachine.TestCase
TestTopic.settings = settings(max_examples=60, stateful_step_count=40)
TestBoundedTopic = BoundedTopicMachine.TestCase
TestBoundedTopic.settings = settings(max_examples=60, stateful_step_count=40)

sequences = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), max_size=4)


@given(
    st.lists(sequences, min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(1, 150),
    slots,
)
def test_bounds_only_ever_lower_what_is_known(
    found: list[dict[str, int]], pieces_max: int, bytes_max: int, slot: int
) -> None:
    told = [Piece(part, known) for part, known in zip(FULL.parts(len(found)), found, strict=True)]
    exact = inherit(FULL, told)
    bounded = inherit(FULL, told, pieces_max=pieces_max, bytes_max=bytes_max)
    assert len(bounded) <= pieces_max
    for producer in "abcd":
        for sequence in range(6):
            for at in (slot, None):
                if Known(bounded, producer).is_duplicate(sequence, at):
                    assert Known(exact, producer).is_duplicate(sequence, at)
