"""One suite for the controller's port to segments, run on every adapter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from anabranch.controller.ports.segments import Drained, SegmentLoad, Segments
from anabranch.errors import TopicNotFoundError
from anabranch.model.drains import ALL
from anabranch.model.names import Place
from tests.conformance.segment_hosts import (
    LocalHost,
    PulsarHost,
    SegmentsHost,
    SimulatedHost,
    new_place,
)

TERM = 1
REAL = "pulsar"
HOSTS = os.environ.get("SEGMENT_HOSTS", "local simulated").split()
"""`make engine` names a real Pulsar."""


def _param(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.real_time) if name == REAL else name


@pytest.fixture(params=[_param(name) for name in HOSTS])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[SegmentsHost]:
    made: SegmentsHost
    if request.param == REAL:
        made = PulsarHost(request.getfixturevalue("small_engine"))
    else:
        made = LocalHost(request.getfixturevalue("loop")) if request.param == "local" else SimulatedHost()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def place() -> Place:
    return new_place()


@pytest.fixture
def segments(host: SegmentsHost) -> Segments:
    return host.segments


async def test_a_segment_is_created_once_and_tells_its_state(segments: Segments, place: Place) -> None:
    assert await segments.create(place, {}, TERM) == "created"
    assert await segments.create(place, {}, TERM) == "open"
    await segments.seal(place, TERM)
    assert await segments.create(place, {}, TERM) == "sealed"


async def test_a_seal_may_be_repeated(segments: Segments, place: Place) -> None:
    await segments.create(place, {}, TERM)
    first = await segments.seal(place, TERM)
    assert await segments.seal(place, TERM) == first


async def test_an_absent_segment_cannot_be_sealed(segments: Segments, place: Place) -> None:
    with pytest.raises(TopicNotFoundError):
        await segments.seal(place, TERM)


async def test_subscriptions_begin_where_they_are_told(
    host: SegmentsHost, segments: Segments, place: Place
) -> None:
    await segments.create(place, {"first": "earliest"}, TERM)
    await host.publish(place, 3)
    await segments.create_subscription(place, "all", "earliest", TERM)
    await segments.create_subscription(place, "new", "latest", TERM)
    await host.publish(place, 1)
    backlogs = [await segments.backlog(place, sub) for sub in ("first", "all", "new", "none")]
    assert backlogs == [4, 4, 1, None]


async def test_a_subscription_that_exists_stays_where_it_is(
    host: SegmentsHost, segments: Segments, place: Place
) -> None:
    await segments.create(place, {"sub": "earliest"}, TERM)
    await host.publish(place, 2)
    await segments.create_subscription(place, "sub", "latest", TERM)
    await segments.create(place, {"sub": "latest"}, TERM)
    assert await segments.backlog(place, "sub") == 2


async def test_a_new_segment_gets_missing_subscriptions(segments: Segments, place: Place) -> None:
    await segments.create(place, {"one": "earliest"}, TERM)
    await segments.create(place, {"one": "earliest", "two": "earliest"}, TERM)
    assert await segments.backlog(place, "two") == 0


async def test_a_deleted_subscription_is_gone_and_may_be_deleted_again(
    segments: Segments, place: Place
) -> None:
    await segments.create(place, {"sub": "earliest"}, TERM)
    await segments.delete_subscription(place, "sub", TERM)
    assert await segments.backlog(place, "sub") is None
    await segments.delete_subscription(place, "sub", TERM)


async def test_a_subscription_is_moved_to_a_time_or_to_the_end(
    host: SegmentsHost, segments: Segments, place: Place
) -> None:
    await segments.create(place, {"sub": "earliest"}, TERM)
    times_ms = await host.publish(place, 3)
    await segments.skip_all(place, "sub", TERM)
    assert await segments.backlog(place, "sub") == 0
    await segments.seek(place, "sub", times_ms[1], TERM)
    assert await segments.backlog(place, "sub") == 2
    await segments.seek(place, "sub", 0, TERM)
    assert await segments.backlog(place, "sub") == 3


async def test_moving_an_absent_subscription_does_nothing(segments: Segments, place: Place) -> None:
    await segments.create(place, {}, TERM)
    await segments.seek(place, "sub", 0, TERM)
    await segments.skip_all(place, "sub", TERM)
    assert await segments.backlog(place, "sub") is None


async def test_a_segment_is_drained_when_it_is_sealed_and_acknowledged(
    host: SegmentsHost, segments: Segments, place: Place
) -> None:
    await segments.create(place, {"sub": "earliest"}, TERM)
    await host.publish(place, 2)
    await segments.seal(place, TERM)
    assert await segments.drained(place, "sub") != ALL
    await segments.skip_all(place, "sub", TERM)
    assert await segments.drained(place, "sub") == ALL
    assert await segments.drained(place, "other") is None


async def test_an_empty_sealed_segment_is_drained(segments: Segments, place: Place) -> None:
    await segments.create(place, {"sub": "earliest"}, TERM)
    await segments.seal(place, TERM)
    assert await segments.drained(place, "sub") == ALL


async def test_an_absent_segment_cannot_tell_what_is_drained(segments: Segments, place: Place) -> None:
    with pytest.raises(TopicNotFoundError):
        await segments.drained(place, "sub")


async def test_a_drain_is_reported_to_the_listener_of_the_topic(
    host: SegmentsHost, segments: Segments, place: Place
) -> None:
    reported: list[Drained] = []
    undo = segments.on_drained(place.name.topic, reported.append)
    await segments.create(place, {"sub": "earliest"}, TERM)
    await host.publish(place, 1)
    await segments.seal(place, TERM)
    assert await segments.drained(place, "sub") != ALL
    await asyncio.sleep(2)
    assert reported == []
    await segments.skip_all(place, "sub", TERM)
    async with asyncio.timeout(60):
        while not reported:  # noqa: ASYNC110 - a probe
            await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    assert [(event.segment, event.subscription) for event in reported] == [(place.name, "sub")]
    undo()


async def test_a_deleted_segment_is_gone_and_may_be_deleted_again(
    host: SegmentsHost, segments: Segments, place: Place
) -> None:
    await segments.create(place, {"sub": "earliest"}, TERM)
    await host.publish(place, 1)
    await segments.delete(place, TERM)
    await segments.delete(place, TERM)
    assert await segments.load(place) == SegmentLoad()
    assert await segments.backlog(place, "sub") is None
    assert await segments.consumers(place, "sub") == 0


async def test_the_load_shows_size_and_backlog(host: SegmentsHost, segments: Segments, place: Place) -> None:
    await segments.create(place, {"sub": "earliest"}, TERM)
    await host.publish(place, 2)
    load = await segments.load(place)
    assert load.backlog_messages == 2
    assert load.size_bytes > 0
    assert load.clients == 0
