"""Topics that change while they come to rest, and topics that are deleted while they rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.led_topics import LedTopics, RestingTopic
from anabranch.controller.service import ControllerService
from anabranch.errors import TopicNotFoundError
from anabranch.metadata.records import TopicRecord
from anabranch.model.names import TopicName
from tests.harness.control import TOPIC, ControlPlane

QUIET_S = 200
"""Several looks of a leader."""


async def want_three_segments(plane: ControlPlane) -> None:
    policy = {"enabled": True, "minSegments": 3}
    await plane.context.topics.namespaces.update_namespace(
        "public/default",
        lambda found: msgspec.structs.replace(found, scalable_topic_auto_scale_policy=policy),
    )


def once_after(read: Callable[..., Awaitable[Any]], change: Callable[[], Awaitable[object]]) -> Any:
    """The read; its first result is older than the change and arrives after the notice of the change."""
    made = False

    async def late(*arguments: object) -> Any:
        nonlocal made
        found = await read(*arguments)
        if not made:
            made = True
            await change()
            await asyncio.sleep(1)
        return found

    return late


async def reopen(plane: ControlPlane, service: ControllerService) -> None:
    await plane.call(service.store_closing(0))
    await plane.call(service.store_opened(0))


async def test_a_look_with_older_policies_does_not_let_the_topic_rest(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    scaling = (await plane.controller()).scaling
    changed = once_after(scaling.load_namespace, lambda: want_three_segments(plane))
    scaling.load_namespace = changed  # type: ignore[method-assign]
    await asyncio.sleep(QUIET_S)
    assert len(service.layouts()[TOPIC].active) == 3


async def test_a_survey_with_older_policies_does_not_let_the_topic_rest(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    await asyncio.sleep(QUIET_S)
    namespaces = plane.context.topics.namespaces
    changed = once_after(namespaces.policies, lambda: want_three_segments(plane))
    namespaces.policies = changed  # type: ignore[method-assign]
    await reopen(plane, service)
    await asyncio.sleep(QUIET_S)
    assert len(service.layouts()[TOPIC].active) == 3


async def test_a_topic_that_is_deleted_after_the_survey_does_not_rest(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    topics = plane.context.topics
    walk = topics.walk_topics

    async def walk_then_delete(*arguments: Any) -> AsyncIterator[tuple[TopicName, TopicRecord]]:
        async for found in walk(*arguments):
            yield found
        await service.delete_topic(TOPIC)
        await asyncio.sleep(1)

    topics.walk_topics = walk_then_delete  # type: ignore[method-assign, assignment]
    await reopen(plane, service)
    await asyncio.sleep(QUIET_S)
    assert list(service.summaries()) == []


async def test_a_resting_topic_without_record_is_forgotten(plane: ControlPlane) -> None:
    service = await plane.boot()
    await plane.call(service.create_topic(TOPIC))
    await asyncio.sleep(QUIET_S)
    assert [topic.name for topic in service.summaries()] == [TOPIC]
    record = await plane.call(plane.context.topics.load(TOPIC))
    await plane.call(plane.context.topics.delete(TOPIC, record.incarnation))
    await asyncio.sleep(QUIET_S)
    assert list(service.summaries()) == []


async def test_a_request_for_a_resting_topic_without_record_forgets_it(plane: ControlPlane) -> None:
    await plane.boot()
    led = LedTopics(plane.context, lambda store: True, LayoutWatches(), lambda controller: None)
    led.rest(TOPIC, RestingTopic(store=0, epoch=0, segment=0, buckets=4))
    with pytest.raises(TopicNotFoundError):
        await plane.call(led.lead(TOPIC))
    assert not led.resting
