"""The reader of streaming queries, which plans and reads micro-batches.

Copies of it exist in several processes and share only their options: the one on the driver plans, the others
are pickled into tasks and read. So no call may depend on state that an earlier call left behind, except to
save work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from anabranch.errors import AnabranchError, InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.source.lag import newest_ends
from anabranch.spark.decide.source.offsets import Cut, Start, TopicCut, decode, encode
from anabranch.spark.decide.source.planner import CHAINED_BYTES, Pace, advance, counts_between
from anabranch.spark.decide.source.slices import forget_gone, restart_recreated, slices_between
from anabranch.spark.decide.source.starts import earliest, resolve
from anabranch.spark.decide.source.topology import Limit, Sizes, Slice, Topology
from anabranch.spark.options.queries import SourceOptions
from anabranch.spark.source.batch_reader import POSITION_ONLY, refuse_set
from anabranch.spark.source.pacing import Pacer
from anabranch.spark.source.query import PARTITIONS_MAX, SourceQuery, log
from anabranch.spark.topics import Service, TopicReader

if TYPE_CHECKING:
    from anabranch.spark.values.planning import ValueSchema

DISCOVERY_S = 1.0
"""Time between two lists of the topics that match a pattern."""

MIRROR_PAUSE_SHARE = 10
"""The pause after a mirrored cut is this many times as long as mirroring took."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans and reads micro-batches; Spark's offset log is its only memory between runs."""

    def __init__(
        self, service: Service, options: SourceOptions, schema: Any, values: ValueSchema | None = None
    ) -> None:
        if options.ending is not None:
            raise InvalidConfigurationError(
                "endingOffsets and endingTimestamp are for batch queries; a stream has no end"
            )
        if options.ordering == "none":
            if options.buckets > 1:
                raise InvalidConfigurationError("bucketsPerSegment needs ordering=key")
        else:
            refuse_set(options, "a stream with ordering=key", POSITION_ONLY)
        self.source = SourceQuery(service, options, schema, values)
        self._view: dict[str, Topology] | None = None
        self._view_until = 0.0
        self._fixed_view: dict[str, Topology] | None = None
        self._sizes: tuple[Cut, Sizes] | None = None
        self._reached: Cut | None = None
        self._mirror = CutMirror(self.source)
        self._listed: Sequence[str] = ()
        self._listed_until = 0.0
        self._pacer = Pacer()
        self._moved_at = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the request for a start, which the first micro-batch resolves."""
        return encode(self.source.options.starting or Start("latest"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark accepts only one limit. Any limit will do, because `latestOffset` applies all limits of the
        # options unless Spark passes ReadAllAvailable.
        options = self.source.options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_rows is not None:
            return ReadMinRows(options.min_rows)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the view now. Later messages and segments stay invisible, so the query ends."""
        self._fixed_view = self.source.topologies(self.source.reader(), fresh=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the cut to read up to, or `start` itself without new messages: Spark compares the text."""
        end = self._next_offset(start, limit)
        if end is not start or self._reached is None:
            reached = decode(end)
            self._reached = reached if isinstance(reached, Cut) else None
        if self._reached is not None and "starting" in start:
            # Retention has to wait for the query from its start, not only from its first commit.
            self._mirror.committed(self._reached)
        self._mirror.send(self._view or {})
        return end

    def _next_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        topologies = self._current()
        offset = decode(start)
        if isinstance(offset, Start):
            return encode(self._first_end(offset, topologies, limit))
        known = self._known_topics(offset, topologies)
        new = [topic for topic in topologies if topic not in known.topics]
        if new:
            # A topic that appears, or is added to the options, starts at its earliest message.
            added = {topic: resolve("earliest", topologies[topic], topic) for topic in new}
            return encode(Cut({**known.topics, **added}))
        restarted = restart_recreated(known, topologies, self.source.lost)
        if restarted is not known:
            # As at the first start, a micro-batch without rows stores the positions in the offset log.
            return encode(restarted)
        end = self._advanced(forget_gone(known, topologies, self.source.lost), topologies, limit)
        if end is None:
            return start if known is offset else encode(known)
        return encode(end)

    def _first_end(self, start: Start, topologies: Mapping[str, Topology], limit: ReadLimit) -> Cut:
        """Return the end of the first batch, which has rows only if it starts at the earliest messages.

        With a subscription it has none, because retention has to wait at the start before a task reads there.
        """
        reader, cut_of = self.source.reader(), self.source.cut_of
        cut = Cut({name: cut_of(reader, start, name, view, "earliest") for name, view in topologies.items()})
        if start.at != "earliest" or start.times is not None or self.source.options.subscription is not None:
            return cut
        end = self._advanced(cut, topologies, limit)
        return cut if end is None else replace(end, from_earliest=True)

    def _advanced(self, cut: Cut, topologies: Mapping[str, Topology], limit: ReadLimit) -> Cut | None:
        """Return the end of a batch that starts at `cut`, or None if there is nothing to read yet."""
        free = isinstance(limit, ReadAllAvailable)
        if not free and self._should_wait(cut, topologies):
            return None
        pace = self._pace(cut, topologies, free)
        end = self._pacer.next_cut(self.source.reader(), cut, topologies, pace)
        if end is cut:
            return None
        self._moved_at = time.monotonic()
        return end if free else self._settled(end, topologies)

    def _pace(self, cut: Cut, topologies: Mapping[str, Topology], free: bool) -> Pace:
        """Return the limits and choices of the next micro-batch; with `free`, without limits."""
        options = self.source.options
        chained = inf if options.ordering == "none" else CHAINED_BYTES
        if free:
            return Pace(chain=options.chain, chained_bytes=chained)
        sizes = self._message_sizes(cut, topologies)
        return Pace(Limit(options.max_rows, options.max_bytes), options.chain, chained, sizes)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the newest known ends. Spark shows them beside the offset reached, for `lag_of`."""
        return encode(newest_ends(self._view, self._reached)) if self._view is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = decode(start), decode(end)
        assert isinstance(after, Cut), "Spark stores only offsets that latestOffset returned"
        if isinstance(before, Start) and not after.from_earliest:
            return []
        source, options = self.source, self.source.options
        reader = source.reader()
        begun = after.topics if isinstance(before, Start) else before.topics
        topologies = self._covering(reader, sorted(set(begun) & set(after.topics)), after)
        if isinstance(before, Start):
            before = earliest({topic: topologies[topic] for topic in after.topics if topic in topologies})
        after = Cut({topic: cut for topic, cut in after.topics.items() if topic in topologies})
        slices = slices_between(before, after, topologies, source.lost)
        if options.ordering != "none":
            return source.plan_in_key_order(slices)
        most = options.max_partitions or PARTITIONS_MAX
        return source.plan_by_position(slices, self._measured(reader, slices), most, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from anabranch.spark.source.partition_rows import read_partition

        return read_partition(self.source, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Mirror the cut if the options name a subscription; Spark's own offset log remains what counts."""
        cut = decode(end)
        if isinstance(cut, Cut):
            self._mirror.committed(cut)
            self._mirror.send(self._view or {})

    def stop(self) -> None:
        """Do nothing: Spark often kills the process without calling this."""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks receive a pickled copy and never plan, so they need no view.
        return {**self.__dict__, "_view": None, "_fixed_view": None, "_sizes": None}

    def _current(self) -> dict[str, Topology]:
        """Return the view to plan with: the fixed one of AvailableNow, or one that is recent enough.

        Spark calls this about 90 times a second while no message arrives, so most calls must not reach a
        broker.
        """
        if self._fixed_view is not None:
            self._view = self._fixed_view
            return self._fixed_view
        began = time.monotonic()
        if self._view is None or began >= self._view_until:
            reader = self.source.reader()
            self._view = self.source.topologies(reader, self._topics(reader), fresh=self._view is None)
            ended = time.monotonic()
            # A topic with many segments takes longer to look up, so it is looked up less often.
            self._view_until = ended + max(self.source.options.view_ttl_s, 5 * (ended - began))
        return self._view

    def _topics(self, reader: TopicReader) -> Sequence[str]:
        """Return the topics that the query reads now; those of a pattern are listed about once a second."""
        began = time.monotonic()
        if self.source.options.pattern is None or began >= self._listed_until:
            self._listed = self.source.topics(reader)
            ended = time.monotonic()
            self._listed_until = ended + max(DISCOVERY_S, 20 * (ended - began))
        return self._listed

    def _covering(self, reader: TopicReader, topics: Sequence[str], end: Cut) -> Mapping[str, Topology]:
        """Return a view that reaches `end`: usually the last one, a newer one if Spark repeats a batch."""
        view = self._view
        if view is not None and all(
            topic in view and _reaches(view[topic], end.topics[topic]) for topic in topics
        ):
            return view
        found = {}
        for topic in topics:
            try:
                found[topic] = self.source.topology(reader, topic)
            except TopicNotFoundError:
                if topic in self.source.options.topics:
                    raise
                self.source.lost(f"topic {topic} was deleted, but Spark repeats a batch that reads it")
        return found

    def _known_topics(self, offset: Cut, topologies: Mapping[str, Topology]) -> Cut:
        """Return the offset without topics that were deleted, or that the options no longer name."""
        missing = [topic for topic in offset.topics if topic not in topologies]
        if not missing:
            return offset
        left = [topic for topic in missing if not self.source.options.reads(topic)]
        if left:
            log.warning("the query no longer reads %s: its options do not name these topics", ", ".join(left))
        for topic in missing:
            if topic not in left:
                self.source.lost(f"topic {topic} was deleted; messages that were not read yet are lost")
        return Cut({topic: cut for topic, cut in offset.topics.items() if topic in topologies})

    def _should_wait(self, cut: Cut, topologies: Mapping[str, Topology]) -> bool:
        """Whether fewer messages wait than the user wants per micro-batch, and may wait longer."""
        options = self.source.options
        if options.min_rows is None or self._fixed_view is not None:
            return False
        if time.monotonic() - self._moved_at >= options.max_delay_s:
            return False
        end = advance(cut, topologies, Pace(Limit(rows=options.min_rows), chained_bytes=inf))
        return sum(counts_between(cut, end, topologies).values()) < options.min_rows

    def _settled(self, cut: Cut, topologies: Mapping[str, Topology]) -> Cut:
        """Return the cut with positions past the end of their ledger on Pulsar moved to the next ledger.

        There is no message in between, so the cut means the same. But the next cut estimates distances, which
        works only within a ledger.
        """
        open_ = {name: topologies[name].unsettled(topic.positions) for name, topic in cut.topics.items()}
        if not any(open_.values()):
            return cut
        reader = self.source.reader()
        moved = {name: reader.settle(name, positions) for name, positions in open_.items() if positions}
        return Cut(
            {
                name: replace(topic, positions={**topic.positions, **moved.get(name, {})})
                for name, topic in cut.topics.items()
            }
        )

    def _message_sizes(self, cut: Cut, topologies: Mapping[str, Topology]) -> Sizes:
        """Return the bytes per message of the next slices, measured again once the cut has moved."""
        if self.source.options.max_bytes is None:
            return Sizes()
        if self._sizes is None or self._sizes[0] != cut:
            end = advance(cut, topologies, Pace(chain=False))
            slices = slices_between(cut, end, topologies, self.source.lost)
            if not slices:
                return Sizes()
            self._sizes = (cut, self._measured(self.source.reader(), slices))
        return self._sizes[1]

    def _measured(self, reader: TopicReader, slices: Sequence[Slice]) -> Sizes:
        # Imported late: most streams are planned without sizes, and each query starts a planning process.
        from anabranch.spark.source.partition_rows import sampled_sizes

        return sampled_sizes(reader, slices, self.source.options.poll_timeout_s)


def _reaches(topology: Topology, cut: TopicCut) -> bool:
    tails = topology.tails
    return all(id_ in tails and position <= tails[id_].next for id_, position in cut.positions.items())


class CutMirror:
    """Mirrors the committed cut of a stream to a subscription at the broker, for retention and for tools.

    A running query never needs the mirror, because Spark's offset log says which messages were read. So a
    failure is only logged, and the next cut tries again.
    """

    def __init__(self, query: SourceQuery) -> None:
        self._query = query
        self._waiting: Cut | None = None
        self._not_before = 0.0

    def committed(self, cut: Cut) -> None:
        """Note a cut to be mirrored; it replaces an earlier one that still waits."""
        if self._query.options.subscription is not None:
            self._waiting = cut

    def send(self, topologies: Mapping[str, Topology]) -> None:
        """Mirror the waiting cut, unless the pause after the last one is not over."""
        began = time.monotonic()
        name, cut = self._query.options.subscription, self._waiting
        if name is None or cut is None or not topologies or began < self._not_before:
            return
        self._waiting = None
        for topic in sorted(cut.topics.keys() & topologies.keys()):
            try:
                self._query.service.reader().mirror(topic, name, cut.topics[topic], topologies[topic])
            except AnabranchError as error:
                log.warning("subscription %s of topic %s was not moved: %s", name, topic, error)
        ended = time.monotonic()
        self._not_before = ended + MIRROR_PAUSE_SHARE * (ended - began)
