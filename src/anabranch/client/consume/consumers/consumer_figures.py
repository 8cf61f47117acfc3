"""The numbers of one consumer."""

from __future__ import annotations

from typing import Any

from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.figures import ConsumerFigures


def figures_of(consumer: Inbox[Any]) -> ConsumerFigures:
    """The consumer now, for `AsyncClient.stats`."""
    sources = list(consumer._sources.values())
    waiting = sum(entry.wanted.bit_count() for source in sources for entry in source.entries)
    return ConsumerFigures(
        consumer._given_topic,
        getattr(consumer, "subscription", None),
        consumer.name,
        consumer.state,
        sum(source.connected for source in sources),
        consumer._number - len(consumer._run),
        waiting + len(consumer._run),
        consumer.bad_entry_count,
    )
