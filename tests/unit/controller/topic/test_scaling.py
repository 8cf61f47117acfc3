"""Auto-scaling in the controller: its schedule, its history and its reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.segments import SegmentLoad
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.leadership import ControllerSettings
from anabranch.errors import NotConnectedError
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.model.scaling.traffic_sketch import HotHash, TrafficSummary
from tests.harness.control import ControlPlane

SETTINGS = ControllerSettings(retention_s=None)
BUSY = SegmentLoad(msg_rate_in=15_000.0)


def set_load(plane: ControlPlane, load: SegmentLoad) -> None:
    for stored in plane.disk.stored.values():
        stored.load = SegmentLoad() if stored.sealed else load


def decisions(controller: TopicController) -> Any:
    return controller.why()["decisions"]


@pytest.mark.plane(settings=SETTINGS)
async def test_a_busy_topic_with_producers_only_is_split_on_the_tick(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    set_load(plane, BUSY)
    await asyncio.sleep(55)
    assert len(controller.layout.active) == 1
    await asyncio.sleep(20)
    assert len(controller.layout.active) == 2
    last = decisions(controller)[-1]
    assert "segment 0 is at 150%" in last["reason"]
    assert last["outcome"] == "done: epoch 1"
    await plane.audit()


def traffic(hot: HotHash) -> TrafficSummary:
    """The rest of the load is even."""
    rest = round((1 - hot.share) * 100_000 / 256)
    return TrafficSummary((rest,) * 256, (rest,) * 256, hot=(hot,))


@pytest.mark.plane(settings=SETTINGS)
async def test_a_split_cuts_a_hot_hash_out(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    hot = HotHash(0x12340000, 0.6, b"k")
    set_load(plane, SegmentLoad(msg_rate_in=40_000.0, traffic=traffic(hot)))
    await asyncio.sleep(75)
    assert HashRange(0x1234, 0x1234) in [segment.range for segment in controller.layout.active]
    assert "cut by traffic" in decisions(controller)[-1]["reason"]


@pytest.mark.plane(settings=SETTINGS)
async def test_a_split_that_one_hot_key_makes_useless_is_refused(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    set_load(plane, SegmentLoad(msg_rate_in=40_000.0, traffic=traffic(HotHash(0x12340000, 0.95, b"k"))))
    await asyncio.sleep(300)
    assert controller.layout.epoch == 0
    (refusal,) = [text for text in decisions(controller)[-1]["against"] if "splitMsgRateIn" in text]
    assert "no cut would help; its hottest key is 'k', with 95%" in refusal


@pytest.mark.plane(settings=SETTINGS)
async def test_buckets_for_more_consumers_follow_the_traffic(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    set_load(plane, SegmentLoad(msg_rate_in=10.0, traffic=traffic(HotHash(0x00008000, 0.5, b"k"))))
    for n in range(5):
        await plane.join(f"c{n}")
    await asyncio.sleep(1)
    (segment,) = controller.layout.active
    assert segment.bucket_count == 8
    assert {0x8000, 0x8001} <= set(segment.bucket_splits)
    assert "the bucket boundaries of 1 segment follow the traffic" in decisions(controller)[-1]["reason"]


@pytest.mark.plane(settings=SETTINGS)
async def test_consumers_that_come_are_enough_reason_to_look(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    set_load(plane, SegmentLoad(msg_rate_in=6_000.0))
    for n in range(3):
        await plane.join(f"c{n}")
    await asyncio.sleep(1)
    assert len(controller.layout.active) == 3, "one look for all three, long before the tick"
    assert controller.layout.epoch == 1
    await plane.audit()


@pytest.mark.plane(settings=SETTINGS)
async def test_surplus_consumers_of_an_idle_topic_get_buckets_in_one_operation(plane: ControlPlane) -> None:
    controller = await plane.lead(2)
    for n in range(10):
        await plane.join(f"c{n}")
    await asyncio.sleep(1)
    layout = await plane.audit()
    assert len(layout.active) == 2
    assert all(segment.bucket_count >= 5 for segment in layout.active)
    record = controller.records["s"]
    assert all(consumer.segments for consumer in record.consumers.values()), "all of them read"
    assert decisions(controller)[-1]["action"].count("rebucket") == 2
    assert controller.scaling.tally.rebuckets == 2


@pytest.mark.plane(settings=SETTINGS)
async def test_two_hundred_consumers_of_sixty_four_segments_all_read_after_one_decision(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead(64)
    names = [f"c{n:03}" for n in range(200)]
    await asyncio.gather(*(plane.join(name) for name in names))
    await asyncio.sleep(5)
    layout = await plane.audit()
    assert len(layout.active) == 64
    done = [d for d in decisions(controller) if d["outcome"].startswith("done")]
    assert [d["action"].count("rebucket") for d in done] == [64]
    record = controller.records["s"]
    active = {segment.id for segment in layout.active}
    for name, consumer in record.consumers.items():
        assert active & {given.segment_id for given in consumer.segments}, name


@pytest.mark.plane(settings=SETTINGS)
async def test_the_next_leader_does_not_take_a_rebucket_for_a_split(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    for n in range(5):
        await plane.join(f"c{n}")
    await asyncio.sleep(1)
    assert [d["action"] for d in decisions(controller)][-1].startswith("rebucket")
    plane.kill()
    await plane.boot()
    controller = await plane.controller()
    set_load(plane, BUSY)
    await plane.call(controller.upkeep.look())
    assert len(controller.layout.active) > 1, "no split was made yet, so no cooldown of splits runs"


@pytest.mark.plane(settings=SETTINGS)
async def test_consumers_that_do_not_know_buckets_get_none(plane: ControlPlane) -> None:
    await plane.lead(2)
    for n in range(10):
        await plane.join(f"c{n}", request=RegistrationRequest(start="earliest", whole=n == 0))
    await asyncio.sleep(1)
    assert (await plane.audit()).epoch == 0, "one of them keeps all from sharing"


@pytest.mark.plane(settings=SETTINGS)
@pytest.mark.virtual_time(limit_s=100_000)
async def test_a_topic_that_cools_down_is_merged_again_and_then_left_alone(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    set_load(plane, BUSY)
    await asyncio.sleep(100)
    assert len(controller.layout.active) == 2
    set_load(plane, SegmentLoad())
    await asyncio.sleep(2000)
    assert len(controller.layout.active) == 1
    epoch = controller.layout.epoch
    writes = plane.tree.values["/topics/public/default/orders"].version
    await asyncio.sleep(86_400)
    assert controller.layout.epoch == epoch
    assert plane.tree.values["/topics/public/default/orders"].version == writes, "no record is written"
    last = decisions(controller)[-1]
    assert last["action"] == "keep"
    assert last["count"] > 1000


@pytest.mark.plane(settings=SETTINGS)
async def test_cooldowns_and_cold_times_survive_a_crash(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.call(controller.split(0))
    await asyncio.sleep(250)
    assert len(controller.layout.active) == 2, "not cold for long enough"
    plane.kill()
    await plane.boot()
    controller = await plane.controller()
    await asyncio.sleep(30)
    assert len(controller.layout.active) == 2
    await asyncio.sleep(90)
    assert len(controller.layout.active) == 1, "the time before the crash counts"


@pytest.mark.plane(settings=SETTINGS)
@pytest.mark.virtual_time(limit_s=100_000)
async def test_an_owner_that_does_not_answer_never_causes_a_merge(plane: ControlPlane) -> None:
    controller = await plane.lead(2)

    def fails(verb: str, name: TopicName) -> Exception | None:
        return NotConnectedError("away") if verb == "load" else None

    plane.segments.fails = fails
    await asyncio.sleep(10_000)
    assert len(controller.layout.active) == 2
    assert "unknown" in str(decisions(controller)[-1]["against"])
    plane.segments.fails = lambda verb, name: None
    await asyncio.sleep(1000)
    assert len(controller.layout.active) == 1


@pytest.mark.plane(settings=SETTINGS)
async def test_a_failed_split_is_shown_burns_no_cooldown_and_is_finished(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    set_load(plane, BUSY)
    down = True

    def fails(verb: str, name: TopicName) -> Exception | None:
        return NotConnectedError("owner is away") if verb == "seal" and down else None

    plane.segments.fails = fails
    await asyncio.sleep(75)
    assert decisions(controller)[-1]["outcome"].startswith("failed: NotConnectedError")
    assert controller.record.history.get("lastSplitS") is None
    down = False
    await asyncio.sleep(10)
    assert len((await plane.audit()).active) == 2
    assert controller.record.history["lastSplitS"] is not None


@pytest.mark.plane(settings=SETTINGS)
async def test_a_policy_that_does_not_fit_is_said_loudly_and_scaling_comes_back(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    set_load(plane, BUSY)
    topics = TopicStore(MemoryStore(plane.tree))

    async def override(fields: dict[str, bool | int | float]) -> None:
        await topics.namespaces.update_namespace(
            "public/default",
            lambda found: msgspec.structs.replace(found, scalable_topic_auto_scale_policy=fields),
        )

    await override({"minSegments": 100})
    await asyncio.sleep(200)
    assert controller.layout.epoch == 0
    assert "auto-scaling is off" in decisions(controller)[-1]["reason"]
    await override({"maxSegments": 1})
    await asyncio.sleep(100)
    assert "maxSegments (1)" in str(decisions(controller)[-1]["against"])
    await override({})
    await asyncio.sleep(100)
    assert len(controller.layout.active) == 2


@pytest.mark.plane(settings=SETTINGS)
async def test_growth_goes_on_by_itself_after_each_cooldown(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    for _ in range(300):
        set_load(plane, SegmentLoad(msg_rate_in=40_000.0 / len(controller.layout.active)))
        await asyncio.sleep(1)
    assert 4 <= len(controller.layout.active) <= 8
    await plane.audit()
    epoch = controller.layout.epoch
    for _ in range(300):
        set_load(plane, SegmentLoad(msg_rate_in=40_000.0 / len(controller.layout.active)))
        await asyncio.sleep(1)
    assert controller.layout.epoch == epoch, "steady load leads to silence"


@pytest.mark.plane(settings=SETTINGS)
@pytest.mark.virtual_time(limit_s=100_000)
async def test_four_idle_stream_consumers_cause_no_oscillation_in_an_hour(plane: ControlPlane) -> None:
    controller = await plane.lead(4)
    for n in range(4):
        await plane.join(f"c{n}")
    await asyncio.sleep(3600)
    assert controller.layout.epoch == 0


@pytest.mark.plane(settings=replace(SETTINGS, auto_scale_interval_s=1e6))
async def test_manual_merges_are_not_counted_against_auto_scaling(plane: ControlPlane) -> None:
    controller = await plane.lead(2)
    await plane.call(controller.merge([0, 1]))
    assert controller.record.history["merges"] == {}
    assert controller.record.history["lastMergeS"] is not None


@pytest.mark.plane(settings=SETTINGS)
async def test_only_the_last_fifty_decisions_are_kept(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    for n in range(120):
        await plane.call(controller.set_policy({"enabled": n % 2 == 0}))
        await asyncio.sleep(1)
    assert len(decisions(controller)) == 50
    assert [d["reason"] for d in decisions(controller)[-2:]] == [
        "nothing to do now",
        "auto-scaling is switched off for this topic",
    ]
