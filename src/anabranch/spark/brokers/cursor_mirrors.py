"""Moves cursors at the brokers along with the cuts of streams: one mirror per topic and subscription."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.cursor_mirror import AckPlace, CursorMirror
from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.spark.brokers.segment_questions import of_all
from anabranch.spark.decide.source.handover import read_positions
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.topology import Topology

MEMBER_NAME = "spark"
"""The name of the only member of a mirrored subscription; a restarted query takes it over at once."""

FOLLOW_S = 10.0
"""Longest wait for the cursors; if it is exceeded, a later cut moves them."""


class CursorMirrors:
    """The mirrors of one session."""

    def __init__(self, client: BulkClient, tails: SegmentTails) -> None:
        self._client = client
        self._tails = tails
        self._open: dict[tuple[str, str], CursorMirror] = {}
        self._reached: dict[tuple[str, str], dict[int, int]] = {}

    async def follow(
        self, topic: str, subscription: str, cut: TopicCut, topology: Topology, names: Mapping[int, str]
    ) -> None:
        """Move the cursors to a cut; raises OperationTimeoutError if other consumers hold segments."""
        key = (topic, subscription)
        read, before = read_positions(cut, topology), self._reached.get(key, {})
        # Pruned segments have neither a name nor a cursor.
        due = {
            id_: names[id_] for id_, at in read.items() if at > 0 and before.get(id_) != at and id_ in names
        }
        places = await self._places(due, read)
        for id_, name in due.items():
            if topology.tails[id_].sealed:
                self._tails.forget(name)
        awaited = [id_ for id_ in cut.positions if id_ in read and not topology.finished(id_, read[id_])]
        mirror = self._open.get(key)
        try:
            if mirror is None:
                opening = self._client.mirror_cursors(topic, subscription, MEMBER_NAME)
                mirror = self._open[key] = await opening
            await mirror.follow(places, awaited, FOLLOW_S)
        except BaseException:
            self._reached.pop(key, None)
            if self._open.pop(key, None) is not None and mirror is not None:
                await mirror.close(timeout=0)
            raise
        self._reached[key] = read

    async def _places(self, names: Mapping[int, str], read: Mapping[int, int]) -> dict[int, AckPlace]:
        by_name = {name: id_ for id_, name in names.items()}
        found = await of_all(names, lambda name: self._tails.at_index(name, read[by_name[name]] - 1))
        # A message that retention has already removed need not be acknowledged.
        return {id_: AckPlace(*at[1:]) for id_, at in found.items() if at.index == read[id_] - 1}
