"""Spark's offsets: a cut through the DAG of each topic, as JSON that Spark stores and compares as text.

A position is the index of the next message to read, so a cut does not include its end. Users write the same
JSON as `startingOffsets` and `endingOffsets`; on Apache Pulsar they may write the text ledger:entry:batch
instead of a position. This module must not know layouts or Spark.

Example: {"v": 1, "topics": {"orders": {"epoch": 1, "segs": {"0": 100, "1": 20, "2": 0}}}} has read messages 0
to 99 of segment 0 and messages 0 to 19 of its child segment 1, and will read message 20 of segment 1 next.
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
    """Epoch of the layout that the cut was made with; for human readers, never for decisions."""
    logs: Mapping[int, int] = field(default_factory=dict)
    """Identity of the log that each position belongs to, by segment id; absent in cuts of older versions."""
    per_entry: float | None = field(default=None, kw_only=True)
    """Estimated messages per entry, only in the newest ends that the source reports on Pulsar."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The next positions to read, by topic name."""

    topics: Mapping[str, TopicCut] = field(default_factory=dict)
    from_earliest: bool = False
    """Whether this is the end of a first micro-batch that starts at the earliest messages."""


@dataclass(frozen=True, slots=True)
class Start:
    """A request for a start that is not resolved to positions yet.

    Spark asks for the initial offset more than once and never stores it. If "latest" were resolved there, a
    query that crashed in its first batch would start again at a later message and miss those in between. So
    the first micro-batch resolves the request and reads nothing, which stores the positions in the offset
    log. "earliest" means the same whenever it is resolved, so its first micro-batch may have rows.
    """

    at: Symbol | Cut
    times: StartTimes | None = None
    """The moments at which topics start; they take precedence over `at`."""


Offset = Start | Cut


def encode(offset: Offset) -> dict[str, Any]:
    """Return the JSON value of an offset. Equal offsets give equal text, because Spark compares the text."""
    if isinstance(offset, Cut):
        value: dict[str, Any] = {"v": VERSION, "topics": _encode_topics(offset)}
        return {**value, "from": "earliest"} if offset.from_earliest else value
    at = offset.at
    value = {"v": VERSION, "starting": at if isinstance(at, str) else _encode_topics(at)}
    return value if offset.times is None else {**value, "times": encode_times(offset.times)}


def decode(value: Mapping[str, Any]) -> Offset:
    """Return the offset of a JSON value; raises InvalidConfigurationError if `encode` did not make it."""
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
    """Parse the text of `startingOffsets` or `endingOffsets`: a symbol or the JSON of a cut."""
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
            'the form is {"name": {"segs": {"0": 17}}}, and positions must not be negative'
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
