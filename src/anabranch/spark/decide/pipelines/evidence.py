"""Decides from the counts of one pass over a topic which places contradict its promises. Pure.

A pass gives the number of messages in each block of a segment, and the first, the last and the sum of their
positions. Together with the layout and the extents of the segments, these show whether a position is missing
or repeated, without a list of positions. This module must not know Spark, nor how the counts were made.

Example: a segment has positions 0 to 4, whose sum is 10. A block with 5 messages, first 0, last 4 and sum 10
is complete. With 4 messages and the sum 8, a position is missing: reading the entries again shows which
(position 2). With 5 messages and the sum 9, one position is there twice (1) and another one is missing (2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.client.decide.connecting.layout_checks import fault_of_layout
from anabranch.model.layout import Segment
from anabranch.spark.decide.pipelines.verify_report import VerifyFinding
from anabranch.spark.decide.source.topology import Topology, uncovered

BLOCK_POSITIONS = 65_536
"""Positions in one block, which are counted together."""


class Spot(NamedTuple):
    """A slot of the ring, and a message there."""

    slot: int
    position: int
    key: bytes


class CountedBlock(NamedTuple):
    """The messages that a pass found in one block of a segment."""

    segment: int
    number: int
    messages: int
    first: int
    last: int
    offset_sum: int
    """Sum of the positions, each counted from the start of the block."""
    lowest: Spot | None = None
    """The message with a key whose slot is the lowest."""
    highest: Spot | None = None


class Stretch(NamedTuple):
    """Positions `lo` up to `hi` of a segment; `hi` is not included."""

    segment: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The faulty positions that the blocks reveal."""

    incomplete: tuple[Stretch, ...] = ()
    """Stretches that lack messages somewhere."""
    repeated: tuple[Stretch, ...] = ()
    """Stretches with more messages than positions."""


def is_counted(topology: Topology) -> bool:
    """Whether positions count messages. On Apache Pulsar they encode places instead."""
    return all(tail.per_entry is None for tail in topology.tails.values())


def coverage(topology: Topology, blocks: Iterable[CountedBlock]) -> Coverage:
    """Compare the blocks with the extents of the segments. Pulsar's positions have gaps and prove nothing."""
    given = {(block.segment, block.number): block for block in blocks}
    incomplete: list[Stretch] = []
    repeated: list[Stretch] = []
    for id_, tail in sorted(topology.tails.items() if is_counted(topology) else ()):
        for lo in range(tail.first // BLOCK_POSITIONS * BLOCK_POSITIONS, tail.next, BLOCK_POSITIONS):
            here = Stretch(id_, max(lo, tail.first), min(lo + BLOCK_POSITIONS, tail.next))
            block = given.get((id_, lo // BLOCK_POSITIONS))
            if block is None or block.messages < here.hi - here.lo:
                incomplete.append(here)
            elif block.messages > here.hi - here.lo or not _is_run(block, here):
                repeated.append(here)
    return Coverage(tuple(incomplete), tuple(repeated))


def _is_run(block: CountedBlock, here: Stretch) -> bool:
    """Whether a block with as many messages as positions has one at each, judged by first, last and sum."""
    start = block.number * BLOCK_POSITIONS
    low, high = here.lo - start, here.hi - 1 - start
    run_sum = (low + high) * (high - low + 1) // 2
    return block.first == here.lo and block.last == here.hi - 1 and block.offset_sum == run_sum


def joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Join neighbouring stretches; they are given in order."""
    found: list[Stretch] = []
    for part in stretches:
        if found and found[-1].segment == part.segment and found[-1].hi == part.lo:
            part = Stretch(part.segment, found.pop().lo, part.hi)
        found.append(part)
    return found


def holes(within: Stretch, entries: Iterable[tuple[int, int]]) -> list[Stretch]:
    """Return the positions that no entry holds; entries are given as first position and message count."""
    found: list[Stretch] = []
    expected = within.lo
    for first, count in entries:
        if first > expected:
            found.append(Stretch(within.segment, expected, min(first, within.hi)))
        expected = max(expected, first + count)
    if expected < within.hi:
        found.append(Stretch(within.segment, expected, within.hi))
    return found


def misplaced(topic: str, topology: Topology, blocks: Iterable[CountedBlock]) -> list[VerifyFinding]:
    """Return a finding for each block that has a key outside the range of its segment.

    A range has no holes, so the lowest and the highest slot of a block show whether a key is outside.
    """
    found = []
    for block in blocks:
        segment = topology.layout.segments[block.segment]
        if segment.is_classic or not is_counted(topology):
            # Partitions are chosen by a different rule, and Pulsar's clients do not agree on the hash.
            continue
        for spot in (block.lowest, block.highest):
            if spot is not None and spot.slot not in segment.range:
                found.append(
                    VerifyFinding(
                        "misplaced",
                        topic,
                        f"a key in slots {segment.range}",
                        f"slot {spot.slot:04x}",
                        segment.id,
                        spot.position,
                        spot.key,
                    )
                )
                break
    return found


def layout_findings(topic: str, topology: Topology) -> list[VerifyFinding]:
    """Return the faults of the DAG: cycles, uncovered slots, children that do not continue their parents."""
    segments = topology.layout.segments
    fault = fault_of_layout(segments)
    found = [] if fault is None else [VerifyFinding("layout", topic, "a DAG over the whole ring", fault)]
    for id_, segment in sorted(segments.items()):
        found += [
            VerifyFinding("layout", topic, expected, text, id_)
            for expected, text in _faults(segment, segments)
        ]
        if not segment.active and not topology.tails[id_].sealed:
            expected = "a final position, because the layout seals the segment"
            found.append(VerifyFinding("layout", topic, expected, "its log still takes messages", id_))
    return found


def _faults(segment: Segment, segments: Mapping[int, Segment]) -> list[tuple[str, str]]:
    found = []
    for child in segment.children:
        if child not in segments:
            found.append((f"child {child} in the layout", "no such segment"))
        elif segment.id not in segments[child].parents:
            found.append((f"child {child} to name parent {segment.id}", "it does not"))
    children = [segments[child].range for child in segment.children if child in segments]
    if not segment.active:
        found += [
            ("children over the whole range", f"none takes slots {gap}")
            for gap in uncovered(children, within=segment.range)
        ]
    for parent in segment.parents:
        if parent in segments and segment.id not in segments[parent].children:
            found.append((f"parent {parent} to name child {segment.id}", "it does not"))
    return found


@dataclass(frozen=True, slots=True)
class Removed:
    """Messages that were removed before the pass, by retention or otherwise."""

    findings: tuple[VerifyFinding, ...] = ()
    notes: tuple[str, ...] = ()
    """Removals that contradict no promise, but leave something unproved."""


def removed(topic: str, topology: Topology, *, complete: bool) -> Removed:
    """Decide whether messages before the first stored one may be missing.

    Retention removes the oldest messages first. So a segment may lack its first messages only if its
    ancestors hold none; otherwise a reader would miss messages between two that it reads. With `complete`,
    every message since the topic was created is expected.
    """
    layout, tails = topology.layout, topology.tails
    findings: list[VerifyFinding] = []
    notes: list[str] = []
    for id_, tail in sorted(tails.items()):
        if tail.first == 0 or tail.per_entry is not None:
            continue
        older = sorted(other for other in layout.ancestors(id_) if tails[other].first < tails[other].next)
        text = f"messages 0 to {tail.first - 1:,} of segment {id_} are no longer stored"
        if older or complete:
            why = f", though its ancestor {older[0]} still holds messages" if older else ""
            found = f"the first message stored is {tail.first}{why}"
            findings.append(
                VerifyFinding(
                    "missing", topic, "messages from position 0 on", found, id_, 0, count=tail.first
                )
            )
        else:
            notes.append(text)
    pruned = min(layout.segments, default=0)
    if pruned:
        text = f"segments older than segment {pruned} are no longer in the layout"
        if complete:
            findings.append(VerifyFinding("missing", topic, "segment 0", text))
        else:
            notes.append(text)
    return Removed(tuple(findings), tuple(notes))
