"""The arguments of a consumer of several topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from anabranch.arguments import refuse_unknown
from anabranch.client.consume.consumers.arguments import QUEUES_ONLY, QueueArguments
from anabranch.client.options import DEAD_LETTER_ENDING, DeadLetter, one_of, parse_topic, retry_ending
from anabranch.errors import InvalidConfigurationError

TopicsKind = Literal["queue", "stream"]


def topics_arguments(given: QueueArguments, kind: TopicsKind) -> dict[str, Any]:
    """The arguments for the consumer of each topic; raises for one that the kind does not have."""
    one_of("kind", kind, TopicsKind)
    refuse_unknown(given, QueueArguments)
    for name in QUEUES_ONLY:
        if kind == "stream" and name in given:
            raise InvalidConfigurationError(f'{name} needs kind="queue"')
    return dict(given)


class OwnLetters:
    """The topics of the letters that a consumer of several topics writes itself.

    A pattern often matches them too. A consumer that read them would make letters of letters, each in a topic
    of its own, without an end.
    """

    def __init__(self, subscription: str, given: Mapping[str, Any]) -> None:
        dead, retry = given.get("dead_letter"), given.get("retry_topic")
        named = (dead.topic if isinstance(dead, DeadLetter) else None, retry)
        self._names = frozenset(str(parse_topic(name)) for name in named if isinstance(name, str))
        self._endings: list[str] = []
        if isinstance(dead, DeadLetter) and dead.topic is None:
            self._endings.append(DEAD_LETTER_ENDING)
        if retry is True:
            self._endings.append(retry_ending(subscription))

    def left_out(
        self, names: frozenset[str], matching: Callable[[frozenset[str]], frozenset[str]]
    ) -> frozenset[str]:
        """The names without those of letters of topics that match."""
        sources = {
            name: name.removesuffix(ending)
            for name in names
            for ending in self._endings
            if name.endswith(ending) and not name.endswith(f"/{ending}")
        }
        read = matching(frozenset(sources.values()))
        return names - self._names - {name for name, source in sources.items() if source in read}
