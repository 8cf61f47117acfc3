"""The topic that a pipeline reads or writes, with its broker. This module must not know Spark or files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.topic_names import short_name
from anabranch.spark.options.queries import read_sink_options, text_of
from anabranch.spark.options.starts import TOPIC_OPTIONS
from anabranch.spark.options.values import VALUE_OPTIONS

FORMAT = "anabranch"
LOCAL_BROKER = "pulsar://127.0.0.1:6650"

LIMIT = "maxOffsetsPerTrigger"

READING = ("service.url", *TOPIC_OPTIONS, *VALUE_OPTIONS)
"""Options of a source that every pipeline sets itself: the topic, and that values stay bytes."""

WRITING = ("service.url", "topic", "subscribe", "path", "checkpointLocation", "txnId", "batchId")
ONCE = ("delivery", "sinkId")
"""Options of a sink that pipelines which write exactly once set themselves."""


@dataclass(frozen=True)
class TopicPlace:
    """A topic, its broker, and the options that every access to it needs.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650", {"client.operationTimeout": "10s"})
        spark.read.format("anabranch").options(**orders.to_read()).load().show()
    """

    name: str
    url: str = LOCAL_BROKER
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Credentials, TLS and timeouts: `client.*`, `authPluginClassName` and so on; see docs/spark.md."""

    @property
    def short_name(self) -> str:
        return short_name(self.name)

    def gives(self, option: str) -> bool:
        """Whether the options contain this one, in upper or lower case."""
        return option.lower() in map(str.lower, self.options)

    def to_read(self, **more: object) -> dict[str, str]:
        """Return the options of a reader of this topic."""
        return text_of({"service.url": self.url, **self.options, "subscribe": self.name, **more})

    def to_write(self, **more: object) -> dict[str, str]:
        """Return the options of a writer to this topic."""
        return text_of({"service.url": self.url, **self.options, "topic": self.name, **more})


def as_topic_place(topic: TopicPlace | str) -> TopicPlace:
    """Return the topic with its broker; a bare name means the broker on this machine."""
    return TopicPlace(topic) if isinstance(topic, str) else topic


def refuse_same(source: TopicPlace, target: TopicPlace, verb: str) -> None:
    """Refuse a target that is the source: the pipeline would read what it writes, forever."""
    if (source.url, source.short_name) == (target.url, target.short_name):
        raise InvalidConfigurationError(f"a topic cannot be {verb} into itself; name another topic")


def refuse_options(place: TopicPlace, decided: Iterable[str], pipeline: str) -> None:
    """Refuse options that a pipeline sets itself: it would ignore them, or read and write something else."""
    for name in decided:
        if place.gives(name):
            raise InvalidConfigurationError(f"{pipeline} sets the option {name} itself; leave it out")


def check_target(place: TopicPlace, decided: Iterable[str], pipeline: str) -> None:
    """Refuse options that a pipeline sets itself, and options that the sink does not have."""
    refuse_options(place, decided, pipeline)
    read_sink_options(place.to_write())


def identity(*parts: str) -> str:
    """Return a short name for state and sinks of a job; equal parts give equal names."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def default_state(pipeline: str, *parts: str) -> str:
    """Return the default state directory of a job, in the working or home directory of its file system."""
    return f"anabranch-state/{pipeline}-{identity(pipeline, *parts)}"
