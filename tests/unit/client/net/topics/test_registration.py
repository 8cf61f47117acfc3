"""Assignments: reading them from the wire, and which of two is newer."""

from __future__ import annotations

from anabranch.client.net.topics.registration import assignment_from_wire
from anabranch.model.assignment import UNCOUNTED, Assignment
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb


def test_generations_decide_where_both_have_one() -> None:
    held = Assignment(5, 10, ())
    assert Assignment(5, 10, ()).replaces(held)
    assert Assignment(4, 11, ()).replaces(held)
    assert not Assignment(6, 9, ()).replaces(held)


def test_layout_epochs_decide_otherwise() -> None:
    held = Assignment(5, UNCOUNTED, ())
    assert Assignment(5, UNCOUNTED, ()).replaces(held), "members may change without the layout"
    assert Assignment(6, 1, ()).replaces(held)
    assert not Assignment(4, UNCOUNTED, ()).replaces(held)
    assert Assignment(0, UNCOUNTED, ()).replaces(None)


def test_an_assignment_is_read_from_the_wire() -> None:
    wire = pb.ScalableConsumerAssignment(layout_epoch=3, generation=7)
    segment = wire.segments.add(
        segment_id=2, hash_start=0, hash_end=9, segment_topic="segment://a/b/c/0000-0009-2"
    )
    segment.bucket_ranges.add(start=0, end=32767)
    segment.bucket_ranges.add(start=32768, end=65535)
    assignment = assignment_from_wire(wire)
    assert (assignment.epoch, assignment.generation) == (3, 7)
    (found,) = assignment.segments
    assert (found.segment_id, found.range, found.topic) == (2, HashRange(0, 9), segment.segment_topic)
    assert found.bucket_ranges == (HashRange(0, 32767), HashRange(32768, 65535))
    wire.ClearField("generation")
    assert assignment_from_wire(wire).generation == UNCOUNTED
