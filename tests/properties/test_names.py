from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.names import (
    STORAGE_NAME_MAX,
    Domain,
    SegmentDescriptor,
    TopicName,
    decode_part,
    encode_part,
)
from anabranch.model.ranges import HASH_SLOTS, HashRange

entities = st.text(string.ascii_letters + string.digits + "-=:._", min_size=1, max_size=8).filter(
    lambda text: text not in (".", "..")
)
# Few characters that could confuse an encoding, so near misses are common.
tricky = st.text("aAbB~%+/._-2fFéÉßẞıİſK日", min_size=1, max_size=12)
elements = st.one_of(tricky, st.text("aA", min_size=150, max_size=400)).map(
    lambda text: text.replace("/", "")
)
flat = elements.filter(lambda text: text not in ("", ".", ".."))
deep = st.lists(flat, min_size=1, max_size=2).map("/".join)
slots = st.integers(0, HASH_SLOTS - 1)
descriptors = st.builds(
    lambda one, two, id_: SegmentDescriptor(HashRange(min(one, two), max(one, two)), id_),
    slots,
    slots,
    st.integers(0, 10**6),
)
classic: st.SearchStrategy[Domain] = st.sampled_from(["persistent", "non-persistent"])
names = st.one_of(
    st.builds(TopicName, classic, entities, entities, flat),
    st.builds(TopicName, st.just("topic"), entities, entities, deep),
    st.builds(TopicName, st.just("segment"), entities, entities, deep, descriptors),
)


@given(names)
def test_a_name_reads_back_from_its_text(name: TopicName) -> None:
    assert TopicName.parse(str(name)) == name


@given(names, names)
def test_different_names_are_stored_apart_even_where_case_does_not_count(
    one: TopicName, two: TopicName
) -> None:
    if one != two:
        assert one.storage_name.casefold() != two.storage_name.casefold()


@given(names)
def test_a_storage_name_is_one_harmless_path_component(name: TopicName) -> None:
    stored = name.storage_name
    assert len(stored.encode("ascii")) <= STORAGE_NAME_MAX
    assert stored not in ("", ".", "..")
    assert not set(stored) & set("/\\:.\0 ")
    assert stored == stored.lower()


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_a_path_element_reads_back_and_holds_no_separator(text: str) -> None:
    encoded = encode_part(text)
    assert decode_part(encoded) == text
    assert "/" not in encoded
    assert encoded not in ("", ".", "..")


@given(st.text())
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except ValueError:
        return
    assert TopicName.parse(str(name)) == name
