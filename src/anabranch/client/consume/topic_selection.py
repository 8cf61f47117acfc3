"""The topics of one consumer: a fixed list, or those of a namespace that match, as they come and go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping

from anabranch.aio import TaskRegistry
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics_watch import TopicsWatch
from anabranch.client.options import parse_topic, text_pairs
from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import TopicName

DEFAULT_NAMESPACE = "public/default"


class TopicSelection:
    """Knows the names that are `wanted` now, and sets `changed` when they are others."""

    def __init__(
        self,
        pool: ConnectionPool,
        topics: Iterable[str] | re.Pattern[str] | None,
        namespace: str | None,
        filters: Mapping[str, str] | None,
    ) -> None:
        self.changed = asyncio.Event()
        self.wanted: frozenset[str] = frozenset()
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self._watch: TopicsWatch | None = None
        self._notify: Callable[[], None] = lambda: None
        if topics is None or isinstance(topics, re.Pattern):
            place = _checked_namespace(namespace or DEFAULT_NAMESPACE)
            if topics is None and namespace is None:
                raise InvalidConfigurationError("give a list of topics, a compiled pattern, or a namespace")
            kept = text_pairs("property_filters", filters)
            self._watch = TopicsWatch(pool, place, kept, self._listed)
            return
        if namespace is not None or filters:
            raise InvalidConfigurationError("a list of topics takes neither namespace nor property_filters")
        if isinstance(topics, str):
            raise InvalidConfigurationError("topics must be a list of names, or a compiled pattern")
        self.wanted = frozenset(str(parse_topic(name)) for name in topics)
        if not self.wanted:
            raise InvalidConfigurationError("topics must name at least one topic")

    async def open(self, tasks: TaskRegistry, within_s: float, notify: Callable[[], None]) -> frozenset[str]:
        """The names at first; `notify` is called when they change."""
        self._notify = notify
        if self._watch is not None:
            self.wanted = self._matching(await self._watch.open(tasks, within_s))
        return self.wanted

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _listed(self, names: frozenset[str]) -> None:
        self.wanted = self._matching(names)
        self.changed.set()
        self._notify()

    def _matching(self, names: frozenset[str]) -> frozenset[str]:
        if self._pattern is None:
            return names
        return frozenset(name for name in names if self._pattern.fullmatch(TopicName.parse(name).local))


def _checked_namespace(text: str) -> str:
    try:
        TopicName.parse(f"topic://{text}/x")
    except InvalidConfigurationError as error:
        raise InvalidConfigurationError(f"namespace must be tenant/name, not {text!r}") from error
    return text
