"""AckSet against the plainest model of it: a set of ordinals and a dictionary of bits."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap64

from anabranch.errors import CorruptDataError
from anabranch.model.acks import AckSet, bits_from_words, words_from_bits

END = 50
ordinals = st.integers(0, END - 1)


class AckSetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.acks = AckSet()
        self.acked: set[int] = set()
        self.left: dict[int, int] = {}

    def forget_parts(self) -> None:
        self.left = {ordinal: bits for ordinal, bits in self.left.items() if ordinal not in self.acked}

    @rule(given=st.lists(ordinals, max_size=30), lazily=st.booleans())
    def acknowledge(self, given: list[int], lazily: bool) -> None:
        source: Iterable[int] = iter(given) if lazily else given
        self.acks.acknowledge(source)
        self.acked.update(given)
        self.forget_parts()

    @rule(first=ordinals, count=st.integers(0, 60), step=st.integers(1, 4))
    def acknowledge_range(self, first: int, count: int, step: int) -> None:
        given = range(first, min(END, first + count), step)
        self.acks.acknowledge(given)
        self.acked.update(given)
        self.forget_parts()

    @rule(given=st.sets(st.integers(0, END + 10)))
    def keep_pending(self, given: set[int]) -> None:
        kept = BitMap64(given)
        self.acks.keep_pending(kept)
        assert set(kept) == {ordinal for ordinal in given if ordinal not in self.acks}

    @rule(ordinal=ordinals, remaining=st.integers(0, 255), count=st.integers(1, 8))
    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> None:
        whole = 2**count - 1
        if ordinal not in self.acked:
            bits = self.left.get(ordinal, whole) & remaining & whole
            if not bits:
                self.acked.add(ordinal)
                self.left.pop(ordinal, None)
            elif bits != whole:
                self.left[ordinal] = bits
        assert self.acks.acknowledge_part(ordinal, remaining, count) == (ordinal in self.acked)

    @rule(given=st.sets(ordinals, max_size=30))
    def reopen(self, given: set[int]) -> None:
        again = given & self.acked
        self.acks.reopen(BitMap64(again))
        self.acked -= again

    @rule()
    def go_on_with_a_copy(self) -> None:
        before, self.acks = self.acks, self.acks.copy()
        before.acknowledge(range(END))

    @rule(end=st.integers(0, END + 5))
    def list_pending(self, end: int) -> None:
        assert list(self.acks.pending_below(end)) == [at for at in range(end) if at not in self.acked]

    @rule(ordinal=ordinals)
    def acknowledge_up_to(self, ordinal: int) -> None:
        self.acks.acknowledge_up_to(ordinal)
        self.acked.update(range(ordinal))
        self.forget_parts()

    @rule(ordinal=ordinals)
    def reset(self, ordinal: int) -> None:
        self.acks.reset(ordinal)
        self.acked = set(range(ordinal))
        self.left = {}

    @rule()
    def store_and_load(self) -> None:
        back = AckSet.decode(self.acks.encode())
        assert back == self.acks
        self.acks = back

    @invariant()
    def agrees_with_the_model(self) -> None:
        acks, pending = self.acks, [ordinal for ordinal in range(END + 1) if ordinal not in self.acked]
        assert acks.mark == pending[0]
        assert acks.top == max(self.acked, default=-1) + 1
        assert acks.holes == sum(ordinal < acks.top for ordinal in pending)
        assert acks.parts == len(self.left)
        for ordinal in range(0, END, 3):
            assert (ordinal in acks) == (ordinal in self.acked)
            assert acks.remaining(ordinal) == self.left.get(ordinal)
            assert acks.next_pending(ordinal) == next(other for other in pending if other >= ordinal)
            assert acks.pending_count(ordinal) == sum(other < ordinal for other in pending)


TestAckSetMachine = AckSetMachine.TestCase
TestAckSetMachine.settings = settings(max_examples=60, stateful_step_count=30)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_words_and_bits_are_the_same_set(words: list[int]) -> None:
    while words and words[-1] == 0:
        words.pop()
    assert words_from_bits(bits_from_words(words)) == words


@given(st.sets(st.integers(0, 2**20), max_size=50), st.data())
def test_damaged_bytes_are_refused_or_read_but_never_crash(found: set[int], data: st.DataObject) -> None:
    acks = AckSet()
    acks.acknowledge(sorted(found))
    whole = acks.encode()
    for given_bytes in (
        whole[: data.draw(st.integers(0, len(whole) - 1))],
        data.draw(st.binary(max_size=80)),
    ):
        try:
            AckSet.decode(given_bytes)
        except CorruptDataError:
            continue
