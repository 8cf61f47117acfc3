"""The half of stream and queue consumers that runs handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, Unpack

from anabranch.aio import Backoff
from anabranch.arguments import check_optional
from anabranch.client.consume.failures.letters import DeadLetters, LetterProducers, OpenLetters
from anabranch.client.consume.failures.parking import behind_in_lane, park_at_broker
from anabranch.client.consume.handlers.attempts import begin, check_callable
from anabranch.client.consume.handlers.run_options import (
    RETRY,
    Handler,
    RunArguments,
    RunOrder,
    RunStatistics,
    checked_run,
)
from anabranch.client.consume.handlers.running import Running
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.attachment import SubscriptionOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline
from anabranch.client.options import DeadLetter, Seconds, log
from anabranch.client.received import Received
from anabranch.errors import AlreadyClosedError, AnabranchError, InvalidConfigurationError, in_words

T = TypeVar("T")

FLUSH_S = 5.0
"""Longest wait for the confirmation of acknowledgements at the end of a run."""


class RunnableConsumer(Inbox[T]):
    """Hands messages to the handlers of one run at a time."""

    _run_order: RunOrder = "key"
    """The order of handlers unless the application chooses one."""
    _run_retry: Backoff = RETRY
    """The pauses after failures unless the application chooses them."""
    _dead_letter: DeadLetter | None = None
    _letters: LetterProducers
    _dead_letters: DeadLetters | None = None
    _running: Running[T] | None = None

    async def run(
        self,
        handler: Handler[T],
        *,
        concurrency: int = 500,
        order: RunOrder | None = None,
        **more: Unpack[RunArguments],
    ) -> RunStatistics:
        """Handle messages, up to `concurrency` at a time, until the run is stopped; return its statistics.

        With `order="key"` the handlers of one key run one after another, in the order of the messages; this
        is the default where the consumer keeps the order of keys. Each message is acknowledged after its
        handler has returned; a stream consumer acknowledges each segment up to its first unfinished message.
        A handler that raises gets its message again after a pause, in which later messages of its key wait.

        The run ends when it is cancelled, when the consumer is closed, or as `stop` says. Messages that were
        not handled stay unacknowledged; if the consumer stays open, it hands them out again. The run raises
        the errors of `receive`. RunArguments describes the other arguments.
        """
        check_callable(handler)
        options = checked_run(concurrency, order, self._run_order, self._run_retry, more)
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if self._running is not None and not self._running.ended:
            raise InvalidConfigurationError("this consumer runs already; it has one run at a time")
        if self._interceptors is not None:
            handler = self._interceptors.around(partial(begin, handler))
        running = self._running = Running(self, handler, options)
        try:
            await running.run()
        finally:
            await self._flush_quietly()
        return running.statistics

    @property
    def run_statistics(self) -> RunStatistics | None:
        """The numbers of the present run, or of the last one; None before the first."""
        return None if self._running is None else self._running.statistics

    async def _stop_and_close(self, deadline: Deadline) -> None:
        try:
            await self._end_run(deadline)
        finally:
            await self._close(deadline)

    async def _end_run(self, deadline: Deadline) -> None:
        """End the run, if there is one; acknowledgements get the last part of the time."""
        if self._running is not None:
            await self._running.stop(deadline, deadline.left_s - min(deadline.left_s / 2, FLUSH_S))

    async def _flush_quietly(self) -> None:
        """Confirm the acknowledgements at the end of a run; they stay noted if that fails."""
        if self._closed or self._failure is not None:
            return
        try:
            await self.flush_acks(min(FLUSH_S, self._pool.operation_timeout_s / 2))
        except AnabranchError as error:
            log.warning("%s: after the run: %s", self.topic, error)

    # For the run, and for the consumers of segments.

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        raise NotImplementedError

    def _finished(self, message: Message[T]) -> None:
        """Note that the handler of a message has returned."""
        raise NotImplementedError

    def _redeliveries(self, message: Message[T]) -> int:
        """How often a message was delivered before."""
        return message.redelivery_count

    async def _give_back(self, message: Message[T], delay_s: float) -> bool:
        """Let the broker deliver a message again; False if the consumer keeps it for the order of its key."""
        return False

    def _use_letters(self, options: SubscriptionOptions, open_letters: OpenLetters) -> None:
        """Treat messages that fail too often as the policy in the options says."""
        policy = self._dead_letter = options.dead_letter
        self._letters = LetterProducers(self._pool, self._tasks, open_letters)
        if policy is not None:
            self._dead_letters = DeadLetters(policy, self._letters, options.subscription, self._given_topic)

    def _attempt_failed(self, message: Message[T], error: BaseException) -> None:
        """Note that the handler of a message has raised."""
        if self._interceptors is not None:
            self._interceptors.refused(message, in_words(error))

    async def _bury(self, message: Message[T], reason: str) -> None:
        """Send a message to the dead letter topic and acknowledge it; raises if that fails."""
        assert self._dead_letters is not None
        await self._dead_letters.forward_one(message, reason)
        self._finished(message)

    def _park(self, message: Message[T], reason: str) -> bool:
        """Give a message and the later ones of its bucket to the broker; False if it has no lane for them."""
        entry: Received = message._entry
        source = self._sources.get(entry.source.segment_id)
        if source is None or source is not entry.source or source.released or not source.connected:
            return False
        is_behind = behind_in_lane(source, entry)
        if is_behind is None:
            return False
        self._unhold([message, *self._take_back(lambda other: is_behind(other._entry))])
        park_at_broker(source, message, is_behind, reason)
        return True

    def _take_back(self, unwanted: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """Remove messages that the application does not have, because the broker keeps them."""
        kept = [message for message in self._run if not unwanted(message)]
        taken = [message for message in self._run if unwanted(message)]
        self._run = kept
        return taken if self._running is None else taken + self._running.withdraw(unwanted)

    async def release_parked(self, key: str | None = None) -> int:
        """Let keys continue that this consumer has parked, or one of them; return their number.

        A consumer that shares its segments by buckets parks at the broker: `anabranch lane release` is for
        those.
        """
        check_optional("key", key, str, "the text of a key")
        return (
            0 if self._running is None else self._running.release(lambda message: key in (None, message.key))
        )

    async def _close_letters(self, deadline: Deadline) -> None:
        await self._letters.close_by(deadline)

    def _voided(self, source: SegmentConsumer) -> None:
        super()._voided(source)
        self._withdraw(source)

    def _active_changed(self, source: SegmentConsumer) -> None:
        if not source.active and self._running is not None:
            # Another consumer gets the messages, so they may come back here later.
            self._unhold(self._running.withdraw(lambda message: message._entry.source is source))

    def _withdraw(self, source: SegmentConsumer) -> None:
        """Start no handler for messages of a segment that the broker delivers again, here or elsewhere."""
        if self._running is not None:
            self._running.withdraw(lambda message: message._entry.source is source)
