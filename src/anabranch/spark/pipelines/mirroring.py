"""Copies a topic to another topic on any broker, each message exactly once and in the order of its key.

The layouts of the two topics are independent: each splits and merges as its own load requires. Keys, values,
tombstones, headers and event times are copied unchanged; positions and publish times are those of the target.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from anabranch.spark.options.queries import read_sink_options
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.progress import Show, Summary, run_stream, showing
from anabranch.spark.pipelines.state_directories import claim_state, same_brokers
from anabranch.spark.pipelines.stored_topics import check_source
from anabranch.spark.pipelines.topic_places import (
    READING,
    WRITING,
    TopicPlace,
    as_topic_place,
    check_target,
    default_state,
    refuse_options,
    refuse_same,
)
from anabranch.spark.sessions import read_stream
from anabranch.spark.source.data_source import FORMAT

COPIED = ("key", "value", "headers", "eventTime")


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """How to copy a topic. Example: `pipelines.MirrorOptions(interval="1 second", starting="latest")`"""

    state: str | None = None
    """Directory or URL that stores the progress; a later call with the same state resumes."""
    interval: str | None = None
    """With an interval, such as `1 second`, new messages are copied until the process is interrupted."""
    starting: str = "earliest"
    """The start of a new copy: earliest, latest or the JSON of a cut."""


def mirror(
    spark: Any,
    source: TopicPlace | str,
    target: TopicPlace | str,
    options: MirrorOptions | None = None,
    show: Show | None = None,
) -> Summary:
    """Copy all present messages and, with an interval, also new ones until interrupted.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        copy = pipelines.TopicPlace("copy", "pulsar://127.0.0.1:6650")
        pipelines.mirror(spark, orders, copy, pipelines.MirrorOptions(state="/data/state/copy"))
    """
    options = options or MirrorOptions()
    origin, copy = as_topic_place(source), as_topic_place(target)
    refuse_same(origin, copy, "mirrored")
    refuse_options(origin, READING, "mirror")
    check_target(copy, WRITING, "mirror")
    check_source(origin)
    given = {
        "startingOffsets": options.starting,
        **origin.options,
        "includeHeaders": True,
        "includeEventTime": True,
    }
    rows = read_stream(spark, origin.url, origin.name, options=given).select(*COPIED)
    names = (origin.url, origin.short_name, copy.url, copy.short_name)
    state = options.state or default_state("mirror", *names)
    job = {"pipeline": "mirror", "from": origin.short_name, "to": copy.short_name}
    files = Files(spark, state)
    claim_state(files, job)
    written = written_as(copy)
    writer = rows.writeStream.format(FORMAT).options(**written)
    place = {"checkpointLocation": state}
    once = read_sink_options(written).exactly_once
    with same_brokers(files, copy, place) if once else nullcontext(), showing(show, "mirror") as display:
        return run_stream(writer.options(**place), display, follow=options.interval)


def written_as(copy: TopicPlace) -> dict[str, str]:
    """Return the options of the writer: exactly once, unless the target asks for another `delivery`.

    Apache Pulsar without control processes supports only `at-least-once`: a repeated step repeats messages.
    """
    return copy.to_write(delivery=copy.options.get("delivery", "exactly-once"))
