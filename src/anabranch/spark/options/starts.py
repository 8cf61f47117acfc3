"""The options that name topics, and those that say where a query starts and ends.

This module parses them and checks them against each other. It must not know how a start becomes a cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.moments import StartTimes, Strategy, parse_moment, parse_moments
from anabranch.spark.decide.source.offsets import Cut, Start, Symbol, parse_request
from anabranch.spark.decide.source.topic_names import TopicPattern, parse_pattern, short_name
from anabranch.spark.options.given import GivenOptions, word

TOPIC_OPTIONS = ("subscribe", "topic", "topics", "path", "paths", "subscribePattern")
START_OPTIONS = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
END_OPTIONS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def read_topics(options: GivenOptions) -> tuple[tuple[str, ...], TopicPattern | None]:
    """Return the topics by name, or no topics and a pattern."""
    given = [name for name in TOPIC_OPTIONS if options.text(name) is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise InvalidConfigurationError(
            "name the topic with one of the options subscribe, topic, topics, subscribePattern or "
            f"load(...); given: {found}"
        )
    text = options.text(given[0]) or ""
    if given[0] == "subscribePattern":
        return (), parse_pattern(text)
    names = [short_name(part) for part in _listed(given[0], text) if part.strip()]
    if not names:
        raise InvalidConfigurationError(f"option {given[0]} is {text!r}, which names no topic")
    if len(set(names)) < len(names):
        raise InvalidConfigurationError(f"option {given[0]} names a topic twice: {', '.join(names)}")
    return tuple(sorted(names)), None


def _listed(option: str, text: str) -> list[str]:
    if option != "paths":
        return text.split(",")
    # Spark passes the list of `load([...])` as JSON.
    return [str(part) for part in json.loads(text)]


def read_start(options: GivenOptions, topics: tuple[str, ...], pattern: TopicPattern | None) -> Start | None:
    """Return where a new query starts, or None if no option says so."""
    strategy: Strategy = options.read(
        "startingOffsetsByTimestampStrategy", lambda text: word(text, ("error", "latest")), "error"
    )
    start = _request(options, START_OPTIONS, strategy, "earliest", (topics, pattern))
    if start is not None and start.at == "subscription" and options.text("subscription") is None:
        raise InvalidConfigurationError("startingOffsets=subscription needs the option subscription")
    return start


def read_end(options: GivenOptions, topics: tuple[str, ...], pattern: TopicPattern | None) -> Start | None:
    """Return where a batch ends, or None if no option says so."""
    end = _request(options, END_OPTIONS, "latest", "latest", (topics, pattern))
    if end is not None and end.at == "subscription":
        raise InvalidConfigurationError("endingOffsets takes earliest, latest or the JSON of a cut")
    return end


def _request(
    options: GivenOptions,
    names: tuple[str, ...],
    strategy: Strategy,
    otherwise: Symbol,
    subscribed: tuple[tuple[str, ...], TopicPattern | None],
) -> Start | None:
    offsets, moment, moments = names[0], names[1], names[2]
    start = _offsets(options, offsets, subscribed)
    by_topic = options.text(moments)
    for_all = options.read(moment, parse_moment)
    if for_all is None and by_topic is None:
        return start
    parsed = {} if by_topic is None else parse_moments(by_topic, moments)
    times = StartTimes({short_name(topic): at for topic, at in parsed.items()}, for_all, strategy)
    _check_subscribed(moments, times.topics, *subscribed)
    return Start(otherwise if start is None else start.at, times)


def _offsets(
    options: GivenOptions, name: str, subscribed: tuple[tuple[str, ...], TopicPattern | None]
) -> Start | None:
    text = options.text(name)
    if text is None:
        return None
    request = parse_request(text, name)
    if isinstance(request.at, str):
        return request
    cut = Cut({short_name(topic): cut for topic, cut in request.at.topics.items()})
    _check_subscribed(name, cut.topics, *subscribed)
    return Start(cut, request.times)


def _check_subscribed(
    option: str, named: Iterable[str], topics: tuple[str, ...], pattern: TopicPattern | None
) -> None:
    """Refuse a start for a topic that is not read. A misspelt name would silently start elsewhere."""
    strange = [t for t in named if (t not in topics if pattern is None else not pattern.matches(t))]
    if strange:
        reads = ", ".join(topics) if pattern is None else f"the topics that match {pattern}"
        raise InvalidConfigurationError(
            f"option {option} names {', '.join(sorted(strange))}, but the query reads {reads}"
        )
