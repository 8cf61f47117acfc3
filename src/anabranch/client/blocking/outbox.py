"""Messages on their way from callers' threads to the loop's thread, and their outcomes on the way back.

A caller appends to the outbox without crossing threads; one task of the loop empties it. Each message that is
taken from the outbox has an outcome in the end, also if the producer is closed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from anabranch.client.blocking.outcomes import SendOutcome
from anabranch.client.blocking.portal import Portal
from anabranch.client.decide.outgoing import Extras
from anabranch.client.net.closing import Deadline
from anabranch.client.produce.futures import follow
from anabranch.client.produce.intercepting import give_up
from anabranch.client.produce.preparing import Prepared
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import AlreadyClosedError

TAKEN_MAX = 256
"""Messages with rarely used parts that the loop's thread takes before other tasks of the loop run."""

Item = (
    tuple[SendOutcome[Any], bytes, Any]
    | tuple[SendOutcome[Any], Prepared]
    | tuple[SendOutcome[Any], Any, Any, Any]
)
"""A future with a plain value and key, with one prepared message, or with lists of values, keys, extras."""


def extras_of(item: Item) -> Iterable[Extras | None] | None:
    """The rarely used parts of the messages of an item."""
    if len(item) == 2:
        return (item[1][2],)
    return item[3] if len(item) == 4 else None


class Outbox:
    """The messages of one blocking producer that its twin has not accepted yet."""

    def __init__(self, portal: Portal, twin: AsyncProducer[Any]) -> None:
        self._portal = portal
        self._twin = twin
        self.items: deque[Item] = deque()
        self._emptying = False
        self._task: asyncio.Task[None] | None = None

    def put(self, item: Item) -> None:
        """Add a message, from any thread."""
        self.items.append(item)
        if not self._emptying:
            self._emptying = True
            self._portal.call_soon(self._start)
        if self._twin._closed:
            # The task that empties the outbox may have ended before it could see this message.
            self._fail_rest()

    def tell(self, outcome: SendOutcome[Any]) -> None:
        """See to it that an outcome is settled, from any thread: a caller waits for it now."""
        self._portal.call_soon(partial(_follow, outcome))

    async def emptied(self, deadline: Deadline) -> bool:
        """Return when the twin has taken all messages; False at the deadline."""
        while self.items or (self._task is not None and not self._task.done()):
            if self._task is None or self._task.done():
                self._start()
            assert self._task is not None
            if not await deadline.allow(asyncio.wait([self._task])):
                return False
        return True

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._twin._tasks.start(self._empty(), f"outbox of {self._twin.name}")

    async def _empty(self) -> None:
        items = self.items
        try:
            while items:
                kind = len(items[0])
                if kind == 3:
                    await self._send_plain()
                elif kind == 2:
                    await self._send_singles()
                else:
                    await self._send_list(*cast(Any, items.popleft()))
                if not items:
                    # A caller that saw the flag still set relies on the next look at the outbox.
                    self._emptying = False
                    self._emptying = bool(items)
        except asyncio.CancelledError:
            self._fail_rest()
            raise

    async def _send_plain(self) -> None:
        """Let the twin take plain messages until a batch is full."""
        items, twin = self.items, self._twin
        try:
            if twin._memory.full or twin._closed:
                await twin._admit()
        except BaseException as error:
            # Only the message in front waited; the next one may find room.
            if items:
                items.popleft()[0].fail(error)
            if not isinstance(error, Exception):
                raise
            return
        twin._add_placed(items)
        # Batches may have been closed; let the loop send them.
        await asyncio.sleep(0)

    async def _send_singles(self) -> None:
        items, twin = self.items, self._twin
        for _ in range(TAKEN_MAX):
            if not items or len(items[0]) != 2:
                break
            outcome, row = cast(tuple[SendOutcome[Any], Prepared], items.popleft())
            try:
                if twin._memory.full or twin._closed:
                    await twin._admit()
                placed = twin._add_numbered(row)
            except BaseException as error:
                outcome.fail(error)
                give_up((row[2],), error)
                if not isinstance(error, Exception):
                    raise
            else:
                follow(*placed, outcome)
        # Batches may have been closed; let the loop send them.
        await asyncio.sleep(0)

    async def _send_list(self, outcome: SendOutcome[None], datas: Any, keys: Any, extras: Any) -> None:
        try:
            sent = await self._twin._enqueue_many_prepared(datas, keys, extras)
            give_up(extras, None)
        except BaseException as error:
            outcome.fail(error)
            give_up(extras, error)
            if not isinstance(error, Exception):
                raise
        else:
            sent.add_done_callback(outcome.settle_list)

    def _fail_rest(self) -> None:
        error = AlreadyClosedError("the producer was closed before the message was sent")
        while self.items:
            try:
                item = self.items.popleft()
            except IndexError:
                return
            item[0].fail(error)
            give_up(extras_of(item), error)


def _follow(outcome: SendOutcome[Any]) -> None:
    # A message that is still in the outbox is followed when the twin takes it.
    if (placed := outcome.placed()) is not None:
        follow(*placed, outcome)
