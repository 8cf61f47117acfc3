"""The state of one topic, for operators."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.cli.topics.topic_text import state_lines
from anabranch.controller.ports.segments import SegmentLoad
from anabranch.errors import (
    NotConnectedError,
)
from anabranch.model.scaling.traffic_sketch import HotHash, TrafficSummary
from tests.harness.control import ControlPlane, no_seal


async def test_why_shows_the_running_operation_and_the_waiting_changes(plane: ControlPlane) -> None:
    controller = await plane.lead()
    plane.segments.fails = no_seal
    callers = [plane.process.spawn(controller.split(id_)) for id_ in (0, 1, 1)]
    await asyncio.sleep(0.0001)
    assert state_lines(controller.why()) == ["2 changes in the queue"]
    for caller in callers:
        with pytest.raises(NotConnectedError):
            await caller
    under_way = "under way: split of segment 0, by request; sealing"
    assert state_lines(controller.why()) == [under_way]
    await asyncio.sleep(2)
    trouble = "trouble with background: NotConnectedError: owner is away"
    assert state_lines(controller.why()) == [under_way, trouble]
    plane.segments.fails = lambda verb, name: None
    await asyncio.sleep(10)
    assert state_lines(controller.why()) == []


async def test_why_shows_the_segments_that_each_subscription_waits_for(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.join("a")
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    why = controller.why()
    assert why["epoch"] == 1
    subscription = why["subscriptions"]["s"]  # type: ignore[index]
    blocker = {"segment": 0, "buckets": ["0000-ffff"], "consumers": ["a"]}
    assert subscription["waiting"] == {"1": [blocker], "2": [blocker]}
    assert subscription["consumers"]["a"]["connected"] is True
    assert subscription["consumers"]["a"]["segments"] == [0]


async def test_stats_name_the_hottest_keys(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    hot = HotHash(0x12345678, 0.6123456, b"account-\xff")
    name = plane.segment(controller.layout, 0)
    plane.disk.stored[name].load = SegmentLoad(traffic=TrafficSummary(hot=(hot,)))
    stats: Any = await plane.call(controller.stats())
    shown = {"hash": "12345678", "bucketHash": 0x5678, "share": 0.6123, "sampleKey": "account-\\xff"}
    assert stats["segments"]["0"]["hottest"] == [shown]


async def test_stats_count_rates_backlog_and_consumers_and_tolerate_silence(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.join("a")
    plane.publish(controller.layout)
    name = plane.segment(controller.layout, 0)
    plane.disk.stored[name].load = SegmentLoad(msg_rate_in=5.0, size_bytes=77)
    stats: Any = await plane.call(controller.stats())
    assert stats["segments"]["0"]["msgRateIn"] == 5.0
    assert stats["segments"]["0"]["storageSize"] == 77
    assert stats["subscriptions"]["s"]["backlog"] == 1
    assert stats["subscriptions"]["s"]["consumerCount"] == 1
    plane.segments.fails = lambda verb, name: NotConnectedError("away")
    stats = await plane.call(controller.stats())
    assert "msgRateIn" not in stats["segments"]["0"]
    assert stats["subscriptions"]["s"]["backlog"] == 0
