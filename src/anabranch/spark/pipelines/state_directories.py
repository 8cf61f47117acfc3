"""The state directory of a job: the job that it belongs to, and the exactly-once sink with its brokers.

Another job would resume from progress that is not its own, so the first one records its name. The addresses
of brokers may change, so they are not compared. Instead the first commit of a sink gives it a random sign,
which its records keep; on other brokers the sink has no sign, or a different one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from anabranch.errors import AnabranchError, ConflictError, InvalidConfigurationError
from anabranch.spark.decide.sink.records import SinkState
from anabranch.spark.options.queries import read_sink_options
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.topic_places import TopicPlace
from anabranch.spark.service import close_sessions
from anabranch.spark.source.data_source import AnabranchSource

OWNER = "pipeline.json"
"""The file of a state directory that names its job."""

BEGUN = ("offsets", "plans")
"""The directories that exist once there is progress: of a Spark checkpoint, and of a load."""

NAME = "sink.json"
"""The file of a state directory with the name of its sink."""

SIGN = "sink_sign.json"
"""The file with the random sign of the sink, written after its first commit."""


def claim_state(files: Files, job: Mapping[str, str]) -> None:
    """Record the job of a state directory; raise InvalidConfigurationError if it belongs to another job.

    A job without progress loses its state directory to the next job. A state that an older version made has
    no record, and gets one. Brokers are not compared, because their addresses may change.
    """
    found = _owner(files)
    if found != dict(job) and (found is None or not any(map(files.exists, BEGUN))):
        files.delete(OWNER)
        # Of two runs that start at the same time, one writes the record.
        with suppress(ConflictError):
            files.create_json(OWNER, {"v": 1, "job": dict(job)})
        found = _owner(files)
    if found is not None and found != dict(job):
        raise InvalidConfigurationError(
            f"{files.root} has the progress of another job ({_text(found)}); this one "
            f"({_text(job)}) needs its own state directory"
        )


def _owner(files: Files) -> dict[str, str] | None:
    if not files.exists(OWNER):
        return None
    found: dict[str, str] = files.read_json(OWNER)["job"]
    return found


def _text(job: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in job.items())


def kept_name(files: Files, name: str) -> str:
    """Return the name of the sink of a state directory, which is `name` if it has none yet.

    A later run would choose another name if it reached the same brokers at another URL, and the rows of a
    repeated step would then be sent twice.
    """
    if not files.exists(NAME):
        with suppress(ConflictError):
            files.create_json(NAME, {"v": 1, "name": name})
    return str(files.read_json(NAME)["name"])


@contextmanager
def same_brokers(files: Files, place: TopicPlace, sink: Mapping[str, str]) -> Iterator[None]:
    """Refuse a target on other brokers than before, and store the sign of the sink after a run."""
    if not files.exists("offsets"):
        files.delete(SIGN)
    known = str(files.read_json(SIGN)["sign"]) if files.exists(SIGN) else None
    found = sink_state(place, sink).sink
    if known is not None and found != known:
        raise other_brokers(files, place)
    try:
        yield
    finally:
        if known is None:
            # A run that failed has an error of its own.
            with suppress(AnabranchError):
                found = found or sink_state(place, sink).sink
                if found:
                    files.create_json(SIGN, {"v": 1, "sign": found})


def sink_state(place: TopicPlace, sink: Mapping[str, str]) -> SinkState:
    """Return what the brokers of a topic know about a sink; `sink` is the option that names it."""
    options = read_sink_options(place.to_write(delivery="exactly-once", **sink))
    assert options.sink_id is not None, "the option names a sink"
    service = AnabranchSource({}).service(options.service_url, options.client)
    try:
        return service.sink(options.sink_namespace, options.sink_id).state()
    finally:
        close_sessions()


def other_brokers(files: Files, place: TopicPlace) -> InvalidConfigurationError:
    """Return the error of a state directory whose sink is not on the brokers of a target."""
    return InvalidConfigurationError(
        f"{files.root} has the progress of a job with other brokers: those at {place.url} have no record of "
        f"what was sent to {place.short_name}, or it was removed (`anabranch sink remove`). Give the URL of "
        "the brokers that have it, or another --state directory, which sends everything again"
    )
