"""The entries of a queue consumer whose turn it is: handed out, given up as dead letters, or passed over."""

from __future__ import annotations

from typing import Any

from anabranch.client.consume.acknowledgements.single_acks import SingleAcks
from anabranch.client.consume.failures.letters import DeadLetters, Letters
from anabranch.client.consume.failures.redelivery import Redelivery
from anabranch.client.consume.handlers.runs import ReadingParts
from anabranch.client.consume.segments.attachment import QueueOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.received import Received
from anabranch.errors import AnabranchError


class QueueEntries:
    """The `EntryPolicy` of queue consumers."""

    def __init__(
        self,
        reading: ReadingParts[Any],
        acks: SingleAcks,
        letters: Letters,
        redelivery: Redelivery,
        options: QueueOptions,
    ) -> None:
        self._context, self._bad = reading.context, reading.inbox.bad
        self._acks, self._letters, self._redelivery = acks, letters, redelivery
        self._options = options
        # A consumer that keeps the order of keys counts failures itself, and its messages come from memory.
        self._redelivers = options.order != "key"

    def wants(self, entry: Received) -> bool:
        return True

    def accept(self, entry: Received) -> bool:
        """Keep an entry until all its messages are acknowledged; False if it becomes a dead letter."""
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        if not self._redelivers:
            return True
        dead = self._letters.dead
        if dead is not None and entry.redelivery_count > dead.policy.max_redeliveries:
            self._context.tasks.start(self._forward(dead, entry), f"dead letters of {source.topic}")
            return False
        if self._options.processing_s is not None:
            self._redelivery.give_back(source, entry.position, entry.wanted, self._options.processing_s)
        return True

    def pass_over(self, entry: Received) -> None:
        """Acknowledge an entry that cannot be decoded, or send it to the dead letter topic."""
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        policy = self._bad.policy_for(entry.problem())
        if policy == "dead_letter" and self._letters.dead is not None:
            forwarding = self._forward(self._letters.dead, entry)
            self._context.tasks.start(forwarding, f"bad entries of {source.topic}")
        elif policy != "fail":
            self._acks.acknowledge_bits(source, entry.position, entry.wanted, entry.whole)
            self._acks.schedule()

    async def _forward(self, dead: DeadLetters, entry: Received) -> None:
        """Send an entry to the dead letter topic and acknowledge it; give it back if sending fails."""
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        try:
            await dead.forward(entry)
            self._acks.acknowledge_bits(source, entry.position, entry.wanted, entry.whole)
            self._acks.send()
        except AnabranchError as error:
            dead.report(self._context.topic, error)
            delay_s = self._options.redelivery.delay(0, self._context.pool.rng)
            self._redelivery.give_back(source, entry.position, entry.wanted, delay_s)
