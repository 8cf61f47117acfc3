"""Spark's offsets: a cut through the DAG of each topic, as JSON that Spark stores and compares as text.

A position is the index of the next message to read, so a cut is exclusive at its end. The same JSON is
accepted as `startingOffsets` and `endingOffsets`. This module knows neither layouts nor Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anabranch.errors import InvalidConfigurationError

VERSION = 1

Symbol = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class TopicCut:
    """Where to go on reading in one topic."""

    positions: Mapping[int, int]
    """Segment id to the next position to read there."""
    epoch: int = 0
    """Epoch of the layout the cut was computed from; for people who read it, never for decisions."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where to go on reading, per topic name."""

    topics: Mapping[str, TopicCut] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """A request where to start, not yet its answer.

    Spark asks for the initial offset more than once and never stores it, so the answer to "latest" must not
    be given there: the first micro-batch resolves the request, reads nothing and so pins the answer in the
    offset log.
    """

    at: Symbol | Cut


Offset = Start | Cut


def encode(offset: Offset) -> dict[str, Any]:
    """The JSON value of an offset; equal offsets give equal text, because Spark compares the text."""
    if isinstance(offset, Cut):
        return {"v": VERSION, "topics": _encode_topics(offset)}
    at = offset.at
    return {"v": VERSION, "starting": at if isinstance(at, str) else _encode_topics(at)}


def decode(value: Mapping[str, Any]) -> Offset:
    """Undo `encode`; raises InvalidConfigurationError for what is not an offset of ours."""
    if not isinstance(value, dict) or value.get("v") != VERSION:
        raise InvalidConfigurationError(
            f"not an offset of version {VERSION}: {_shortened(value)}; "
            'the form is {"v": 1, "topics": {"name": {"segs": {"0": 17}}}}'
        )
    if "topics" in value:
        return _decode_topics(value["topics"])
    starting = value.get("starting")
    if starting == "earliest" or starting == "latest":
        return Start(starting)
    return Start(_decode_topics(starting))


def parse_request(text: str, option: str) -> Start:
    """What a user wrote as `startingOffsets` or `endingOffsets`: earliest, latest or the JSON of a cut."""
    word = text.strip()
    if word.lower() == "earliest":
        return Start("earliest")
    if word.lower() == "latest":
        return Start("latest")
    try:
        value = json.loads(word)
    except ValueError:
        raise InvalidConfigurationError(
            f"option {option} is {_shortened(text)}; it takes earliest, latest or the JSON of a cut"
        ) from None
    offset = decode(value)
    return Start(offset) if isinstance(offset, Cut) else offset


def _encode_topics(cut: Cut) -> dict[str, Any]:
    return {
        name: {
            "epoch": topic.epoch,
            "segs": {str(id_): topic.positions[id_] for id_ in sorted(topic.positions)},
        }
        for name, topic in sorted(cut.topics.items())
    }


def _decode_topics(value: object) -> Cut:
    try:
        assert isinstance(value, dict)
        return Cut({name: _decode_topic(topic) for name, topic in value.items()})
    except (AssertionError, AttributeError, TypeError, KeyError, ValueError):
        raise InvalidConfigurationError(
            f"not a cut: {_shortened(value)}; "
            'the form is {"name": {"segs": {"0": 17}}} with positions that are not negative'
        ) from None


def _decode_topic(value: dict[str, Any]) -> TopicCut:
    positions = {int(id_): _position(at) for id_, at in value["segs"].items()}
    return TopicCut(positions, int(value.get("epoch", 0)))


def _position(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


def _shortened(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
