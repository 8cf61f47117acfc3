"""Metadata stores that behave worse than the reference, each in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.errors import MetadataError
from anabranch.metadata.store import MetadataStore, Stored


class YieldingStore:
    """Gives way before and after each call, so that callers interleave as they do on a real store."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    async def get(self, path: str) -> Stored | None:
        await asyncio.sleep(0)
        found = await self.inner.get(path)
        await asyncio.sleep(0)
        return found

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        await asyncio.sleep(0)
        version = await self.inner.put(path, value, expected=expected, ephemeral=ephemeral)
        await asyncio.sleep(0)
        return version

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        await asyncio.sleep(0)
        await self.inner.delete(path, expected=expected)
        await asyncio.sleep(0)

    async def children(self, path: str) -> list[str]:
        await asyncio.sleep(0)
        return await self.inner.children(path)

    async def page(self, path: str, after: str, limit: int) -> list[tuple[str, Stored]]:
        await asyncio.sleep(0)
        return await self.inner.page(path, after, limit)

    async def increment(self, path: str) -> int:
        await asyncio.sleep(0)
        return await self.inner.increment(path)

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self.inner.watch(prefix, changed)

    async def close(self) -> None:
        await self.inner.close()


class FailingStore(YieldingStore):
    """Fails the puts that `fails` picks: before they apply, or after, as if only the answer were lost.

    While the store is `down`, reads fail too. The next `refusals` puts fail before they apply. The next put
    to an `overtaken` path comes after the one of another writer.
    """

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.fails: Callable[[str], bool] = lambda path: self.down
        self.applied = False
        self.down = False
        self.refusals = 0
        self.overtaken: set[str] = set()

    async def get(self, path: str) -> Stored | None:
        self._check()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        self._check()
        return await super().children(path)

    def _check(self) -> None:
        if self.down:
            raise MetadataError("the store is down")

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        if self.refusals:
            self.refusals -= 1
            raise MetadataError("the store refuses the value")
        if path in self.overtaken and (found := await self.get(path)) is not None:
            self.overtaken.remove(path)
            await super().put(path, found.value)
        failing = self.fails(path)
        if failing and not self.applied:
            raise MetadataError("the store is down")
        version = await super().put(path, value, expected=expected, ephemeral=ephemeral)
        if failing:
            raise MetadataError("the answer was lost")
        return version
