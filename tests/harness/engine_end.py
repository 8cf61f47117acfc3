"""The state of a topic after a load: each change is finished or undone, and nothing is left over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch import AsyncAdminClient
from anabranch.admin.models.scalable import ScalableMetadata
from anabranch.control.pulsar_admin import PulsarAdmin, admin_urls
from anabranch.errors import AnabranchError
from anabranch.model.log_names.pulsar_names import pulsar_topic, segment_in
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange

FINISH_S = 60.0
"""A leader finishes an interrupted change within this time, also when it must take the topic over first."""


async def assert_finished(admin_url: Callable[[], str], pulsar_admin_url: str | None, topic: str) -> None:
    """Check that no change is under way, no segment waits for its deletion, and Pulsar has no stray topic."""
    name = TopicName.parse(f"topic://public/default/{topic}")
    loop = asyncio.get_running_loop()
    until_s = loop.time() + FINISH_S
    while left := await _left(admin_url(), pulsar_admin_url, name):
        assert loop.time() < until_s, left
        await asyncio.sleep(0.5)


async def _left(admin_url: str, pulsar_admin_url: str | None, topic: TopicName) -> list[str]:
    try:
        async with AsyncAdminClient(admin_url) as admin:
            record = await admin.topic_metadata(topic)
        left = [] if record.intent is None else [f"a change is under way: {record.intent}"]
        left += [f"waits for its deletion: {item}" for item in record.garbage]
        if pulsar_admin_url is not None:
            left += await _wrong_at_pulsar(pulsar_admin_url, topic, record)
    except AnabranchError as error:
        return [f"no answer: {error}"]
    return left


async def _wrong_at_pulsar(url: str, topic: TopicName, record: ScalableMetadata) -> list[str]:
    """Topics of segments that Pulsar has and the layout has not, or the other way round."""
    pulsar = PulsarAdmin(admin_urls(url))
    try:
        listed = map(TopicName.parse, await pulsar.topics(topic.namespace_name))
    finally:
        await pulsar.close()
    found = {str(one) for one in listed if (segment := segment_in(one)) and segment.topic == topic}
    wanted = {
        str(pulsar_topic(topic.segment_name(HashRange(one.hash_range.start, one.hash_range.end), id_)))
        for id_, one in record.segments.items()
    }
    return [f"stray: {one}" for one in found - wanted] + [f"missing: {one}" for one in wanted - found]
