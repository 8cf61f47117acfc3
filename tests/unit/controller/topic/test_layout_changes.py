"""A leader that finds other logs than the layout says."""

from __future__ import annotations

import logging

import pytest

from anabranch.controller.decide.consistency import Inconsistency, compare
from tests.harness.control import TOPIC, ControlPlane


def test_logs_that_take_messages_need_nothing() -> None:
    assert compare({1: "open", 2: "open"}) == Inconsistency((), ())
    assert compare({3: "sealed", 1: "created", 2: "sealed"}) == Inconsistency((2, 3), (1,))


async def test_an_active_segment_whose_log_is_sealed_is_replaced(plane: ControlPlane) -> None:
    controller = await plane.lead(segments=2)
    before = controller.layout
    await plane.join("c")
    parent = before.active[1]
    plane.disk.stored[plane.segment(before, parent.id)].sealed = True
    plane.kill()
    await plane.boot()
    after = (await plane.controller()).layout
    (child,) = [segment for segment in after.active if segment.id not in before.segments]
    assert child.parents == (parent.id,)
    assert (child.range, child.bucket_splits) == (parent.range, parent.bucket_splits)
    assert not after.segments[parent.id].active
    assert plane.disk.stored[plane.segment(after, child.id)].cursors.keys() == {"s"}
    await plane.audit()


async def test_a_log_that_is_gone_begins_empty_and_is_reported(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    controller = await plane.lead(segments=2)
    gone = controller.layout.active[0].id
    del plane.disk.stored[plane.segment(controller.layout, gone)]
    plane.kill()
    await plane.boot()
    with caplog.at_level(logging.ERROR):
        controller = await plane.controller()
    assert controller.layout.segments[gone].active
    assert "lost" in str(controller.why()["troubles"])
    assert any("lost" in record.message for record in caplog.records)
    plane.kill()
    await plane.boot()
    assert "lost" not in str((await plane.controller()).why()["troubles"])
    assert await plane.audit(TOPIC)


async def test_a_segment_whose_log_is_gone_is_split_and_reported(plane: ControlPlane) -> None:
    controller = await plane.lead(segments=2)
    await plane.join("c")
    gone = controller.layout.active[0].id
    del plane.disk.stored[plane.segment(controller.layout, gone)]
    layout = await plane.call(controller.split(gone))
    assert len(layout.active) == 3
    assert "earlier messages are lost" in str(controller.why()["troubles"])
    assert layout == await plane.audit()


async def test_consumers_pass_over_a_sealed_segment_whose_log_is_gone(plane: ControlPlane) -> None:
    controller = await plane.lead(segments=1)
    before = controller.layout
    await plane.join("c")
    plane.publish(before, 0)
    await plane.call(controller.split(0))
    layout = (await plane.controller()).layout
    del plane.disk.stored[plane.segment(layout, 0)]
    plane.kill()
    await plane.boot()
    controller = await plane.controller()
    assert (await plane.stored()).drained == (0,)
    assert "passed over" in str(controller.why()["troubles"])
    await plane.join("c", sub="later")
    assert (await plane.stored("later")).unfinished is None
