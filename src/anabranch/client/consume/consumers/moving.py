"""The half of stream and queue consumers that moves or deletes their subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

from anabranch.aio import is_transient
from anabranch.client.consume.acknowledgements.given_back import check_topic
from anabranch.client.consume.handlers.runnable import RunnableConsumer
from anabranch.client.consume.inbox.waiters import Waiters
from anabranch.client.decide.consuming.seeking import SeekMove, plan_seek
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline
from anabranch.client.net.topics.layout_watch import look_up_layout
from anabranch.client.options import Seconds, one_of, wall_ms
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerBusyError,
    InvalidConfigurationError,
    MetadataError,
    NotConnectedError,
    OperationTimeoutError,
    TopicNotFoundError,
)
from anabranch.model.ids import MessageId

T = TypeVar("T")

SeekWord = Literal["earliest", "latest"]
SeekTarget = datetime | SeekWord | Message[Any] | MessageId
"""A time with its time zone, the first or the last message, or a message behind which reading goes on."""


class MovableConsumer(RunnableConsumer[T]):
    """Has a subscription of its own topic, which it can move and delete."""

    subscription: str
    _options: Any
    _notes_acks = False
    """Whether an acknowledgement can neither wait nor fail, so that it is only noted at first."""

    async def seek(self, to: SeekTarget, timeout: Seconds | None = None) -> None:
        """Go on at another place of the topic: at a time, at its beginning or end, or behind a message.

        This moves the subscription, for all its consumers. Messages that were received before are not
        acknowledged any more. A message moves its own segment and those made of it later; an id taken from a
        message of a stream consumer also moves the other segments to where they were then. A time is that at
        which the broker stored the messages. Raises OperationTimeoutError after `timeout`, by
        default the operation timeout; then the subscription may be moved in part, and the call can be
        repeated.
        """
        target = checked_target(to)
        if isinstance(to, Message):
            check_topic(to.topic, self._given_topic)
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        deadline = Deadline(self._limit_s(timeout))
        self._hold_back("seek")
        try:
            if not await deadline.allow(self._acks_confirmed()):
                raise OperationTimeoutError(f"{self.topic}: acknowledgements before a seek are not confirmed")
            for source in self._sources.values():
                source.void()
            layout = await self._retry(
                lambda: look_up_layout(self._pool, self._options.topic, create=False), deadline
            )
            for move in plan_seek(target, layout.layout):
                await self._retry(partial(self._move, move), deadline)
        finally:
            for source in list(self._sources.values()):
                source.start_over()
            self._release("seek")

    async def unsubscribe(self, timeout: Seconds | None = None) -> None:
        """Delete the subscription and close this consumer, which must be the last one.

        Raises ConsumerBusyError if the subscription has other consumers; it stays then. A topic that was
        deleted took its subscription along. This consumer is closed in any case.
        """
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        deadline = Deadline(self._limit_s(timeout))
        try:
            await self._end_run(deadline)
            self._end_waiting()
            with suppress(TopicNotFoundError):
                await self._retry(self._delete_if_there, deadline, (MetadataError,))
        except MetadataError as error:
            raise ConsumerBusyError(f"{self.subscription} is not deleted: {error}") from error
        finally:
            await self._close_by(deadline)

    async def _delete_if_there(self) -> None:
        """As `_delete`; raises TopicNotFoundError if the topic was deleted, and this consumer with it."""
        try:
            await self._delete()
        except (MetadataError, NotConnectedError):
            await look_up_layout(self._pool, self._options.topic, create=False)
            raise

    # For a consumer of several topics.

    def _join(self, waiting: Waiters) -> None:
        """Wake the callers that wait for messages of several consumers."""
        self._waiting = waiting

    async def _breathe(self) -> None:
        """Let commands to the broker leave."""
        if self._asked:
            self._asked = False
            await asyncio.sleep(0)

    async def _retry(
        self,
        attempt: Callable[[], Awaitable[Any]],
        deadline: Deadline,
        final: tuple[type[AnabranchError], ...] = (),
    ) -> Any:
        what = f"moving or deleting the subscription {self.subscription}"
        try:
            return await self._pool.retry(
                attempt,
                what,
                lambda error: is_transient(error) and not isinstance(error, final),
                deadline.left_s,
            )
        except OperationTimeoutError:
            raise
        except AnabranchError as error:
            if error.retryable and not isinstance(error, final):
                raise OperationTimeoutError(f"{what} was not done in time: {error}") from error
            raise

    async def _move(self, move: SeekMove) -> None:
        """Carry out one move; raises NotConnectedError for another attempt."""
        raise NotImplementedError

    async def _delete(self) -> None:
        """Delete the subscription; raises ConsumerBusyError or MetadataError if it has other consumers."""
        raise NotImplementedError


def checked_target(to: SeekTarget) -> int | SeekWord | MessageId:
    """A target that the planning understands; raises InvalidConfigurationError."""
    if isinstance(to, datetime):
        return wall_ms("to", to)
    if isinstance(to, Message):
        # The vector of an id tells where the other segments are now, and not when the message was received.
        return replace(to.id, vector=())
    if isinstance(to, MessageId):
        return to
    if not isinstance(to, str):
        raise InvalidConfigurationError(
            f'seek needs a datetime, "earliest", "latest", a message or its id, not {to!r}'
        )
    one_of("to", to, SeekWord)
    return to
