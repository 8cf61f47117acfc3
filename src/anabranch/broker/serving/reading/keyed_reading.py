"""Reading for Key_Shared: one consumer at a time reads a key, or a bucket, and in order.

Fresh entries are read here. An entry that cannot go out at once waits in its lane (`lanes`), and the entries
of other keys behind it go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.broker.dispatch.drains import slots_of
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.lanes.subscription_lanes import SubscriptionLanes, outer_of
from anabranch.broker.serving.reading.reading import Reading
from anabranch.broker.serving.reading.sharing import ByBucket, ByKey

DELAYED_KEY = "anabranch.delayed"
"""Subscribe metadata: later entries of a key `wait` for a delayed one, or `pass` it."""


class KeyedReading(Reading):
    """Key_Shared: entries of a key, or of a bucket, go to one consumer at a time and in order."""

    def __init__(
        self, path: ReadPath, *, sticky: bool = False, boundaries: tuple[int, ...] | None = None
    ) -> None:
        self._lanes = lanes = SubscriptionLanes(path, boundaries)
        self._owners: ByKey | ByBucket
        if boundaries is None:
            self._owners = ByKey(sticky=sticky, by_ranges=path.keyed.by_ranges)
        else:
            self._owners = ByBucket(boundaries)
        super().__init__(path, self._owners, lanes.outstanding, lanes)
        self._closed: frozenset[int] = frozenset()

    def consumers_changed(self) -> None:
        if self.consumers:
            chosen = (consumer.options.metadata.get(DELAYED_KEY) for consumer in self.consumers)
            self._lanes.delayed_pass = all(choice == "pass" for choice in chosen)
        else:
            self._lanes.remember()
        owners = self._owners.owners(self.consumers, self.open)
        self._closed = owners.closed
        self.path.counters.bucket_moves += owners.moves
        self._lanes.share(owners)

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        """Deliver these entries of a consumer again, each with the later ones of its slot that it has."""
        outstanding, own = self._lanes.outstanding, consumer.outstanding
        slots = outstanding.by_ordinal
        named = {ordinal for ordinal in ordinals if ordinal in own}
        firsts: dict[int, int] = {}
        for ordinal in sorted(named):
            firsts.setdefault(slots[ordinal][1], ordinal)
        later: list[int] = []
        if len(named) < len(own):
            # The later entries of a slot went out after the earlier ones.
            unseen = len(named)
            for ordinal in reversed(own):
                if not unseen:
                    break
                if ordinal in named:
                    unseen -= 1
                elif firsts.get(slots[ordinal][1], ordinal) < ordinal:
                    later.append(ordinal)
        outstanding.give_back(named, asked=True)
        outstanding.give_back(later, asked=False)
        for slot in firsts:
            self._lanes.stop_for_retry(slot, retry)

    def turn(self) -> bool:
        lanes = self._lanes
        lanes.begin_turn()
        if lanes.outstanding.returning:
            lanes.take_back()
            if lanes.outstanding.returning:
                return True
        more = lanes.deliver()
        if any(reader.ready for reader in lanes.readers):
            more |= lanes.find_waiting()
            more |= self._fresh_turn()
        more |= lanes.end_turn()
        return more

    # The path of every fresh entry of a Key_Shared subscription. An entry goes out at once if its slot has no
    # lane, its owner is ready and no other consumer has entries of the slot; else it waits, and the next
    # entry is looked at. So a stuck key costs the others nothing but the memory of its lane: an ordinal of a
    # few bits, not the entry, which is read a second time when it may go out (the last 4 MiB stay in memory).
    # Reading stops only at the bounds of `KeyedStrategy`: with a fixed window, enough entries of one stuck
    # key would stop all keys.
    #
    # A bucket that is not open yet (PIP-486: an ancestor has not drained it) has no owner, so its entries
    # wait in its lane too. A batch that does not say which buckets it touches stops reading then: it could
    # hide a key of a closed bucket, and letting later entries pass could reorder that key.
    def _fresh_turn(self) -> bool:
        path, lanes = self.path, self._lanes
        dispatch, outstanding, ages, aside = lanes.dispatch, lanes.outstanding, lanes.ages, lanes.aside
        acks = path.cursor.acks
        path.next = acks.next_pending(path.next)
        room = lanes.room()
        if room <= 0 or outstanding.blocked:
            return False
        entries = path.source.read(path.next, room)
        if not entries:
            return False
        now_ms = lanes.now_ms
        for entry in entries:
            ordinal = entry.ordinal
            path.next = ordinal + 1
            if ordinal in acks:
                continue
            if self._closed and slots_of(entry.data) is None:
                # A key of this batch may belong to a closed bucket, so no later entry may overtake it.
                path.next = ordinal
                return False
            outer = outer_of(entry)
            slot = lanes.slot_of(outer)
            if outer.deliver_at_ms > now_ms:
                lanes.delay(ordinal, slot, outer.deliver_at_ms, len(entry.data))
                continue
            ack_set, messages = path.pending_of(entry)
            receiver = dispatch.offer(ordinal, slot, messages, size=len(entry.data), now_ms=now_ms)
            if isinstance(receiver, ServedConsumer):
                ages.add(ordinal, now_ms)
                outstanding.give(receiver, entry, slot, messages, ack_set)
                if outstanding.blocked:
                    return False
            else:
                aside.keep(entry)
        return path.next < path.source.end
