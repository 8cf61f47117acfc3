"""Laws of one subscription's group, over any history of layouts, drains and members."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.decide import groups
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.drains import union
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout
from tests.fakes.ready import ready_segments

STEPS = ["join", "join", "leave", "drain", "drain in part", "drain in part", "split", "merge", "seek"]
NAMES = st.sampled_from(["a", "b", "c", "d"])


@settings(max_examples=200)
@given(st.data())
def test_every_history_keeps_order_ownership_and_generations(data: st.DataObject) -> None:
    layout = Layout.initial(data.draw(st.integers(1, 3)), now_ms=0)
    record = SubscriptionRecord(type="STREAM", initial_position="earliest")
    for step in range(data.draw(st.integers(1, 12))):
        before, what = record, data.draw(st.sampled_from(STEPS))
        if what == "join":
            whole = data.draw(st.integers(0, 5)) == 0
            record = groups.join(record, layout, data.draw(NAMES), {}, RegistrationRequest(whole=whole))
        elif what == "leave":
            record = groups.leave(record, layout, data.draw(NAMES), {})
        elif what == "drain" and layout.sealed:
            drained = data.draw(st.sets(st.sampled_from([segment.id for segment in layout.sealed])))
            record = groups.drain(record, layout, drained, {})
        elif what == "drain in part" and layout.sealed:
            segment = data.draw(st.sampled_from(layout.sealed))
            buckets = data.draw(st.sets(st.sampled_from(bucket_ranges(segment.bucket_splits))))
            record = groups.drain(record, layout, (), {}, {segment.id: union(buckets)})
        elif what == "seek":
            record = groups.rewind(record, layout, (), {})
        elif what == "merge" and len(layout.active) > 1:
            layout = layout.merge([segment.id for segment in layout.active[:2]], now_ms=step)
            record = groups.reassign(record, layout, {})
        elif what == "split":
            layout = layout.split(data.draw(st.sampled_from(layout.active)).id, now_ms=step)
            record = groups.reassign(record, layout, {})
        check_order_and_ownership(record, layout)
        check_generations(before, record)
    assert groups.reassign(record, layout, {}) is record, "deciding again changes nothing"


def check_order_and_ownership(record: SubscriptionRecord, layout: Layout) -> None:
    drained, parts = frozenset(record.drained), groups.drained_parts(record)
    assert not drained & parts.keys()
    if any(consumer.whole for consumer in record.consumers.values()):
        parts = {}
    held: dict[int, int] = {}
    for consumer in record.consumers.values():
        for given_ in consumer.segments:
            held[given_.segment_id] = held.get(given_.segment_id, 0) + 1
    for consumer in record.consumers.values():
        for given_ in consumer.segments:
            readable = groups.open_for(record, layout, given_.segment_id)
            assert readable != ()
            assert given_.shared or (readable is None and held[given_.segment_id] == 1)
            assert readable is None or not layout.ancestors(given_.segment_id) <= drained
            assert held[given_.segment_id] <= layout.segment(given_.segment_id).bucket_count
    if record.consumers:
        assert set(held) == {segment.id for segment in ready_segments(layout, drained, parts)}


def check_generations(before: SubscriptionRecord, after: SubscriptionRecord) -> None:
    assert after.generation >= before.generation
    for name, consumer in after.consumers.items():
        former = before.consumers.get(name)
        if former is not None and former.segments == consumer.segments:
            assert former.generation == consumer.generation, "consumers with the same share stay undisturbed"
        else:
            assert consumer.generation == after.generation > before.generation
