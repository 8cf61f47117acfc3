"""The picture of a topic's segments."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from anabranch.cli.topics import dag
from anabranch.metadata.layouts import with_layout
from anabranch.metadata.records import TopicRecord, encode
from anabranch.model.layout import Layout


def metadata_of(layout: Layout) -> dict[str, Any]:
    record = with_layout(TopicRecord(epoch=0, next_segment_id=0, segments={}), layout)
    return dict(json.loads(encode(record)))


def text_of(layout: Layout, width: int = 80) -> list[str]:
    nodes = dag.nodes_of(metadata_of(layout))
    lines = dag.draw(nodes, layout.epoch, width)
    assert lines is not None
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_splits_and_merges_are_drawn_over_the_ring_and_down_the_epochs() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1)
    layout = layout.split(1, [0x2000], now_ms=2).merge([4, 2], now_ms=3)
    assert text_of(layout, 72) == [
        "        0000           4000            8000            c000        ffff",
        "epoch 0 ┌─────────────────────── 0 · 0000-ffff ───────────────────────┐",
        "epoch 1 ┌─────── 1 · 0000-7fff ───────┐┌─────── 2 · 8000-ffff ────────┐",
        "epoch 2 ┌─ 3 ─┐┌─── 4 · 2000-7fff ────┐│                              │",
        "epoch 3 │     │┌─────────────────── 5 · 2000-ffff ────────────────────┐",
        "    now └─────┘└──────────────────────────────────────────────────────┘",
    ]


def test_a_line_never_exceeds_its_width() -> None:
    layout = Layout.initial(4, now_ms=0).split(2, now_ms=1)
    for width in (60, 73, 80, 120):
        assert all(len(line) <= width for line in text_of(layout, width))


def test_boxes_too_narrow_to_read_give_no_picture() -> None:
    layout = Layout.initial(64, now_ms=0)
    assert dag.draw(dag.nodes_of(metadata_of(layout)), layout.epoch, 80) is None


def test_active_segments_stand_out() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1)
    lines = dag.draw(dag.nodes_of(metadata_of(layout)), layout.epoch, 80)
    assert lines is not None
    styles = [{style for text, style in line if "─" in text} for line in lines]
    assert styles == [set(), {"dim"}, {"green"}, {"green"}]


def test_segments_whose_parents_were_pruned_still_have_their_place() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1).prune([0])
    lines = text_of(layout)
    assert "epoch 0" not in "".join(lines)
    assert "1 · 0000-7fff" in lines[1]


def migrated(*logs: str) -> Layout:
    """The layout of a classic topic, kept in these logs, after its migration."""
    before = Layout.initial(len(logs), now_ms=0)
    parts = {id_: replace(one, legacy_topic=logs[id_]) for id_, one in before.segments.items()}
    return replace(before, segments=parts).migrate(now_ms=1)


def test_the_partitions_of_a_migrated_topic_share_a_box() -> None:
    # Each partition has keys of the whole ring, so their boxes would lie on each other.
    layout = migrated(*(f"persistent://public/default/orders-partition-{index}" for index in range(3)))
    layout = layout.split(3, now_ms=2)
    assert text_of(layout, 72) == [
        "        0000           4000            8000            c000        ffff",
        "epoch 0 ┌───────────────────── 0-2 · 3 partitions ────────────────────┐",
        "epoch 1 ┌─ 3 · 0000-5554 ──┐┌── 4 · 5555-aaa9 ──┐┌── 5 · aaaa-ffff ───┐",
        "epoch 2 ┌── 6 ───┐┌── 7 ───┐│                   ││                    │",
        "    now └────────┘└────────┘└───────────────────┘└────────────────────┘",
    ]
    head, rows = dag.table(dag.nodes_of(metadata_of(layout)))
    origins = [row[head.index("from")] for row in rows]
    assert origins == ["partition 0", "partition 1", "partition 2", "0-2", "0-2", "0-2", "3", "3"]


def test_a_topic_without_partitions_is_named_after_its_migration() -> None:
    layout = migrated("persistent://public/default/orders")
    assert "0 · classic topic" in text_of(layout)[1]
    assert dag.table(dag.nodes_of(metadata_of(layout)))[1][0][3] == "classic"


def test_the_table_shows_what_the_stats_know() -> None:
    layout = Layout.initial(1, now_ms=0).split(0, now_ms=1)
    stats = {"segments": {"1": {"backlogMessages": 1234, "storageSize": 5 * 2**20}}}
    head, rows = dag.table(dag.nodes_of(metadata_of(layout), stats))
    assert head == ["id", "range", "state", "from", "to", "buckets", "backlog", "stored"]
    assert rows[0] == ["0", "0000-ffff", "sealed", "-", "1, 2", "4", "-", "-"]
    assert rows[1] == ["1", "0000-7fff", "active", "0", "-", "2", "1,234", "5.0 MiB"]


def test_many_ids_in_a_row_are_told_by_the_first_and_the_last() -> None:
    layout = Layout.initial(2, now_ms=0).split(0, [8, 16, 24], now_ms=1).merge([5, 1], now_ms=2)
    _, rows = dag.table(dag.nodes_of(metadata_of(layout), {}))
    assert rows[0][4] == "2-5"
    assert rows[-1][3] == "1, 5"


def test_the_table_names_the_owner_of_each_segment_if_there_are_several() -> None:
    layout = Layout.initial(2, now_ms=0)

    def shown(*owners: str | None) -> list[list[str]]:
        stats = {"segments": {str(id_): {"ownerBroker": owner} for id_, owner in enumerate(owners)}}
        head, rows = dag.table(dag.nodes_of(metadata_of(layout), stats))
        return [row[head.index("broker") :] for row in rows] if "broker" in head else []

    assert shown("pulsar://a:1", "pulsar://a:1") == []
    assert shown("pulsar://a:1", "pulsar://b:1") == [["a:1"], ["b:1"]]
    assert shown("pulsar://a:1", "pulsar://a:2") == [[":1"], [":2"]]
    assert shown("pulsar://a:1", None) == [[":1"], ["none"]]
