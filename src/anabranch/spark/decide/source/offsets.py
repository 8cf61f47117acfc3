"""Spark's offsets: a cut through the DAG of each topic, as JSON that Spark stores and compares as text.

A position is the index of the next message to read, so a cut does not include its end. Users write the same
JSON as `startingOffsets` and `endingOffsets`, where the text ledger:entry:batch may stand for a position on
Apache Pulsar. This module knows neither layouts nor Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.moments import StartTimes, decode_times, encode_times
from anabranch.spark.decide.source.places import parse_place

VERSION = 1

Symbol = Literal["earliest", "latest", "subscription"]

SYMBOLS: tuple[Symbol, ...] = ("earliest", "latest", "subscription")


@dataclass(frozen=True, slots=True)
class TopicCut:
    """The next position to read in each segment of one topic."""

    positions: Mapping[int, int]
    """By segment id."""
    epoch: int = 0
    """Epoch of the layout behind the cut; for human readers, never for decisions."""
    logs: Mapping[int, int] = field(default_factory=dict)
    """Identity of the log that the position is for, by segment id; cuts of older versions have none."""
    per_entry: float | None = field(default=None, kw_only=True)
    """Estimated messages per entry on Pulsar, in the newest ends that the source reports; else None."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The next positions to read, by topic name."""

    topics: Mapping[str, TopicCut] = field(default_factory=dict)
    from_earliest: bool = False
    """Whether the first micro-batch ends here and reads from the earliest messages on."""


@dataclass(frozen=True, slots=True)
class Start:
    """A request where to start, not resolved to positions yet.

    Spark asks for the initial offset more than once and never stores it, so "latest" must not be resolved
    there. The first micro-batch resolves it and reads nothing, which stores the positions in the offset log.
    "earliest" means the same whenever it is resolved, so that its first micro-batch has rows.
    """

    at: Symbol | Cut
    times: StartTimes | None = None
    """The moments at which topics start; they win over `at`."""


Offset = Start | Cut


def encode(offset: Offset) -> dict[str, Any]:
    """Return the JSON value of an offset; equal offsets give equal text, because Spark compares the text."""
    if isinstance(offset, Cut):
        value: dict[str, Any] = {"v": VERSION, "topics": _encode_topics(offset)}
        return {**value, "from": "earliest"} if offset.from_earliest else value
    at = offset.at
    value = {"v": VERSION, "starting": at if isinstance(at, str) else _encode_topics(at)}
    return value if offset.times is None else {**value, "times": encode_times(offset.times)}


def decode(value: Mapping[str, Any]) -> Offset:
    """Undo `encode`; raises InvalidConfigurationError for any other value."""
    if not isinstance(value, dict) or value.get("v") != VERSION:
        raise InvalidConfigurationError(
            f"not an offset of version {VERSION}: {_shortened(value)}; "
            'the form is {"v": 1, "topics": {"name": {"segs": {"0": 17}}}}'
        )
    if "topics" in value:
        return replace(_decode_topics(value["topics"]), from_earliest=value.get("from") == "earliest")
    starting = value.get("starting")
    times = decode_times(value["times"]) if "times" in value else None
    for symbol in SYMBOLS:
        if starting == symbol:
            return Start(symbol, times)
    return Start(_decode_topics(starting), times)


def parse_request(text: str, option: str) -> Start:
    """Read the text of `startingOffsets` or `endingOffsets`: a symbol or the JSON of a cut."""
    word = text.strip()
    for symbol in SYMBOLS:
        if word.lower() == symbol:
            return Start(symbol)
    try:
        value = json.loads(word)
    except ValueError:
        raise InvalidConfigurationError(
            f"option {option} is {_shortened(text)}; it takes {', '.join(SYMBOLS)} or the JSON of a cut"
        ) from None
    offset = decode(value)
    return Start(offset) if isinstance(offset, Cut) else offset


def _encode_topics(cut: Cut) -> dict[str, Any]:
    return {name: _encode_topic(topic) for name, topic in sorted(cut.topics.items())}


def _encode_topic(topic: TopicCut) -> dict[str, Any]:
    found: dict[str, Any] = {"epoch": topic.epoch, "segs": _by_text(topic.positions)}
    if topic.logs:
        found["logs"] = _by_text(topic.logs)
    if topic.per_entry is not None:
        found["perEntry"] = topic.per_entry
    return found


def _by_text(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(id_): numbers[id_] for id_ in sorted(numbers)}


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
    logs = {int(id_): _position(log) for id_, log in value.get("logs", {}).items()}
    per_entry = None if value.get("perEntry") is None else float(value["perEntry"])
    return TopicCut(positions, int(value.get("epoch", 0)), logs, per_entry=per_entry)


def _position(value: object) -> int:
    if isinstance(value, str):
        return parse_place(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


def _shortened(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
