"""A common time up to which a micro-batch reads all segments, so that it takes the oldest messages.

Spark's watermark follows the newest message that a query has read, and drops messages that are much older. So
a micro-batch that cannot read everything must not read a young message of one segment while old ones wait in
another. Time is the time at which brokers stored messages; it never falls within a segment. Pure: the caller
asks brokers, and tells this module what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from anabranch.spark.decide.source.offsets import Cut
from anabranch.spark.decide.source.topology import Ends, Key, Topology

ENOUGH = 0.9
"""A front that uses this part of the limit is not searched further."""

AIM = 0.96
"""The part of the limit that a guess aims at."""


class Question(NamedTuple):
    """Which position of each segment is the first that was stored after a time?"""

    time_ms: int
    keys: frozenset[Key]


class FrontSearch:
    """Finds the latest time until which all messages fit the limit; a few questions to brokers each time."""

    def __init__(
        self,
        advance: Callable[[Ends], Cut],
        load: Callable[[Cut], float],
        waiting: Callable[[Cut], set[Key]],
        span_ms: tuple[int, int],
        guess_ms: int | None = None,
    ) -> None:
        """`advance` reads up to ends without a limit, `load` is above 1 for a cut that exceeds the limit, and
        `waiting` says which segments of a cut have unread messages.

        Nothing was stored before the span, and all that may be read was stored by its end.
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
        # The end of the span comes first, because everything until then may fit.
        self._time_ms = self._high_ms
        self._guess_ms = guess_ms
        self._ends: dict[Key, int] = {}
        self._done = False

    def question(self) -> Question | None:
        """Return what to ask next; None when the front is found."""
        while not self._done:
            cut = self._advance(self._ends)
            missing = self._waiting(cut) - self._ends.keys()
            if missing:
                return Question(self._time_ms, frozenset(missing))
            self._note(self._load(cut))
        return None

    def learn(self, asked: Question, ends: Ends) -> None:
        """Take the answer; nothing is read of a segment without an answer."""
        self._ends.update({key: ends.get(key, 0) for key in asked.keys})

    def _note(self, load: float) -> None:
        """Compare the limit with what was stored until the present time, and go on to the next time."""
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
            # As if the messages were spread evenly; every other step halves the span in any case.
            step = int(width * (AIM - self._low_load) / (self._high_load - self._low_load))
        return self._low_ms + min(max(step, 1), width - 1)

    @property
    def front_ms(self) -> int:
        """The time up to which everything is read."""
        return self._low_ms

    @property
    def fronts(self) -> tuple[Ends, ...]:
        """The ends to read up to: all of the first; then of the second as far as the limit allows.

        The second are those one millisecond later, because more may be stored in that one than the limit
        allows. There is none when the first ones use most of the limit.
        """
        if self._low_load >= ENOUGH or self._high_load is None:
            return (self._low_ends,)
        return (self._low_ends, self._high_ends)


def blocked_below(cut: Cut, topologies: Mapping[str, Topology]) -> set[Key]:
    """Return the oldest segments with messages that wait only because their parents were read just now."""
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
    """Return the segments of a cut that have messages behind it."""
    return {
        (name, id_)
        for name, topic in cut.topics.items()
        for id_, position in topic.positions.items()
        if topologies[name].tails[id_].next > position
    }
