"""The exactly-once sink of a state directory, and whether the brokers of a run are those that have it.

Addresses of brokers may change, so they are not compared. The first commit of a sink gives it a random sign,
which its records keep; on other brokers the sink has no sign, or another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from anabranch.errors import AnabranchError, ConflictError, InvalidConfigurationError
from anabranch.spark.decide.sink.records import SinkState
from anabranch.spark.options.queries import read_sink_options
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.places import TopicPlace
from anabranch.spark.service import close_sessions
from anabranch.spark.source.data_source import AnabranchSource

NAME = "sink.json"
"""The file of a state directory with the name of its sink."""
SIGN = "sink_sign.json"
"""The file with the random sign of the sink, from its first commit on."""


def kept_name(files: Files, name: str) -> str:
    """Return the name of the sink of a state directory; `name` if it has none yet.

    The name that a later run would choose differs if the same brokers are reached at another URL. Rows of a
    step that is repeated then would be sent again.
    """
    if not files.exists(NAME):
        with suppress(ConflictError):
            files.create_json(NAME, {"v": 1, "name": name})
    return str(files.read_json(NAME)["name"])


@contextmanager
def same_brokers(files: Files, place: TopicPlace, sink: Mapping[str, str]) -> Iterator[None]:
    """Refuse a target on other brokers than before, and keep the sign of the sink behind a run."""
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
    """Return what the brokers of a topic know about a sink, given by the option that names it."""
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
        f"{files.root} has the progress of a job with other brokers: those of {place.url} have no record of "
        f"what was sent to {place.short_name}, or it was removed (`anabranch sink remove`). Give the URL of "
        "the brokers that have it, or another --state directory, which sends everything again"
    )
