"""Deletes topics of Pulsar that belong to no layout: a late call of a former leader may have created them.

The id of a segment is in the record of its topic before the topic at Pulsar is created, and it is never used
twice. So a topic that was listed, and that neither layout nor running operation nor list of garbage names
afterwards, is a stray. The order matters: topics are listed first and records are read afterwards. Only
topics with the marks of this control plane are deleted: other topics may have such names too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from anabranch.control.cluster_admin import ClusterAdmin
from anabranch.control.topic_marks import marks_of
from anabranch.controller.decide import operation
from anabranch.errors import AnabranchError
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import LineageRecord, TopicRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.model.pulsar_names import pulsar_topic, segment_in

_logger = logging.getLogger(__name__)

SWEEP_S: Final = 600.0
"""Seconds between two looks; a stray holds no message that a client could want."""


def strays(
    found: Iterable[TopicName], name: TopicName, record: TopicRecord | None, lineage: LineageRecord
) -> list[TopicName]:
    """The segments among `found`, all of the topic `name`, that nothing in its records names."""
    wanted = {item.name for item in lineage.garbage}
    next_id = lineage.next_segment_id
    if record is not None:
        wanted |= {item.name for item in record.garbage}
        wanted |= {str(operation.segment_name(name, s)) for s in layout_of(record).segments.values()}
        wanted |= set() if record.intent is None else set(record.intent.child_names)
        next_id = max(next_id, record.next_segment_id)
    return [
        segment
        for segment in found
        if segment.segment is not None and segment.segment.id < next_id and str(segment) not in wanted
    ]


class Sweeper:
    """Sweeps the topics whose homes this process holds."""

    def __init__(
        self, admin: ClusterAdmin, topics: TopicStore, owns: Callable[[int], bool], installation: str = ""
    ) -> None:
        self._admin = admin
        self._installation = installation
        self._topics = topics
        self._owns = owns

    async def run(self) -> None:
        """Sweep at every interval until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except AnabranchError as error:
                _logger.warning("could not look for strays: %s", error)

    async def sweep(self) -> list[TopicName]:
        """Delete the strays of all namespaces that have scalable topics; returns them."""
        gone: list[TopicName] = []
        for namespace in await self._topics.namespaces_with_topics():
            listed: dict[TopicName, list[TopicName]] = defaultdict(list)
            for text in await self._admin.topics(namespace):
                segment = segment_in(TopicName.parse(text))
                if segment is not None:
                    listed[segment.topic].append(segment)
            for name, found in listed.items():
                for segment in await self._strays_of(name, found):
                    try:
                        await self._delete(segment)
                    except AnabranchError as error:
                        _logger.warning("%s was not deleted: %s", pulsar_topic(segment), error)
                    else:
                        gone.append(segment)
        return gone

    async def _strays_of(self, name: TopicName, found: list[TopicName]) -> list[TopicName]:
        """The strays of one topic that carry the marks of this control plane."""
        record, lineage = await self._topics.find(name), await self._topics.load_lineage(name)
        if not self._owns(lineage.store if record is None else record.store):
            return []
        return [segment for segment in strays(found, name, record, lineage) if await self._is_ours(segment)]

    async def _is_ours(self, segment: TopicName) -> bool:
        try:
            properties = await self._admin.properties(pulsar_topic(segment))
        except AnabranchError as error:
            _logger.warning(
                "cannot find out which control plane created %s: %s", pulsar_topic(segment), error
            )
            return False
        return marks_of(segment, self._installation).items() <= properties.items()

    async def _delete(self, segment: TopicName) -> None:
        topic = pulsar_topic(segment)
        _logger.warning("%s is in no layout of %s and is deleted", topic, segment.topic)
        await self._admin.delete(topic)
