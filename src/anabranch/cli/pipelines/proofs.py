"""`anabranch pipeline verify`, `skew` and `mirror`: calls the pipelines and prints their reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from anabranch.cli.pipelines.starting import PipelineJob, Report
from anabranch.spark.decide.pipelines.skew import HeavyKey, SegmentWeight, SkewReport
from anabranch.spark.decide.pipelines.verify_report import VerifyFinding
from anabranch.spark.pipelines.mirroring import MirrorOptions
from anabranch.spark.pipelines.mirroring import mirror as copy_topic
from anabranch.spark.pipelines.proofs.skew_plot import check_plot, save_plot, shown_key, text_plot
from anabranch.spark.pipelines.proofs.verify_pass import Expectations
from anabranch.spark.pipelines.proofs.verifying import verify as check_topic
from anabranch.spark.pipelines.proofs.weighing import SkewOptions
from anabranch.spark.pipelines.proofs.weighing import skew as weigh_topic

FAULTY = 1
"""The exit code of a check that found a fault."""


def verify(job: PipelineJob) -> Report:
    given = job.words
    expect = Expectations(
        sequence_header=given.sequence_header,
        sequence_path=given.sequence_path,
        sequence_first=given.sequence_first,
        dense_producers=given.dense_producers,
        complete=given.complete,
        clock_tolerance_s=given.clock_tolerance,
    )
    report = check_topic(job.spark, job.place(given.topic), expect, show=job.show)
    if report.findings and not given.at.as_json:
        _print_table(_FINDING_HEAD, [_finding_row(finding) for finding in report.findings])
    lines = [f"{report.topic}: {report.summary}"]
    lines += [f"  proved: {text}" for text in report.proved]
    lines += [f"  not proved: {text}" for text in report.unproved]
    return {
        "topic": report.topic,
        **asdict(report.counts),
        "holds": report.holds,
        "findings": [_finding_json(finding) for finding in report.findings],
        "proved": report.proved,
        "not_proved": report.unproved,
        "text": "\n".join(lines),
        "exit": 0 if report.holds else FAULTY,
    }


_FINDING_HEAD = ("fault", "topic", "segment", "position", "key", "producer", "expected", "found", "messages")


def _finding_row(finding: VerifyFinding) -> list[str]:
    return [
        finding.kind,
        finding.topic,
        _number(finding.segment),
        _number(finding.position),
        "" if finding.key is None else shown_key(finding.key),
        finding.producer or "",
        finding.expected,
        finding.found,
        f"{finding.count:,}",
    ]


def _finding_json(finding: VerifyFinding) -> dict[str, Any]:
    key = None if finding.key is None else shown_key(finding.key)
    return {**asdict(finding), "key": key}


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def skew(job: PipelineJob) -> Report:
    given = job.words
    if given.plot is not None:
        check_plot(given.plot)
    report = weigh_topic(
        job.spark,
        job.place(given.topic),
        SkewOptions(given.by, given.segments, given.interval),
        show=job.show,
    )
    if given.plot is not None:
        save_plot(report, given.plot)
    if not given.at.as_json:
        _print_skew(report)
    lines = [f"{report.topic}: {report.total:,} {report.unit} with a key, {report.without_key:,} without"]
    if given.plot is not None:
        lines.append(f"the picture is in {given.plot}")
    return {
        "topic": report.topic,
        "unit": report.unit,
        "total": report.total,
        "without_key": report.without_key,
        "interval_s": report.interval_s,
        "segments": [_segment_json(one) for one in report.segments],
        "heavy_keys": [_key_json(one) for one in report.heavy_keys],
        "commands": report.commands(),
        "text": "\n".join(lines),
    }


def _print_skew(report: SkewReport) -> None:
    for line in text_plot(report):
        print(line)
    head = ("segment", "slots", "share", report.unit, "suggestion")
    _print_table(head, [_segment_row(one) for one in report.segments])
    rows = [
        [
            shown_key(one.key),
            f"{one.slot:04x}",
            str(one.segment),
            f"{one.weight / report.total:.1%}",
            f"{one.weight:,}",
        ]
        for one in report.heavy_keys
    ]
    _print_table(("key", "slot", "segment", "share", report.unit), rows)
    for command in report.commands():
        print(command)


def _segment_row(one: SegmentWeight) -> list[str]:
    row = [str(one.segment.id), str(one.segment.range), f"{one.share:.1%}", f"{one.weight:,}"]
    if one.points:
        return [
            *row,
            f"split into {len(one.points) + 1} parts, the heaviest with {one.largest_part:.0%} of it",
        ]
    if one.hopeless:
        return [*row, "no split helps: one hash slot takes nearly all of it"]
    return [*row, f"other boundaries of its {one.segment.bucket_count} buckets" if one.boundaries else ""]


def _segment_json(one: SegmentWeight) -> dict[str, Any]:
    return {
        "segment": one.segment.id,
        "slots": str(one.segment.range),
        "weight": one.weight,
        "share": one.share,
        "points": one.points,
        "boundaries": one.boundaries,
        "hopeless": one.hopeless,
    }


def _key_json(one: HeavyKey) -> dict[str, Any]:
    return {
        "key": shown_key(one.key),
        "slot": one.slot,
        "segment": one.segment,
        "weight": one.weight,
        "over_time": one.over_time,
    }


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        # Keys and names of producers may look like markup.
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def mirror(job: PipelineJob) -> Report:
    given = job.words
    source = job.place(given.source)
    target = job.at_target().place(given.target)
    summary = copy_topic(
        job.spark,
        source,
        target,
        MirrorOptions(given.state, None if given.once else given.interval, given.start),
        show=job.show,
    )
    return {
        "source": source.short_name,
        "target": target.short_name,
        "rows": summary.rows,
        "seconds": summary.seconds,
        "text": f"copied {summary.rows:,} messages from {source.short_name} to {target.short_name}",
    }
