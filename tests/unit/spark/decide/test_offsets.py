from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.offsets import Cut, Offset, Start, TopicCut, decode, encode, parse_request

CUTS = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.builds(
        TopicCut,
        st.dictionaries(st.integers(0, 10**6), st.integers(0, 2**63), max_size=5),
        st.integers(0, 1000),
    ),
    max_size=3,
).map(Cut)
OFFSETS = st.one_of(CUTS, st.sampled_from([Start("earliest"), Start("latest")]), CUTS.map(Start))


@given(OFFSETS)
def test_decode_undoes_encode_also_through_text(offset: Offset) -> None:
    assert decode(json.loads(json.dumps(encode(offset)))) == offset


def test_equal_maps_give_equal_text_in_any_order() -> None:
    one = Cut({"b": TopicCut({2: 5, 10: 1}), "a": TopicCut({})})
    other = Cut({"a": TopicCut({}), "b": TopicCut({10: 1, 2: 5})})
    assert json.dumps(encode(one)) == json.dumps(encode(other))


def test_the_form_is_the_documented_one() -> None:
    cut = Cut({"orders": TopicCut({12: 40110, 15: 0, 16: 9921}, epoch=17)})
    assert json.dumps(encode(cut)) == (
        '{"v": 1, "topics": {"orders": {"epoch": 17, "segs": {"12": 40110, "15": 0, "16": 9921}}}}'
    )
    assert json.dumps(encode(Start("latest"))) == '{"v": 1, "starting": "latest"}'


def test_a_request_may_be_a_word_or_the_json_of_a_cut() -> None:
    assert parse_request(" Earliest ", "startingOffsets") == Start("earliest")
    assert parse_request("latest", "startingOffsets") == Start("latest")
    text = '{"v": 1, "topics": {"orders": {"segs": {"3": 7}}}}'
    assert parse_request(text, "startingOffsets") == Start(Cut({"orders": TopicCut({3: 7})}))


@pytest.mark.parametrize(
    "text",
    [
        "tomorrow",
        "[]",
        '{"topics": {}}',
        '{"v": 2, "topics": {}}',
        '{"v": 1, "topics": {"orders": {"segs": {"3": -7}}}}',
        '{"v": 1, "topics": {"orders": {"segs": {"three": 7}}}}',
        '{"v": 1, "topics": {"orders": 5}}',
        '{"v": 1, "topics": {"orders": {"segs": {"3": true}}}}',
    ],
)
def test_text_that_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigurationError):
        parse_request(text, "startingOffsets")
