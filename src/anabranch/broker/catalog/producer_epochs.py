"""The number of exclusive producers that each topic has had, so that a fenced producer stays fenced."""

from __future__ import annotations

from anabranch.broker.serving.context import TopicEpoch
from anabranch.errors import MetadataError, VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.model.names import TopicName, encode_part

_ATTEMPTS = 16


class TopicEpochs:
    """A durable counter per topic: -1 before the first exclusive producer, then 0, 1, 2..."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def current(self, topic: TopicName) -> TopicEpoch:
        stored = await self._store.get(_path(topic))
        return TopicEpoch() if stored is None else _decode(stored.value)

    async def next(self, topic: TopicName, principal: str) -> TopicEpoch:
        """Count a new exclusive producer of this role."""
        for _ in range(_ATTEMPTS):
            stored = await self._store.get(_path(topic))
            epoch = TopicEpoch(0 if stored is None else _decode(stored.value).number + 1, principal)
            version = ABSENT if stored is None else stored.version
            try:
                await self._store.put(_path(topic), _encode(epoch), expected=version)
            except VersionConflictError:
                continue
            return epoch
        raise MetadataError(
            f"the producer epoch of {topic} changed concurrently {_ATTEMPTS} times in a row; try again"
        )


def _encode(epoch: TopicEpoch) -> bytes:
    """The number, and after a space the role if there is one."""
    return " ".join(filter(None, (str(epoch.number), epoch.principal))).encode()


def _decode(value: bytes) -> TopicEpoch:
    number, _, principal = value.decode().partition(" ")
    return TopicEpoch(int(number), principal)


def _path(topic: TopicName) -> str:
    return f"/topic-epochs/{encode_part(str(topic))}"
