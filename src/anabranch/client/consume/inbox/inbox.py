"""The inbox of a consumer: entries of several segments in, messages out, one or many at a time.

Segments with entries take turns, an entry each. The entry whose turn it is becomes the *run*: its messages
are made at once and numbered in the order they leave. A cancelled `receive` has taken no message. The inbox
does not know what becomes of messages; its `EntryPolicy` decides whether an entry may be handed out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Generic, Protocol, TypeVar

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.consume.inbox.decrypting import EntryDecryption
from anabranch.client.consume.inbox.writer_schemas import WriterSchemas
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.encryption import Decrypt
from anabranch.client.figures import State
from anabranch.client.message import Message, entry_of, index_of, messages_of, number_of
from anabranch.client.options import Seconds, optional_seconds
from anabranch.client.received import Received
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError, ReceiveTimeoutError
from anabranch.model.acks import bits_at

T = TypeVar("T")

Loading = Callable[[Callable[[], bool]], bool]
"""Goes around the loading of the next entry, its argument; both return whether the run has messages."""


class EntryPolicy(Protocol):
    """Decides about the entries whose turn it is."""

    def wants(self, entry: Received) -> bool:
        """Whether an entry is decoded at all; False after covering one that other members read."""

    def accept(self, entry: Received) -> bool:
        """Note that an entry is about to be handed out; False keeps it from the application."""

    def pass_over(self, entry: Received) -> None:
        """Cover an entry that is not handed out; unless the policy is to fail, see to its acknowledgement."""


class Inbox(Generic[T]):
    """Receives for one consumer."""

    def __init__(
        self,
        context: ConsumerContext,
        sources: Mapping[int, SegmentConsumer],
        bad: BadEntryRecord,
        encryption: Decrypt | None,
    ) -> None:
        self._context = context
        self.run: list[Message[T]] = []
        """The messages of the run that are not handed out, last message first."""
        self.entry: Received | None = None
        self.number = 0
        """The entry of the run, and the number of its last message."""
        self.line: deque[SegmentConsumer] = deque()
        """Segments that have entries, in the order of their turns."""
        self.bad = bad
        self.stopped = False
        """Whether the consumer is closed or holds messages back."""
        self._held_back: dict[str, None] = {}
        """Why no message is handed out although the consumer is open."""
        self._asked = False
        """Whether a command asked the broker for more; it leaves only when the event loop runs."""
        self._writers = WriterSchemas.needed_by(context, sources, self.ready)
        self._decryption = (
            None if encryption is None else EntryDecryption(context, encryption, bad, self.ready)
        )
        self._policy: EntryPolicy
        self.load: Callable[[], bool] = self._load
        """Make the next entry the run; returns False when there is none."""

    def follow(self, policy: EntryPolicy, loading: Loading | None = None) -> None:
        """Ask this policy about entries; called once, when the consumer is made."""
        self._policy = policy
        if loading is not None:
            self.load = partial(loading, self._load)

    # Receiving.

    async def next(self, timeout: Seconds | None) -> None:
        """Return when the run has a message; raises what `receive` raises."""
        context = self._context
        if asyncio.get_running_loop() is not context.loop:
            raise InvalidConfigurationError("this consumer belongs to another event loop")
        limit = optional_seconds("timeout", timeout)
        if self._asked:
            self._asked = False
            await asyncio.sleep(0)
        if context.closed:
            raise AlreadyClosedError("the consumer is closed")
        if self.has_message():
            return
        try:
            async with asyncio.timeout(limit):
                while not self.has_message():
                    self.bad.raise_once()
                    context.raise_trouble()
                    await context.waiting.wait()
                    if context.closed:
                        raise AlreadyClosedError("the consumer was closed")
        except TimeoutError:
            raise ReceiveTimeoutError(f"no message came within {limit:g} s") from None
        if context.waiting:
            # The run may have a message for another waiting caller.
            context.waiting.wake()

    async def receive_many(self, max_messages: int, timeout: Seconds | None = None) -> list[Message[T]]:
        """Wait for a message and return the buffered ones, up to `max_messages`; empty after the timeout."""
        try:
            await self.next(timeout)
        except ReceiveTimeoutError:
            return []
        return self.take(max_messages)

    def poll(self, limit: int) -> list[Message[T]]:
        """Return the buffered messages, perhaps none; raises the errors of `receive`."""
        if self.has_message():
            return self.take(limit)
        self.bad.raise_once()
        self._context.raise_trouble()
        return []

    def has_message(self) -> bool:
        """Return whether the run has a message that may be handed out."""
        return not self.stopped and (bool(self.run) or self.load())

    def take(self, limit: int) -> list[Message[T]]:
        """Return the messages of the run and of the entries after it, up to `limit`."""
        # The run is a list with its last message first, so that `receive` pops and this method slices:
        # neither moves the messages that stay.
        taken: list[Message[T]] = []
        while True:
            run = self.run
            room = limit - len(taken)
            if len(run) > room:
                taken += run[: -room - 1 : -1]
                del run[-room:]
                return taken
            run.reverse()
            taken += run
            self.run = []
            if len(taken) == limit or not self.load():
                return taken

    async def breathe(self) -> None:
        """Let commands to the broker leave."""
        if self.asked_for_more():
            await asyncio.sleep(0)

    def asked_for_more(self) -> bool:
        """Return whether a command to the broker waits for the event loop; the caller lets it run then."""
        asked, self._asked = self._asked, False
        return asked

    # Loading.

    def _load(self) -> bool:
        # One entry is decoded at a time, when the application has taken all messages before it: a slow
        # application keeps entries as bytes, and a lost connection drops few decoded messages.
        while self.line and self._context.failure is None and self.bad.to_raise is None:
            source = self.line.popleft()
            if not source.entries or self._must_wait(source):
                continue
            entry, asked = source.take()
            self._asked |= asked
            if source.entries:
                self.line.append(source)
            if not self._policy.wants(entry):
                continue
            if (problem := entry.problem()) is not None:
                self.bad.add(entry, problem, self._context.topic, self.number)
                self._policy.pass_over(entry)
                if self.bad.to_raise is not None:
                    # Another waiting receive continues after the entry.
                    self._context.waiting.wake()
            elif self._policy.accept(entry):
                self._start_run(entry)
                if self.run:
                    return True
        return False

    def _must_wait(self, source: SegmentConsumer) -> bool:
        """Return whether a key or schema is missing for the next entry of a segment."""
        if self._decryption is not None and self._decryption.waits(source):
            return True
        return self._writers is not None and self._writers.waits(source)

    def _start_run(self, entry: Received) -> None:
        entry.first_number = self.number + 1
        indexes, self.entry = entry.wanted_indexes(), entry
        self.number += len(indexes)
        self.run = messages_of(entry, indexes, self.number)
        if self._context.interceptors is not None:
            self._context.interceptors.received(reversed(self.run))

    def put(self, messages: list[Message[T]], asked: bool) -> None:
        """Make messages of another inbox, which have the numbers behind the last one, the run."""
        self.number += len(messages)
        self.run = messages[::-1]
        self._asked |= asked

    # Messages that come again.

    def ready(self, source: SegmentConsumer) -> None:
        """Give turns to a segment that has entries again, and wake a waiting receive."""
        self.line.append(source)
        self._context.waiting.wake()

    def drop(self, source: SegmentConsumer, *, everything: bool) -> None:
        """Drop messages of the run that the broker delivers again.

        Messages that were handed out and given back have lower numbers than the others. This client still
        holds them, and drops them only with `everything`.
        """
        run = self.run
        if not run:
            return
        fresh = 0
        while fresh < len(run) and number_of(run[fresh]) == self.number:
            if entry_of(run[fresh]).source is not source:
                break
            self.number -= 1
            fresh += 1
        unhold(run[:fresh])
        del run[:fresh]
        if everything:
            unhold([message for message in run if entry_of(message).source is source])
            self.run = [message for message in run if entry_of(message).source is not source]

    def take_back(self, unwanted: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """Remove messages from the run, because the broker keeps them."""
        taken = [message for message in self.run if unwanted(message)]
        self.run = [message for message in self.run if not unwanted(message)]
        return taken

    def hand_out_again(self, messages: Sequence[Message[T]]) -> None:
        """Hand out messages before all others; the application had them, and has not acknowledged them."""
        if messages and not self._context.closed:
            self.run += reversed(messages)
            self._context.waiting.wake()

    # Holding messages back.

    def hold_back(self, why: str) -> None:
        """Hand out no message until `release` is called with the same reason."""
        self._held_back[why] = None
        self.stopped = True

    def release(self, why: str) -> None:
        """Hand out messages again, unless there is another reason not to."""
        self._held_back.pop(why, None)
        self.stopped = self._context.closed or bool(self._held_back)
        if not self.stopped:
            self._context.waiting.wake_all()

    @property
    def paused(self) -> bool:
        """Whether the application has paused the consumer."""
        return "pause" in self._held_back

    @property
    def state(self) -> State:
        """Whether the consumer is open, paused, closed, or has failed: then receiving raises the reason."""
        if self._context.closed:
            return "closed"
        if self._context.failure is not None:
            return "failed"
        return "paused" if self.paused else "open"

    async def resumed(self, timeout: Seconds | None) -> None:
        """Wait while the consumer is paused; raises ReceiveTimeoutError, or AlreadyClosedError."""
        context, limit = self._context, optional_seconds("timeout", timeout)
        try:
            async with asyncio.timeout(limit):
                while self.paused and not context.closed:
                    await context.waiting.wait()
        except TimeoutError:
            raise ReceiveTimeoutError(f"the consumer was paused for {limit:g} s") from None
        if context.closed:
            raise AlreadyClosedError("the consumer was closed")

    def close(self) -> None:
        """Hand out nothing any more, and end waiting receives."""
        self._context.closed = self.stopped = True
        self.run = []
        self._context.missing.found()
        self._context.waiting.wake_all()


def unhold(messages: Iterable[Message[T]]) -> None:
    """Let the broker deliver messages again that the application does not have."""
    for entry, group in groupby(messages, key=entry_of):
        left = bits_at([index_of(message) for message in group])
        entry.source.unhold(entry.position, left)  # type: ignore[attr-defined]
        entry.wanted &= ~left
