"""The report of a check of one topic: findings, counts, and the limits of the proof. Plain values.

Example: 1,000 messages of 40 keys from 2 producers, with one finding of 3 missing messages and one of a
repeated message, give the summary "1,000 messages of 40 keys from 2 producers: 3 missing, 1 repeated".
Without findings, it ends with "nothing lost, doubled or out of order".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["layout", "missing", "repeated", "reordered", "misplaced", "clock"]


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """A place that contradicts a promise, or the first of several places with the same fault."""

    kind: Kind
    topic: str
    expected: str
    found: str
    segment: int | None = None
    position: int | None = None
    key: bytes | None = None
    producer: str | None = None
    count: int = 1
    """How many messages near this place have the same fault."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one pass over the topic."""

    messages: int = 0
    keys: int = 0
    producers: int = 0
    segments: int = 0
    without_key: int = 0
    without_sequence: int = 0
    """Messages whose producer gave no sequence id."""
    without_number: int = 0
    """Messages without the application's own sequence, when the pass looked for one."""
    producers_with_gaps: int = 0
    skipped_ids: int = 0
    """Sequence ids that these producers either did not use, or whose messages are lost."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a check of one topic.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        report = pipelines.verify(spark, orders)
        print(report.summary, report.unproved)
    """

    topic: str
    counts: Counts
    findings: tuple[VerifyFinding, ...] = ()
    not_shown: int = 0
    """Findings beyond the limit."""
    proved: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.findings

    @property
    def summary(self) -> str:
        counts = self.counts
        of = (
            f"{_many(counts.messages, 'message')} of {_many(counts.keys, 'key')} "
            f"from {_many(counts.producers, 'producer')}"
        )
        if self.holds:
            return f"{of}: nothing lost, doubled or out of order"
        kinds: dict[str, int] = {}
        for finding in self.findings:
            kinds[finding.kind] = kinds.get(finding.kind, 0) + finding.count
        text = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
        more = f", and {_many(self.not_shown, 'finding')} not shown" if self.not_shown else ""
        return f"{of}: {text}{more}"


def what_was_proved(
    counts: Counts, *, counted: bool, dense_producers: bool, numbered: bool
) -> tuple[str, ...]:
    """Return what was proved, as sentences; `counted` means that positions count messages."""
    found = ["per producer and key, sequence ids rise along the segments, none of them twice"]
    if counted:
        found += [
            f"every position of {_many(counts.segments, 'segment')} is stored once, from first to last",
            "the segments form a DAG that covers the ring, and each key lies in the range of its segment",
        ]
    if dense_producers:
        found.append("the sequence ids of each producer have no gap")
    if numbered and not _lack_numbers(counts):
        found.append("per key, the application's own sequence has no gap, repetition or inversion")
    return tuple(found)


def what_was_not(
    counts: Counts, notes: Sequence[str], *, counted: bool, dense_producers: bool, numbered: bool
) -> tuple[str, ...]:
    """Return what was not proved, as sentences."""
    found = [*notes]
    if not counted:
        found.append("that all stored messages are there: Apache Pulsar does not count them")
    if counts.without_key:
        text = f"the order of {_many(counts.without_key, 'message')} without a key, which has no promise"
        found.append(text)
    if counts.without_sequence:
        found.append(f"{_many(counts.without_sequence, 'message')} without a sequence id of the producer")
    if counts.producers_with_gaps and not dense_producers:
        found.append(
            f"whether {_many(counts.skipped_ids, 'sequence id')} that "
            f"{_many(counts.producers_with_gaps, 'producer')} skipped were ever sent"
        )
    if numbered and _lack_numbers(counts):
        found.append("anything about the application's sequence: no message has it; check its header or path")
    elif numbered and counts.without_number:
        found.append(f"{_many(counts.without_number, 'message')} without the application's sequence")
    if not numbered:
        found.append(
            "that producers sent every message of their applications; name the application's sequence"
        )
    return tuple(found)


def _lack_numbers(counts: Counts) -> bool:
    """Whether there are messages, but none of them has the application's own number."""
    return 0 < counts.messages == counts.without_number


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
