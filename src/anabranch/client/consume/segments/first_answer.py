"""The first answer of a segment's owner to a consumer that subscribes."""

from __future__ import annotations

import asyncio

from anabranch.aio import mark_retrieved
from anabranch.errors import AnabranchError


class FirstAnswer:
    """Known when the first subscription succeeded, failed for good, or met another consumer."""

    def __init__(self) -> None:
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attached.add_done_callback(mark_retrieved)
        self._came = asyncio.Event()

    @property
    def decided(self) -> bool:
        """Whether the first subscription succeeded, or the consumer ended before."""
        return self._attached.done()

    @property
    def accepted(self) -> bool:
        """Whether the first subscription succeeded."""
        return self._attached.done() and self._attached.exception() is None

    def accept(self) -> None:
        """Note that the first subscription succeeded."""
        self._attached.set_result(None)
        self._came.set()

    def end(self, error: AnabranchError) -> None:
        """Note the error that ended the consumer, unless the first subscription succeeded before."""
        if not self._attached.done():
            self._attached.set_exception(error)
        self._came.set()

    def wait_for_others(self) -> None:
        """Note that another consumer holds the segment, for how long is unknown."""
        self._came.set()

    async def success(self) -> None:
        """Return when the first subscription has succeeded; raises the error that ended the consumer."""
        await asyncio.shield(self._attached)

    async def any(self) -> None:
        """As `success`, but return as well when another consumer holds the segment."""
        await self._came.wait()
        if self._attached.done():
            self._attached.result()
