"""The number of exclusive producers that each topic has had, so that a fenced producer stays fenced."""

from __future__ import annotations

from anabranch.errors import MetadataError, VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.model.names import TopicName, encode_part

_ATTEMPTS = 16


class TopicEpochs:
    """A durable counter per topic: -1 before the first exclusive producer, then 0, 1, 2..."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def current(self, topic: TopicName) -> int:
        stored = await self._store.get(_path(topic))
        return -1 if stored is None else int(stored.value)

    async def next(self, topic: TopicName) -> int:
        """Count a new exclusive producer and return its number."""
        for _ in range(_ATTEMPTS):
            stored = await self._store.get(_path(topic))
            number = 0 if stored is None else int(stored.value) + 1
            version = ABSENT if stored is None else stored.version
            try:
                await self._store.put(_path(topic), str(number).encode(), expected=version)
            except VersionConflictError:
                continue
            return number
        raise MetadataError(
            f"the producer epoch of {topic} changed concurrently {_ATTEMPTS} times in a row; try again"
        )


def _path(topic: TopicName) -> str:
    return f"/topic-epochs/{encode_part(str(topic))}"
