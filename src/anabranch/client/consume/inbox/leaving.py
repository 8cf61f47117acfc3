"""The beginning and the end of a consumer: the first answers of its segments, and leaving in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self

from anabranch.aio import TaskRegistry
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.closing import Closing, Deadline, farewell, took_too_long
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.trouble import RoleTrouble
from anabranch.client.options import Seconds, log, optional_seconds
from anabranch.errors import AnabranchError, OperationTimeoutError


class LeavingConsumer:
    """A consumer of several segments that ends in time, also without its brokers."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._tasks = TaskRegistry()
        self._sources: dict[int, SegmentConsumer] = {}
        """The consumers of the segments that are read, by segment id."""
        self._closing = Closing()
        self._role = RoleTrouble(lambda: self.topic, pool.ends)
        self._failure: AnabranchError | None = None
        """Why no more messages can be handed out."""

    @property
    def topic(self) -> str:
        """The name of the topic that the broker resolved."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        # A coroutine that is destroyed can wait for nothing.
        if kind is not GeneratorExit:
            await self.close()

    async def close(self, timeout: Seconds | None = None) -> None:
        """End waiting receives and iterations, confirm acknowledgements and leave the topic.

        The consumer is closed after `timeout` in any case, by default after the operation timeout.
        Acknowledgements that the broker did not confirm are logged. A cancelled call closes at once.
        """
        await self._close_by(Deadline(self._limit_s(timeout)))

    async def _close_by(self, deadline: Deadline) -> None:
        """As `close`, with the deadline of the caller."""
        raise NotImplementedError

    async def _close(self, deadline: Deadline) -> None:
        raise NotImplementedError

    def _limit_s(self, timeout: Seconds | None) -> float:
        limit = optional_seconds("timeout", timeout)
        return self._pool.operation_timeout_s if limit is None else limit

    @asynccontextmanager
    async def _close_on_error(self) -> AsyncIterator[Deadline]:
        """Close the consumer if the block fails; the block has to be done by the deadline that it gets."""
        try:
            yield Deadline(self._pool.operation_timeout_s)
            self._role.opened = True
        except (Exception, asyncio.CancelledError):
            await self._close_by(Deadline(0.0))
            raise

    async def _first_answers(
        self, deadline: Deadline, answer: Callable[[SegmentConsumer], Awaitable[None]]
    ) -> None:
        """Wait for the first answer about each segment; raises OperationTimeoutError at the deadline."""
        for source in list(self._sources.values()):
            if not await deadline.allow(answer(source)):
                limit_s = self._pool.operation_timeout_s
                raise took_too_long(f"subscribing to {source.topic}", limit_s, source.problem)

    async def _confirm_acks(self, timeout: Seconds | None) -> None:
        """Return when the broker has confirmed all acknowledgements that were sent."""
        limit_s = self._limit_s(timeout)
        if not await Deadline(limit_s).allow(self._acks_confirmed()):
            raise OperationTimeoutError(
                f"{self.topic}: acknowledgements are not confirmed after {limit_s:g} s; "
                "the consumer sends them again when it is connected again"
            )

    async def _acks_confirmed(self) -> None:
        for source in list(self._sources.values()):
            await source.acks_confirmed()
        if self._failure is not None:
            raise self._failure

    async def _leave_segments(self, deadline: Deadline) -> None:
        """Confirm the acknowledgements that were sent, until the deadline, then leave all segments."""
        sources = list(self._sources.values())
        for source in sources:
            source.release()
        why = "the timeout of close is over"
        try:
            if await deadline.allow(self._acks_confirmed()):
                return
        except AnabranchError as error:
            why = str(error)
        finally:
            await farewell([source.hang_up() for source in sources], deadline)
        log.warning("%s: acknowledgements were not confirmed: %s", self.topic, why)

    def _role_refused(self, error: AnabranchError) -> None:
        """End when the broker refuses the role for good; other errors are handled elsewhere."""
        if self._failure is None and self._role.ends(error):
            self._fail(error)
            self._leave_at_once()

    def _leave_at_once(self) -> None:
        """Leave all segments without waiting for acknowledgements."""
        for source in self._sources.values():
            self._tasks.start(source.close(), f"leave {source.topic}")

    def _fail(self, error: AnabranchError) -> None:
        """Raise `error` in every receive."""
        raise NotImplementedError
