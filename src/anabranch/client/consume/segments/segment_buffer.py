"""The buffer of one segment's consumer: it asks for messages and keeps delivered entries.

It leaves out messages that the application already holds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch.client.consume.segments.ack_sender import AckSender
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress
from anabranch.client.decide.consuming.acknowledgements import Acknowledgements, LedgerEntry
from anabranch.client.decide.consuming.chunks import LOOK_S, ChunkAssembly
from anabranch.client.decide.consuming.ordering import bits_after
from anabranch.client.decide.consuming.permits import Intake, Permits
from anabranch.client.net.reconnector import Reconnector
from anabranch.client.options import log
from anabranch.client.received import Received
from anabranch.errors import RemoteProtocolError
from anabranch.model.acks import bits_at
from anabranch.model.ids import MessageId
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.client.consume.inbox.inbox import Inbox

_RELEASED = Intake.RELEASED

GIVE_BACK_S = 1.0
"""Pause before chunks whose message is with several consumers go back to the broker."""


class SegmentBuffer(AckSender):
    """The half of a segment's consumer that takes deliveries for `home`, the consumer of the topic."""

    def __init__(
        self,
        home: Inbox[Any],
        address: SegmentAddress,
        attachment: Attachment,
        permits: Permits,
        reconnector: Reconnector,
    ) -> None:
        super().__init__(home._pool, address.topic, reconnector)
        self.home: Any = home
        self.schema, self.vector = home._schema, home._vector
        self.segment_id = address.segment_id
        self.attachment, self.permits = attachment, permits
        self.intake = Intake.PAUSED if attachment.paused else Intake.OPEN
        self.entries: deque[Received] = deque()
        """Entries that were delivered and not handed out."""
        self.stale: list[Callable[[Received], bool]] = []
        """Tell the entries that the broker keeps, although it may have sent them before."""
        self._held: dict[LedgerEntry, int] = {}
        self.outstanding: deque[Received] = deque()
        """For cumulative acknowledgement: entries handed out, in order, that are not fully acknowledged."""
        self._unacked: dict[LedgerEntry, int] = {}
        self.noted: list[Received] = []
        """Entries with messages that the application acknowledged since the entry's bits were last changed.

        The bits of an entry change once for all of its messages, when `held`, `unacked` or `acks` are used.
        """
        self.floor: MessageId | None = None
        """Messages at or before this position are not handed out."""
        self.chunks = ChunkAssembly()
        self.chunked: dict[LedgerEntry, tuple[LedgerEntry, ...]] = {}
        """By the last chunk of each message that the consumer holds: the places of all its chunks."""
        self.newest: LedgerEntry = (-1, -1)
        """The place of the last delivery."""
        self._expiry: asyncio.TimerHandle | None = None
        self.active = True
        """Whether the broker sends messages; with Failover it may send them to another consumer."""

    @property
    def released(self) -> bool:
        return self.intake is _RELEASED

    @property
    def held(self) -> dict[LedgerEntry, int]:
        """Bits of messages in the buffer or with the application, neither acknowledged nor given back."""
        if self.noted:
            self._settle()
        return self._held

    @property
    def unacked(self) -> dict[LedgerEntry, int]:
        """For single acknowledgement: bits of an entry's messages that are not acknowledged."""
        if self.noted:
            self._settle()
        return self._unacked

    @property
    def acks(self) -> Acknowledgements:
        if self.noted:
            self._settle()
        return self._acks

    def _settle(self) -> None:
        """Acknowledge the noted messages, entry by entry."""
        noted, self.noted = self.noted, []
        for entry in noted:
            indexes, entry.noted, entry.noted_by = entry.noted, [], None
            self.acknowledge_bits(entry.position, _bits_of(indexes), entry.whole)

    def delivered(self, delivery: Delivery) -> None:
        """Buffer an entry without the messages that the application holds or has acknowledged."""
        if len(self.entries) > self.permits.entries_max:
            raise RemoteProtocolError(f"the broker sent more of {self.topic} than it was asked for")
        entry = self._received(delivery)
        if entry is None:
            return
        cost = entry.wanted.bit_count() + entry.surplus
        self.permits.use(cost)
        if self.intake is _RELEASED:
            return
        position, held = entry.position, self.held
        known = held.get(position, 0)
        # The broker may have sent the entry before these acknowledgements reached it.
        wanted = entry.wanted & ~known & self.acks.pending(position)
        if self.floor is not None:
            wanted &= bits_after(self.floor, *position)
        entry.wanted = wanted
        if not wanted or (self.stale and any(is_stale(entry) for is_stale in self.stale)):
            self.give_back(cost)
            return
        if surplus := cost - wanted.bit_count():
            self.give_back(surplus)
        if self.attachment.durable:
            held[position] = known | wanted
        self.entries.append(entry)
        if len(self.entries) == 1:
            self.home._ready(self)

    def _received(self, delivery: Delivery) -> Received | None:
        """The entry; None for a chunk, except for the last one: it is the place of the whole message."""
        chunk = Received(self, delivery)
        self.newest = chunk.position
        if not chunk.chunked or not self.attachment.durable or self.intake is _RELEASED:
            return chunk
        whole = self.chunks.add(chunk.position, chunk.data, self.home._loop.time())
        if whole is None:
            self.permits.use(1)
            self.give_back(1)
            if self.chunks and self._expiry is None:
                self._expiry = self.home._loop.call_later(LOOK_S, self._expire_chunks)
        self._drop_orphans()
        if whole is None:
            return None
        self.chunked[chunk.position] = whole.places
        entry = Received(self, delivery._replace(data=whole.entry))
        entry.parts = whole.parts
        return entry

    def _expire_chunks(self) -> None:
        self._expiry = None
        self.chunks.expire(self.home._loop.time())
        if self.chunks:
            self._expiry = self.home._loop.call_later(LOOK_S, self._expire_chunks)
            self._look_for_end()
        self._drop_orphans()

    def _look_for_end(self) -> None:
        """Ask the broker whether it has sent all entries of a sealed segment; no chunk follows then.

        With a Shared subscription other consumers may have the other chunks.
        """
        has_all = self.attachment.kind != pb.CommandSubscribe.Shared
        if has_all and self._connection is not None and self._connection.is_ours:
            asked = self._ask_for_last_message(self._connection)
            asked.add_done_callback(partial(self._end_found, self.newest))

    def _end_found(self, newest: LedgerEntry, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        # An entry that the broker sent before its answer arrives before the answer.
        if answer.result().all_sent and newest == self.newest:
            self.chunks.give_up_all()
            self._drop_orphans()

    def _drop_orphans(self) -> None:
        """Acknowledge chunks of messages that will never be complete.

        A Shared subscription may have given the other chunks to other consumers; there they go back.
        """
        orphans, self.chunks.orphans = self.chunks.orphans, []
        if not orphans:
            return
        if self.attachment.kind == pb.CommandSubscribe.Shared:
            self.home._loop.call_later(GIVE_BACK_S, self.redeliver, orphans)
            return
        for place in orphans:
            log.warning("%s: the chunk %d:%d belongs to no whole message", self.topic, *place)
            self.acks.add(place, 0)
        self.flush_acks()

    def acknowledge_bits(self, place: LedgerEntry, bits: int, whole: int) -> None:
        """Acknowledge messages of an entry; `whole` are the bits of all its messages."""
        left = self.unacked.get(place, whole) & ~bits
        if left:
            self.unacked[place] = left
        else:
            self.unacked.pop(place, None)
        self.unhold(place, bits)
        self.acknowledge(place, left)

    def acknowledge(self, place: LedgerEntry, left: int) -> None:
        """Acknowledge an entry, except its messages in `left`; a message in chunks with all of them."""
        self.acks.add(place, left)
        if not left:
            for part in self.chunked.pop(place, ()):
                self.acks.add(part, 0)

    def redeliver(self, places: Iterable[LedgerEntry], park: str | None = None) -> None:
        chunks = [part for place in places for part in self.chunked.pop(place, (place,))]
        super().redeliver(chunks, park)

    def take(self) -> tuple[Received, bool]:
        """Return the next entry to hand out, and whether a command asked the broker for more messages."""
        entry = self.entries.popleft()
        self.permits.fit(len(entry.data) / entry.count, emptied=not self.entries)
        return entry, self.give_back(entry.wanted.bit_count())

    def give_back(self, count: int) -> bool:
        """Note that messages left the buffer; True when a command asked the broker for more."""
        due = self.permits.give_back(count)
        if not due or self._connection is None or self.intake is _RELEASED:
            return False
        self._ask_for(due)
        return True

    def resize(self, size: int) -> None:
        """Buffer up to `size` messages from now on."""
        self.permits.resize(size)
        if self.intake is Intake.OPEN:
            self.give_back(0)

    def _ask_for(self, count: int) -> None:
        if self._connection is not None:
            self.permits.grant(count)
            self._connection.send(pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=count))

    def resume(self) -> None:
        """Ask a paused segment for messages."""
        if self.intake is Intake.PAUSED:
            self.intake = Intake.OPEN
            self._ask_for(self.permits.size)

    def reached_end(self) -> None:
        self.home._reached_end(self)

    def release(self) -> None:
        """Hand out nothing more; messages handed out before can still be acknowledged."""
        self.intake = _RELEASED
        self._drop_entries()

    def _drop_entries(self) -> None:
        self.home._dropped(self)
        self.chunks.clear()
        for entry in self.entries:
            self.unhold(entry.position, entry.wanted)
        self.entries.clear()

    def unhold(self, place: LedgerEntry, bits: int) -> None:
        """Let the broker deliver these messages again."""
        held = self.held.get(place, 0) & ~bits
        if held:
            self.held[place] = held
        else:
            self.held.pop(place, None)

    def active_changed(self, active: bool) -> None:
        """Drop what is not handed out if another consumer of the subscription gets it now."""
        self.active = active
        if not active:
            dropped = sum(entry.wanted.bit_count() for entry in self.entries)
            self._drop_entries()
            self.give_back(dropped)
        self.home._active_changed(self)


def _bits_of(indexes: list[int]) -> int:
    """As `bits_at`, at once for messages that were acknowledged in their order."""
    first, last = indexes[0], indexes[-1]
    if last - first == len(indexes) - 1 and indexes == list(range(first, last + 1)):
        return (2 << last) - (1 << first)
    return bits_at(indexes)
