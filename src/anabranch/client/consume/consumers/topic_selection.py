"""The topics of one consumer: a fixed list, or those of a namespace that match, as they come and go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping

from anabranch.aio import TaskRegistry
from anabranch.arguments import listed
from anabranch.client.consume.consumers.topics_options import OwnLetters
from anabranch.client.decide.consuming.topic_patterns import WantedTopics, wanted_topics
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics.topics_watch import ClassicTopicsWatch, TopicsWatch
from anabranch.client.options import log, parse_topic, text_pairs
from anabranch.errors import AnabranchError, InvalidConfigurationError, UnsupportedFeatureError
from anabranch.model.names import TopicName


class TopicSelection:
    """Knows the names that are `wanted` now, and sets `changed` when they are others."""

    def __init__(
        self,
        pool: ConnectionPool,
        topics: Iterable[str] | re.Pattern[str] | None,
        namespace: str | None,
        filters: Mapping[str, str] | None,
        letters: OwnLetters,
    ) -> None:
        """`letters` are left out of the topics that match."""
        self.changed = asyncio.Event()
        self.wanted: frozenset[str] = frozenset()
        self._chosen: WantedTopics | None = None
        self._letters = letters
        self._watch: TopicsWatch | ClassicTopicsWatch | None = None
        self._others: ClassicTopicsWatch | None = None
        """The classic topics beside scalable ones, which are not read."""
        self._notify: Callable[[], None] = lambda: None
        if topics is None or isinstance(topics, re.Pattern):
            self._chosen = wanted_topics(topics, namespace)
            self._watch = self._watch_of(pool, self._chosen, text_pairs("property_filters", filters))
            return
        if namespace is not None or filters:
            raise InvalidConfigurationError("a list of topics takes neither namespace nor property_filters")
        names = listed("topics", topics, str, "a list of names, or a compiled pattern")
        self.wanted = frozenset(str(parse_topic(name)) for name in names)
        if not self.wanted:
            raise InvalidConfigurationError("topics must name at least one topic")

    @property
    def may_change(self) -> bool:
        """Whether topics come and go; the watch of such a selection keeps its consumer alive."""
        return self._watch is not None

    def _watch_of(
        self, pool: ConnectionPool, chosen: WantedTopics, filters: Mapping[str, str]
    ) -> TopicsWatch | ClassicTopicsWatch:
        classic = ClassicTopicsWatch(pool, chosen.namespace, self._listed)
        if not chosen.classic:
            if not chosen.by_full_name and not filters:
                self._others = classic
            return TopicsWatch(pool, chosen.namespace, filters, self._listed)
        if filters:
            raise UnsupportedFeatureError("brokers do not filter persistent:// topics by property_filters")
        return classic

    async def open(self, tasks: TaskRegistry, within_s: float, notify: Callable[[], None]) -> frozenset[str]:
        """The names at first; `notify` is called when they change."""
        self._notify = notify
        if self._watch is not None and self._chosen is not None:
            self.wanted = self._matching(self._chosen, await self._watch.open(tasks, within_s))
            if self._others is not None:
                tasks.start(self._report_others(self._others, self._chosen), "look for classic topics")
        return self.wanted

    async def _report_others(self, others: ClassicTopicsWatch, chosen: WantedTopics) -> None:
        """Warn of topics that the caller may expect to be read."""
        try:
            found = chosen.matching(await others.ask())
        except AnabranchError as error:
            log.debug("the classic topics of %s cannot be listed: %s", chosen.namespace, error)
            return
        missing = sorted(name for name in found if str(TopicName.parse(name).topic) not in self.wanted)
        if missing:
            log.warning(
                "%s and %d more classic topics of %s are not read; give a pattern that begins with persistent://",
                missing[0],
                len(missing) - 1,
                chosen.namespace,
            )

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _listed(self, names: frozenset[str]) -> None:
        assert self._chosen is not None
        self.wanted = self._matching(self._chosen, names)
        self.changed.set()
        self._notify()

    def _matching(self, chosen: WantedTopics, names: frozenset[str]) -> frozenset[str]:
        return self._letters.left_out(chosen.matching(names), chosen.matching)
