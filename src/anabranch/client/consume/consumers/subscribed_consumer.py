"""The side of consumers with a subscription that applications see: runs, seeking and unsubscribing."""

from __future__ import annotations

from typing import Generic, TypeVar, Unpack

from anabranch.arguments import check_optional
from anabranch.client.consume.consumers.subscription_parts import SeekTarget, SubscriptionParts
from anabranch.client.consume.handlers.attempts import check_callable
from anabranch.client.consume.handlers.run_options import (
    Handler,
    RunArguments,
    RunOrder,
    RunStatistics,
    checked_run,
)
from anabranch.client.options import Seconds

T = TypeVar("T")


class SubscribedConsumer(Generic[T]):
    """Runs handlers, and moves or deletes the subscription. The other base class of consumers receives."""

    parts: SubscriptionParts[T]

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
        parts = self.parts
        return await parts.run(
            handler, checked_run(concurrency, order, parts.run_order, parts.run_retry, more)
        )

    @property
    def run_statistics(self) -> RunStatistics | None:
        """The numbers of the present run, or of the last one; None before the first."""
        return self.parts.runs.statistics

    async def seek(self, to: SeekTarget, timeout: Seconds | None = None) -> None:
        """Continue at another place of the topic: at a time, at its beginning or end, or after a message.

        This moves the subscription, for all its consumers. Messages that were received before are not
        acknowledged any more. A message moves its own segment and those made of it later; an id taken from a
        message of a stream consumer also moves the other segments to where they were then. A time is that at
        which the broker stored the messages. Raises OperationTimeoutError after `timeout`, by default the
        operation timeout; then the subscription may be moved in part, and the call can be repeated.
        """
        await self.parts.seek(to, timeout)

    async def unsubscribe(self, timeout: Seconds | None = None) -> None:
        """Delete the subscription and close this consumer, which must be the last one.

        Raises ConsumerBusyError if the subscription has other consumers; it stays then. A topic that was
        deleted took its subscription along. This consumer is closed in any case.
        """
        await self.parts.unsubscribe(timeout)

    async def release_parked(self, key: str | None = None) -> int:
        """Let keys continue that this consumer has parked, or one of them; return their number.

        A consumer that shares its segments by buckets parks at the broker: `anabranch lane release` is for
        those.
        """
        check_optional("key", key, str, "the text of a key")
        return self.parts.failures.release_parked(key)
