"""The options that name a sink and its batches. Must not know how a sink stores them."""

from __future__ import annotations

import re

from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import TopicName
from anabranch.spark.decide.sink.logs import checkpoint_sink, is_job_sink
from anabranch.spark.options.given import GivenOptions


def sink_place(options: GivenOptions, topic: str | None) -> tuple[str, str | None]:
    """Return namespace and id of the sink: as given, or beside the topic and named after the checkpoint."""
    namespace = TopicName.parse(topic or "any", default_domain="topic").namespace_name
    given = options.text("sinkId")
    if given is not None:
        *place, sink_id = given.split("/")
        if len(place) not in (0, 2) or not re.fullmatch(r"[\w.-]{1,100}", sink_id, re.ASCII):
            raise InvalidConfigurationError(
                f"option sinkId is {given!r}; it takes up to 100 letters, digits, dots, dashes and "
                "underscores, with tenant/namespace/ before them if the sink's logs belong elsewhere"
            )
        if is_job_sink(sink_id):
            raise InvalidConfigurationError(
                f"option sinkId is {given!r}, a name for batch jobs without sinkId; choose another one"
            )
        return "/".join(place) or namespace, sink_id
    checkpoint = options.text("checkpointLocation")
    return namespace, None if checkpoint is None else checkpoint_sink(checkpoint)


def check_repetition(options: GivenOptions, sink_id: str | None) -> None:
    """Refuse names of batches where they cannot tell a repeated batch; the sink of a stream is None here.

    A stream would take all its micro-batches for one batch, and write the first one only.
    """
    given = [name for name in ("txnId", "batchId") if options.text(name) is not None]
    if len(given) > 1:
        raise InvalidConfigurationError(f"options {' and '.join(given)} both name a batch; give one of them")
    if given and sink_id is None:
        raise InvalidConfigurationError(
            f"option {given[0]} is for batch writes with delivery=exactly-once and a sinkId, which tell that "
            "a job is run again; a stream numbers its batches itself"
        )
