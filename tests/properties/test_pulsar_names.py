"""Names of Pulsar topics for segments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.log_names.pulsar_names import pulsar_topic, segment_in
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange

ELEMENTS = st.text(st.sampled_from("ab%2F5.segment-0ü"), max_size=12).map(lambda text: f"x{text}x")
LOCALS = st.lists(ELEMENTS, min_size=1, max_size=3).map("/".join)
RANGES = st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)).map(lambda ends: HashRange(*sorted(ends)))


@given(LOCALS, RANGES, st.integers(0, 10**6))
def test_the_segment_is_found_in_the_name_of_its_topic(local: str, range_: HashRange, id_: int) -> None:
    segment = TopicName("topic", "public", "default", local).segment_name(range_, id_)
    topic = pulsar_topic(segment)
    assert topic.domain == "persistent"
    assert segment_in(TopicName.parse(str(topic))) == segment


def test_other_topics_hold_no_segment_and_keep_their_names() -> None:
    for text in ("orders", "orders.segment-1", "orders.segment-0000-7ff-1", ".segment-0000-ffff-0"):
        topic = TopicName.parse(f"persistent://public/default/{text}")
        assert segment_in(topic) is None
        assert pulsar_topic(topic) == topic
