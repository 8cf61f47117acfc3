"""Decides how far the next micro-batch reads, and asks brokers for times if it cannot read everything.

Without pacing, a query that catches up would read its segments in proportion to what waits in each. It could
take young messages of one segment while old ones wait in another, Spark's watermark would follow the young
ones, and the old ones would be dropped as late. `decide.source.fronts` finds a common time; this module asks
the questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from anabranch.spark.decide.source.fronts import FrontSearch, ancestors_of, blocked_below, waiting_in
from anabranch.spark.decide.source.offsets import Cut
from anabranch.spark.decide.source.planner import Pace, advance, counts_between
from anabranch.spark.decide.source.shares import bytes_of, last_served_of
from anabranch.spark.decide.source.topology import NO_LIMIT, Ends, Key, Topology
from anabranch.spark.topics import TopicReader


@dataclass(frozen=True, slots=True)
class Choice:
    """The start of a micro-batch, and the messages among which it may choose."""

    start: Cut
    topologies: Mapping[str, Topology]
    pace: Pace

    def read(self, pace: Pace) -> Cut:
        return advance(self.start, self.topologies, pace)

    def read_until(self, ends: Ends) -> Cut:
        """Read up to these ends without a limit."""
        return self.read(replace(self.pace, limit=NO_LIMIT, fronts=(ends,)))

    def counts(self, end: Cut) -> dict[Key, int]:
        return counts_between(self.start, end, self.topologies)

    def load(self, end: Cut) -> float:
        """Return the share of the limit that reading up to a cut uses; above 1 it does not fit."""
        counts = self.counts(end)
        return self.pace.limit.load(sum(counts.values()), bytes_of(counts, self.pace.sizes))

    def waiting(self, end: Cut) -> set[Key]:
        return waiting_in(end, self.topologies)

    def ends(self, keys: Iterable[Key] | None) -> Ends:
        """Return the ends of these segments, or of all."""
        every = {(name, id_) for name, topology in self.topologies.items() for id_ in topology.tails}
        return {key: self.topologies[key[0]].tails[key[1]].next for key in (every if keys is None else keys)}


@dataclass(frozen=True, slots=True)
class Span:
    """The span of time in which the messages that may be read now were stored."""

    first_ms: int
    last_ms: int
    ends: Ends
    """Positions up to which segments may be read at the end of the span, even if brokers' clocks differ."""


class Pacer:
    """Takes the oldest messages first.

    It remembers which segment was served last, and otherwise only what saves questions to brokers.
    """

    def __init__(self) -> None:
        self._last_served: Key | None = None
        self._front: tuple[int, int] | None = None
        """The last front, and its distance from the one before; their sum is the next guess."""

    def next_cut(
        self, reader: TopicReader, start: Cut, topologies: Mapping[str, Topology], pace: Pace
    ) -> Cut:
        """Return the cut to read up to next, or `start` itself if there is nothing to read."""
        # Most micro-batches take everything, and those cost no question. A front is needed only if the limit
        # is too small, or if a child has to wait for the next batch while other segments would run ahead of
        # it.
        choice = Choice(start, topologies, pace)
        end = choice.read(replace(pace, limit=NO_LIMIT))
        if end is start:
            return start
        counts = choice.counts(end)
        blocked = blocked_below(end, topologies)
        if choice.load(end) <= 1.0 and not (blocked and counts.keys() - ancestors_of(blocked, topologies)):
            return end
        pace = replace(pace, last_served=self._last_served)
        span = _span(reader, choice, counts, blocked) if len(counts) > 1 else None
        end = choice.read(pace if span is None else replace(pace, fronts=self._fronts(reader, choice, span)))
        if not choice.counts(end):
            # A broker whose clock fell behind can make the front hide all messages. Progress matters more.
            end = choice.read(pace)
        self._last_served = last_served_of(choice.counts(end), self._last_served)
        return end

    def _fronts(self, reader: TopicReader, choice: Choice, span: Span) -> tuple[Ends, ...]:
        guess = None if self._front is None else sum(self._front)
        search = FrontSearch(
            choice.read_until, choice.load, choice.waiting, (span.first_ms, span.last_ms), guess
        )
        while (question := search.question()) is not None:
            known = span.ends if question.time_ms == span.last_ms else {}
            ends = {key: known[key] for key in question.keys & known.keys()}
            ends |= _stored_until(reader, question.time_ms, question.keys - ends.keys())
            search.learn(question, ends)
        before = search.front_ms if self._front is None else self._front[0]
        self._front = (search.front_ms, max(0, search.front_ms - before))
        return search.fronts


def _span(reader: TopicReader, choice: Choice, counts: Iterable[Key], blocked: set[Key]) -> Span | None:
    """Return the time span of the messages to read, or None if a broker cannot tell it.

    The span ends before the oldest message that has to wait for its parents, so that nothing younger is read.
    """
    heads = {(name, id_): choice.start.topics[name].positions.get(id_, 0) for name, id_ in counts}
    oldest = _stored_at(reader, heads)
    asked = dict.fromkeys(blocked, 0) or {key: at - 1 for key, at in choice.ends(heads).items()}
    youngest = _stored_at(reader, asked)
    if len(oldest) < len(heads) or len(youngest) < len(asked):
        return None
    if not blocked:
        last_ms = max(*oldest.values(), *youngest.values())
        return Span(min(oldest.values()), last_ms, choice.ends(None))
    last_ms = min(youngest.values())
    next_ = {key for key in blocked if youngest[key] == last_ms}
    ends = choice.ends(ancestors_of(next_, choice.topologies))
    return Span(min(*oldest.values(), last_ms), last_ms, ends)


def _by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, id_ in sorted(keys):
        found.setdefault(name, []).append(id_)
    return found


def _stored_at(reader: TopicReader, positions: Mapping[Key, int]) -> dict[Key, int]:
    return {
        (name, id_): time_ms
        for name, ids in _by_topic(positions).items()
        for id_, time_ms in reader.stored_at(name, {id_: positions[name, id_] for id_ in ids}).items()
    }


def _stored_until(reader: TopicReader, time_ms: int, keys: Iterable[Key]) -> dict[Key, int]:
    return {
        (name, id_): position
        for name, ids in _by_topic(keys).items()
        for id_, position in reader.stored_after(name, ids, time_ms).items()
    }
