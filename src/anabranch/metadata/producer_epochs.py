"""The number of exclusive producers that each log has had, so that a fenced producer stays fenced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from anabranch.aio import together
from anabranch.errors import MetadataError, VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.model.names import TopicName, encode_part

_ATTEMPTS = 16


class TopicEpoch(NamedTuple):
    """The last exclusive producer of a log: its number, -1 before the first, and its role."""

    number: int = -1
    principal: str = ""


class TopicEpochs:
    """A durable counter per log: -1 before the first exclusive producer, then 0, 1, 2..."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def current(self, topic: TopicName) -> TopicEpoch:
        stored = await self._store.get(_path(topic))
        return TopicEpoch() if stored is None else _decode(stored.value)

    async def next(self, topic: TopicName, principal: str) -> TopicEpoch:
        """Count a new exclusive producer of this role."""
        return await self._change(topic, lambda known: TopicEpoch(known.number + 1, principal))

    async def inherit(self, lineage: Mapping[TopicName, Collection[TopicName]]) -> None:
        """Let each segment count on from the highest number of its parents, which are sealed.

        A producer that was fenced there is fenced in the segment too.
        """
        parents = list(dict.fromkeys(parent for before in lineage.values() for parent in before))
        found = dict(zip(parents, await together(map(self.current, parents)), strict=True))

        async def raise_to(child: TopicName, least: TopicEpoch) -> None:
            await self._change(child, lambda known: max(known, least, key=lambda epoch: epoch.number))

        highest = {
            child: max((found[parent] for parent in before), key=lambda epoch: epoch.number)
            for child, before in lineage.items()
            if before
        }
        await together(raise_to(child, epoch) for child, epoch in highest.items() if epoch.number >= 0)

    async def forget(self, topic: TopicName) -> None:
        """Drop the number of a log that is deleted for good."""
        if await self._store.get(_path(topic)) is not None:
            await self._store.delete(_path(topic))

    async def _change(self, topic: TopicName, change: Callable[[TopicEpoch], TopicEpoch]) -> TopicEpoch:
        for _ in range(_ATTEMPTS):
            stored = await self._store.get(_path(topic))
            epoch = change(TopicEpoch() if stored is None else _decode(stored.value))
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
