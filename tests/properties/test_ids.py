from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidConfigurationError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.ids import MessageId, Position

numbers = st.one_of(st.integers(-1, 300), st.integers(-1, 2**63 - 1))
small = st.integers(0, 2**31 - 1)
chunks = st.none() | st.builds(Position, numbers, numbers)
plain = st.builds(
    MessageId, numbers, numbers, numbers, st.integers(-1, 2**31 - 1), small, st.integers(-1, 2**31 - 1)
)
vectors = st.lists(plain, max_size=4).map(lambda ids: tuple((id_.segment, id_) for id_ in ids))
topics = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.builds(
    lambda id_, vector, topic, cross, chunk: MessageId(
        id_.segment,
        id_.ledger,
        id_.entry,
        id_.batch_index,
        id_.batch_size,
        id_.partition,
        vector,
        topic,
        cross,
        chunk,
    ),
    plain,
    vectors,
    st.none() | topics,
    st.none() | st.lists(st.tuples(topics, vectors), max_size=3).map(tuple),
    chunks,
)


def parts(id_: MessageId) -> tuple[object, ...]:
    return (id_, id_.batch_size, id_.vector, id_.topic, id_.cross, id_.first_chunk)


@given(ids)
def test_decode_undoes_encode(id_: MessageId) -> None:
    assert parts(MessageId.from_bytes(id_.to_bytes())) == parts(id_)


@given(ids, st.data())
def test_cut_or_random_bytes_are_refused_or_read_but_never_crash(id_: MessageId, data: st.DataObject) -> None:
    whole = id_.to_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:place] + bytes((data.draw(st.integers(0, 255)),)) + whole[place + 1 :]
    for given_bytes in (cut, damaged, data.draw(st.binary(max_size=60))):
        for read in (MessageId.from_bytes, Checkpoint.from_bytes):
            try:
                read(given_bytes)
            except InvalidConfigurationError:
                continue


@given(st.lists(plain))
def test_order_is_total_and_agrees_with_equality(found: list[MessageId]) -> None:
    ordered = sorted(found)
    for one, two in pairwise(ordered):
        assert one <= two
        assert two >= one
        assert (one == two) == (not one < two and not two < one)
        if one == two:
            assert hash(one) == hash(two)


@given(st.lists(plain, max_size=6))
def test_checkpoints_survive_their_bytes(found: list[MessageId]) -> None:
    checkpoint = Checkpoint({id_.segment: id_ for id_ in found})
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


@given(st.lists(st.lists(plain, max_size=4), min_size=1, max_size=4))
def test_a_merge_of_checkpoints_does_not_depend_on_their_order(groups: list[list[MessageId]]) -> None:
    checkpoints = [Checkpoint({id_.segment: id_ for id_ in group}) for group in groups]
    merged = Checkpoint.merge(checkpoints)
    assert Checkpoint.merge(checkpoints[::-1]) == merged
    for checkpoint in checkpoints:
        for segment, id_ in checkpoint.positions.items():
            assert merged.positions[segment] >= id_
