"""Messages on their way from callers' threads to the loop's thread, and their outcomes on the way back.

A caller appends to the outbox without crossing threads; one task of the loop empties it. Each message that is
taken from the outbox has an outcome in the end, also if the producer is closed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any, cast

from anabranch.client.blocking.outcomes import SendOutcome
from anabranch.client.blocking.portal import Portal
from anabranch.client.net.closing import Deadline
from anabranch.client.produce.futures import follow
from anabranch.client.produce.intake import MessageIntake, PlainItem
from anabranch.client.produce.intercepting import give_up
from anabranch.client.produce.preparing import Prepared, PreparedMany
from anabranch.client.produce.publisher import Publisher
from anabranch.errors import AlreadyClosedError
from anabranch.model.ids import MessageId

TAKEN_MAX = 256
"""Messages with rarely used parts that the loop's thread takes before other tasks of the loop run."""


class OneMessage:
    """A message with rarely used parts, or one whose value had to be encoded."""

    __slots__ = ("message", "outcome")

    def __init__(self, outcome: SendOutcome[MessageId], message: Prepared) -> None:
        self.outcome, self.message = outcome, message

    def add(self, intake: MessageIntake) -> None:
        """Give the message its place; the caller has waited for room."""
        try:
            batch, index = intake.add(*self.message)
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.outcome.put(batch, index)

    def fail(self, error: BaseException) -> None:
        """Report an error that kept the message from being added."""
        self.outcome.fail(error)
        give_up((self.message[2],), error)


class MessageList:
    """The messages of one call of `enqueue_many`."""

    __slots__ = ("messages", "outcome")

    def __init__(self, outcome: SendOutcome[None], messages: PreparedMany) -> None:
        self.outcome, self.messages = outcome, messages

    async def send(self, publisher: Publisher[Any]) -> None:
        """Add the messages, waiting for room in between."""
        try:
            sent = await publisher.enqueue_many(*self.messages)
            give_up(self.messages[2], None)
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            sent.add_done_callback(self.outcome.settle_list)

    def fail(self, error: BaseException) -> None:
        """Report an error that kept messages from being added."""
        self.outcome.fail(error)
        give_up(self.messages[2], error)


Item = PlainItem | OneMessage | MessageList
"""Plain messages are tuples, because the compiled form of the intake reads them."""


def fail_item(item: Item, error: BaseException) -> None:
    """Report an error that kept an item from being added."""
    (item[0] if isinstance(item, tuple) else item).fail(error)


class Outbox:
    """The messages of one blocking producer that the publisher has not accepted yet."""

    def __init__(self, portal: Portal, publisher: Publisher[Any]) -> None:
        self._portal = portal
        self._publisher = publisher
        self._intake = publisher.intake
        self.items: deque[Item] = deque()
        self._emptying = False
        self._task: asyncio.Task[None] | None = None

    def put(self, item: Item) -> None:
        """Add a message, from any thread."""
        self.items.append(item)
        if not self._emptying:
            self._emptying = True
            self._portal.call_soon(self._start)
        if self._intake.closed:
            # The task that empties the outbox may have ended before it could see this message.
            self._fail_rest()

    def tell(self, outcome: SendOutcome[Any]) -> None:
        """See to it that an outcome is settled, from any thread: a caller waits for it now."""
        self._portal.call_soon(partial(_follow, outcome))

    async def emptied(self, deadline: Deadline) -> bool:
        """Return when the publisher has taken all messages; False at the deadline."""
        while self.items or (self._task is not None and not self._task.done()):
            if self._task is None or self._task.done():
                self._start()
            assert self._task is not None
            if not await deadline.allow(asyncio.wait([self._task])):
                return False
        return True

    async def close_by(self, deadline: Deadline) -> None:
        """Complete the messages of callers until the deadline, then end the publisher."""
        await self.emptied(deadline)
        await self._publisher.close_by(deadline)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            parts = self._publisher.parts
            self._task = parts.tasks.start(self._empty(), f"outbox of {parts.name}")

    async def _empty(self) -> None:
        items = self.items
        try:
            while items:
                if type(items[0]) is tuple:
                    await self._send_plain()
                elif isinstance(items[0], OneMessage):
                    await self._send_singles()
                else:
                    await cast(MessageList, items.popleft()).send(self._publisher)
                if not items:
                    # A caller that saw the flag still set relies on the next look at the outbox.
                    self._emptying = False
                    self._emptying = bool(items)
        except asyncio.CancelledError:
            self._fail_rest()
            raise

    # The loop's thread takes plain messages without looking at each of them: the intake adds them until a
    # batch is full, in compiled code where there is some. A lock, a wake-up of the loop or a real Future for
    # each message would cost more than sending it. So callers only append to a deque, which is safe from any
    # thread, and wake the loop if no task empties the deque.
    async def _send_plain(self) -> None:
        """Let the intake take plain messages until a batch is full."""
        items, intake = self.items, self._intake
        try:
            if intake.memory.full or intake.closed:
                await intake.admit()
        except BaseException as error:
            # Only the message in front waited; the next one may find room.
            if items:
                fail_item(items.popleft(), error)
            if not isinstance(error, Exception):
                raise
            return
        intake.add_items(items)
        # Batches may have been closed; let the loop send them.
        await asyncio.sleep(0)

    async def _send_singles(self) -> None:
        items, intake = self.items, self._intake
        for _ in range(TAKEN_MAX):
            if not items or not isinstance(items[0], OneMessage):
                break
            item = cast(OneMessage, items.popleft())
            if intake.memory.full or intake.closed:
                try:
                    await intake.admit()
                except BaseException as error:
                    item.fail(error)
                    if not isinstance(error, Exception):
                        raise
                    continue
            item.add(intake)
        # Batches may have been closed; let the loop send them.
        await asyncio.sleep(0)

    def _fail_rest(self) -> None:
        error = AlreadyClosedError("the producer was closed before the message was sent")
        while self.items:
            try:
                item = self.items.popleft()
            except IndexError:
                return
            fail_item(item, error)


def _follow(outcome: SendOutcome[Any]) -> None:
    # A message that is still in the outbox is followed when the intake takes it.
    if (placed := outcome.placed()) is not None:
        follow(*placed, outcome)
