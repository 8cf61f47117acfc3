"""Finds a common time up to which a micro-batch reads all segments, so that it takes the oldest ones. Pure.

Spark's watermark follows the newest message that a query has read, and drops messages that are much older. So
a micro-batch that cannot read everything must not read a young message of one segment while old ones wait in
another. Times are those at which brokers stored the messages; they never decrease within a segment. The
caller asks the brokers and passes on their answers.

Example: segment A stored a message every 10 ms from time 0 on, segment B every 10 ms from time 500 on, each
100 messages, and the limit is 110. All 200 messages up to time 1490 exceed it by the factor 1.8. If they were
spread evenly, the limit would be reached at time 786 (the guess aims at 96 %): A has 79 messages by then, B
has 29. These 108 use more than 90 % of the limit, so the search ends there, after two questions to the
brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from anabranch.spark.decide.source.offsets import Cut
from anabranch.spark.decide.source.topology import Ends, Key, Topology

ENOUGH = 0.9
"""The search ends at a front that uses this part of the limit."""

AIM = 0.96
"""The part of the limit that a guess aims at."""


class Question(NamedTuple):
    """Asks for the first position of each segment that was stored after a time."""

    time_ms: int
    keys: frozenset[Key]


class FrontSearch:
    """Finds the latest time up to which all messages fit the limit, with a few questions to the brokers."""

    def __init__(
        self,
        advance: Callable[[Ends], Cut],
        load: Callable[[Cut], float],
        waiting: Callable[[Cut], set[Key]],
        span_ms: tuple[int, int],
        guess_ms: int | None = None,
    ) -> None:
        """Take three functions of the planner and the span of times in which the messages were stored.

        `advance` reads up to given ends without a limit, `load` is above 1 for a cut that exceeds the limit,
        and `waiting` returns the segments of a cut that have unread messages.
        """
        self._advance = advance
        self._load = load
        self._waiting = waiting
        self._low_ms, self._high_ms = span_ms[0] - 1, span_ms[1]
        self._low_load = 0.0
        self._high_load: float | None = None
        self._low_ends: Ends = {}
        self._high_ends: Ends = {}
        self._rounds = 0
        # The end of the span is tried first, because everything may fit.
        self._time_ms = self._high_ms
        self._guess_ms = guess_ms
        self._ends: dict[Key, int] = {}
        self._done = False

    def question(self) -> Question | None:
        """Return the next question, or None once the front is found."""
        while not self._done:
            cut = self._advance(self._ends)
            missing = self._waiting(cut) - self._ends.keys()
            if missing:
                return Question(self._time_ms, frozenset(missing))
            self._note(self._load(cut))
        return None

    def learn(self, asked: Question, ends: Ends) -> None:
        """Take the answer. Nothing is read of a segment that the answer lacks."""
        self._ends.update({key: ends.get(key, 0) for key in asked.keys})

    def _note(self, load: float) -> None:
        """Note how much of the limit the messages up to the present time use, and choose the next time."""
        if load <= 1.0:
            self._low_ms, self._low_load, self._low_ends = self._time_ms, load, self._ends
        else:
            self._high_ms, self._high_load, self._high_ends = self._time_ms, load, self._ends
        if self._high_load is None or self._low_load >= ENOUGH or self._high_ms - self._low_ms <= 1:
            self._done = True
            return
        self._time_ms, self._ends = self._next_ms(), {}
        self._rounds += 1

    def _next_ms(self) -> int:
        assert self._high_load is not None
        width = self._high_ms - self._low_ms
        if self._rounds == 0 and self._guess_ms is not None:
            step = self._guess_ms - self._low_ms
        elif self._rounds % 2 == 1:
            step = width // 2
        else:
            # Interpolate as if the messages were spread evenly. Traffic that comes in bursts would make this
            # converge slowly, so every other step halves the span.
            step = int(width * (AIM - self._low_load) / (self._high_load - self._low_load))
        return self._low_ms + min(max(step, 1), width - 1)

    @property
    def front_ms(self) -> int:
        """The time up to which everything is read."""
        return self._low_ms

    @property
    def fronts(self) -> tuple[Ends, ...]:
        """The ends to read up to: all messages up to the first, then up to the second while the limit lasts.

        The second ends are one millisecond later. A broker may have stored more messages in that millisecond
        than the limit allows, so they cannot be read as a whole. There are none if the first ends use most of
        the limit.
        """
        if self._low_load >= ENOUGH or self._high_load is None:
            return (self._low_ends,)
        return (self._low_ends, self._high_ends)


def blocked_below(cut: Cut, topologies: Mapping[str, Topology]) -> set[Key]:
    """Return the oldest segments whose messages wait only because their parents were read in this step."""
    found: set[Key] = set()
    for name, topic in cut.topics.items():
        topology = topologies[name]
        segments, tails = topology.layout.segments, topology.tails
        done = [id_ for id_, at in topic.positions.items() if topology.finished(id_, at)]
        seen: set[int] = set()
        below = [child for id_ in done for child in segments[id_].children]
        while below:
            child = below.pop()
            if child in topic.positions or child in seen or child not in tails:
                continue
            seen.add(child)
            if tails[child].next > 0:
                found.add((name, child))
            else:
                below += segments[child].children
    return found


def ancestors_of(keys: Iterable[Key], topologies: Mapping[str, Topology]) -> set[Key]:
    return {(name, other) for name, id_ in keys for other in topologies[name].layout.ancestors(id_)}


def waiting_in(cut: Cut, topologies: Mapping[str, Topology]) -> set[Key]:
    """Return the segments of a cut that have messages after it."""
    return {
        (name, id_)
        for name, topic in cut.topics.items()
        for id_, position in topic.positions.items()
        if topologies[name].tails[id_].next > position
    }
