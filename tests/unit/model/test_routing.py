from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.errors import LayoutError
from anabranch.model.hashing import bucket_hash, bucket_index, key_hash
from anabranch.model.layout import Layout
from anabranch.model.routing import Router


def test_the_high_half_picks_the_segment_and_the_low_half_the_bucket() -> None:
    layout = Layout.initial(1, now_ms=0, bucket_budget=12).split(0, [0x4000, 0x5000], now_ms=1)
    router = Router(layout)
    key = key_hash("order-42")  # 4b11 a18e
    segment = router.segment_for(key)
    assert str(segment.range) == "4000-4fff"
    assert bucket_index(segment.bucket_splits, bucket_hash(key)) == 2
    assert router.segment_for(0x3FFF_0000) is layout.segment(1)
    assert router.segment_for(0x4000_0000) is layout.segment(2)
    assert router.segment_for(0xFFFF_FFFF) is layout.segment(3)
    assert router.segments == layout.active


def test_wrapped_classic_topics_are_routed_as_classic_producers_do() -> None:
    layout = Layout.initial(4, now_ms=0)
    # Ids need not follow the ring; partitions are picked by id.
    wrapped = {id_: replace(part, legacy_topic=f"x-partition-{id_}") for id_, part in layout.segments.items()}
    router = Router(Layout(0, 4, dict(reversed(wrapped.items()))))
    assert router.segment_for(key_hash("order-42")).id == 2
    assert router.segment_for(key_hash("key02")).id == 3
    assert router.segment_for(0xFFFFFFFF).id == 0x7FFFFFFF % 4


def test_one_real_segment_brings_ranges_back() -> None:
    layout = Layout.initial(2, now_ms=0)
    mixed = {0: replace(layout.segment(0), legacy_topic="x"), 1: layout.segment(1)}
    assert Router(Layout(0, 2, mixed)).segment_for(key_hash("order-42")).id == 0


def test_nothing_is_routed_without_active_segments() -> None:
    with pytest.raises(LayoutError):
        Router(Layout(0, 0, {}))
