"""Segments in memory: storage that outlives controllers, and one process's access to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.controller.decide.admission import Roster
from anabranch.controller.decide.consistency import LogState
from anabranch.controller.ports.segments import Aim, Drained, SegmentLoad
from anabranch.errors import StaleTermError, TopicNotFoundError, TopicTerminatedError
from anabranch.metadata.records import InitialPosition
from anabranch.model.drains import ALL, Ranges, union
from anabranch.model.inheritance import Pieces, handed_on
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import HashRange


@dataclass
class StoredSegment:
    """Entries are times of publication; a cursor is the number of entries acknowledged from the start."""

    sealed: bool = False
    entries: list[int] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    parts: dict[str, Ranges] = field(default_factory=dict)
    """The acknowledged buckets of a sealed segment, by subscription, while others are not."""
    sequences: dict[str, int] = field(default_factory=dict)
    inherited: Pieces = ()
    attached: dict[str, int] = field(default_factory=dict)
    """Number of attached consumers by subscription, set by the test."""
    load: SegmentLoad = field(default_factory=SegmentLoad)


class SegmentDisk:
    """The storage that outlives processes; it keeps the newest term per topic, as owners do."""

    def __init__(self) -> None:
        self.stored: dict[TopicName, StoredSegment] = {}
        self.terms: dict[TopicName, int] = {}
        self.listeners: dict[TopicName, list[Callable[[Drained], None]]] = {}
        self.rosters: dict[tuple[TopicName, str], Roster] = {}
        """The newest roster by segment and subscription."""
        self.log: list[str] = []

    def check_term(self, name: TopicName, term: int) -> None:
        topic = name.partitioned_topic.topic
        if term < self.terms.get(topic, 0):
            raise StaleTermError(f"{topic} has seen term {self.terms[topic]}, this is {term}")
        self.terms[topic] = term

    def publish(self, name: TopicName, at_ms: int = 0) -> None:
        segment = self.stored[name]
        if segment.sealed:
            raise TopicTerminatedError(str(name))
        segment.entries.append(at_ms)
        segment.sequences["producer"] = len(segment.entries) - 1

    def acknowledge(self, name: TopicName, subscription: str) -> None:
        """Acknowledge everything, and notify listeners if that drains the segment."""
        segment = self.stored[name]
        segment.cursors[subscription] = len(segment.entries)
        if segment.sealed:
            self.tell(name, subscription)

    def acknowledge_part(self, name: TopicName, subscription: str, *ranges: HashRange) -> None:
        """Acknowledge some buckets of a sealed segment, and notify listeners."""
        parts = self.stored[name].parts
        parts[subscription] = union((*parts.get(subscription, ()), *ranges))
        self.tell(name, subscription, parts[subscription])

    def tell(self, name: TopicName, subscription: str, ranges: Ranges = ALL) -> None:
        for listener in list(self.listeners.get(name.partitioned_topic.topic, ())):
            listener(Drained(name, subscription, ranges))

    def backlog(self, name: TopicName, subscription: str) -> int | None:
        segment = self.stored[name]
        cursor = segment.cursors.get(subscription)
        return None if cursor is None else len(segment.entries) - cursor


class MemorySegments:
    """The controller's port on a disk; gives way at each call, and fails where a test wants it to."""

    def __init__(self, disk: SegmentDisk) -> None:
        self.disk = disk
        self.fails: Callable[[str, TopicName], Exception | None] = lambda verb, name: None

    async def create(self, place: Place, subscriptions: Mapping[str, InitialPosition], term: int) -> LogState:
        await self._enter("create", place.name, term)
        known = place.name in self.disk.stored
        stored = self.disk.stored.setdefault(place.name, StoredSegment())
        for subscription, start in subscriptions.items():
            stored.cursors.setdefault(subscription, 0 if start == "earliest" else len(stored.entries))
        if not known:
            return "created"
        return "sealed" if stored.sealed else "open"

    async def seal(self, place: Place, term: int) -> Pieces:
        await self._enter("seal", place.name, term)
        stored = self._stored(place.name)
        stored.sealed = True
        if place.name.segment is None:
            return ()
        return handed_on(place.name.segment.range, stored.sequences, stored.inherited)

    async def inherit(self, place: Place, pieces: Pieces, term: int) -> None:
        await self._enter("inherit", place.name, term)
        self._stored(place.name).inherited = pieces

    async def trim(self, place: Place, keep_bytes: int, term: int) -> None:
        await self._enter("trim", place.name, term)
        load = self._stored(place.name).load
        self._stored(place.name).load = replace(load, size_bytes=min(load.size_bytes, keep_bytes))

    async def delete(self, place: Place, term: int) -> None:
        await self._enter("delete", place.name, term)
        self.disk.stored.pop(place.name, None)

    async def create_subscription(
        self, place: Place, subscription: str, start: InitialPosition, term: int
    ) -> None:
        await self._enter("create_subscription", place.name, term)
        stored = self._stored(place.name)
        stored.cursors.setdefault(subscription, 0 if start == "earliest" else len(stored.entries))

    async def delete_subscription(self, place: Place, subscription: str, term: int) -> None:
        await self._enter("delete_subscription", place.name, term)
        self._stored(place.name).cursors.pop(subscription, None)

    async def seek(self, place: Place, subscription: str, timestamp_ms: int, term: int) -> None:
        await self._enter("seek", place.name, term)
        stored = self._stored(place.name)
        if subscription in stored.cursors:
            stored.cursors[subscription] = sum(at_ms < timestamp_ms for at_ms in stored.entries)
            stored.parts.pop(subscription, None)

    async def seek_to(self, place: Place, subscription: str, aim: Aim, term: int) -> None:
        await self._enter("seek_to", place.name, term)
        stored = self._stored(place.name)
        if subscription in stored.cursors:
            stored.cursors[subscription] = aim.entry
            stored.parts.pop(subscription, None)

    async def skip_all(self, place: Place, subscription: str, term: int) -> None:
        await self._enter("skip_all", place.name, term)
        stored = self._stored(place.name)
        if subscription in stored.cursors:
            stored.cursors[subscription] = len(stored.entries)

    async def restrict(self, place: Place, subscription: str, roster: Roster, term: int) -> None:
        await self._enter("restrict", place.name, term)
        rosters = self.disk.rosters
        known = rosters.get((place.name, subscription))
        if place.name in self.disk.stored and (known is None or known.generation <= roster.generation):
            rosters[place.name, subscription] = roster

    async def consumers(self, place: Place, subscription: str) -> int:
        await self._enter("consumers", place.name, None)
        return self._stored(place.name).attached.get(subscription, 0)

    async def backlog(self, place: Place, subscription: str) -> int | None:
        await self._enter("backlog", place.name, None)
        self._stored(place.name)
        return self.disk.backlog(place.name, subscription)

    async def drained(self, place: Place, subscription: str) -> Ranges | None:
        await self._enter("drained", place.name, None)
        stored, left = self._stored(place.name), self.disk.backlog(place.name, subscription)
        if left is None:
            return None
        return ALL if left == 0 else stored.parts.get(subscription, ())

    async def load(self, place: Place) -> SegmentLoad:
        await self._enter("load", place.name, None)
        return self._stored(place.name).load

    def on_drained(self, topic: TopicName, drained: Callable[[Drained], None]) -> Callable[[], None]:
        self.disk.listeners.setdefault(topic, []).append(drained)

        def undo() -> None:
            if drained in self.disk.listeners.get(topic, ()):
                self.disk.listeners[topic].remove(drained)
                if not self.disk.listeners[topic]:
                    del self.disk.listeners[topic]

        return undo

    async def _enter(self, verb: str, segment: TopicName, term: int | None) -> None:
        await asyncio.sleep(0)
        error = self.fails(verb, segment)
        if error is not None:
            raise error
        if term is not None:
            self.disk.check_term(segment, term)
            self.disk.log.append(f"{verb} {segment.segment or segment}")

    def _stored(self, segment: TopicName) -> StoredSegment:
        if segment not in self.disk.stored:
            raise TopicNotFoundError(f"{segment} is not stored")
        return self.disk.stored[segment]
