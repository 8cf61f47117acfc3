"""Delivery to the subscriptions of a live topic: an entry goes out at once, or never.

An entry goes to a consumer that has permits and whose connection takes more bytes. Otherwise it is dropped
and counted. No entry waits, and none is delivered twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.read_path import WRITE_BYTES, OutgoingFrames, ReadPath
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.reading.reading import Reading
from anabranch.broker.serving.reading.sharing import ByKey, OneActive, RoundRobinSharing
from anabranch.broker.serving.reading.strategies import Kind
from anabranch.errors import NotAllowedError
from anabranch.ledger.storage import Entry
from anabranch.protocol.entry.claims import permits_for
from anabranch.protocol.hot_frames import encode_delivery
from anabranch.protocol.pb import pulsar_pb2 as pb


class LiveReading(Reading):
    """Hands entries out as they pass; it has no position and takes nothing back."""

    def turn(self) -> bool:
        return False

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        """Nothing to deliver again, because the broker does not keep entries of a live topic."""

    def pass_on(self, entries: Sequence[Entry], ledger: int) -> None:
        """Deliver each entry to its consumer, or count it as dropped."""
        frames: dict[ServedConsumer, OutgoingFrames] = {}
        for entry in entries:
            consumer = self.sharing.receiver_of(entry)
            if not isinstance(consumer, ServedConsumer) or not consumer.ready:
                self.path.counters.messages_dropped += entry.count
                continue
            outgoing = frames.setdefault(consumer, OutgoingFrames())
            self._pack(outgoing, consumer, entry, ledger)
            if outgoing.size >= WRITE_BYTES:
                # Ask the connection again whether it takes more bytes before the next entry.
                self.path.send(consumer, frames.pop(consumer))
        for consumer, outgoing in frames.items():
            self.path.send(consumer, outgoing)

    def drop(self, entries: Sequence[Entry]) -> None:
        """Deliver none of these entries."""
        self.path.counters.messages_dropped += sum(entry.count for entry in entries)

    def _pack(self, outgoing: OutgoingFrames, consumer: ServedConsumer, entry: Entry, ledger: int) -> None:
        _, number, index, count, timestamp, data = entry
        stamp = (timestamp, index + count - 1) if consumer.link.wants_entry_metadata else None
        # Go's client takes a second message of one id for a repetition, so each entry has its own id.
        outgoing.buffers += encode_delivery(
            consumer.id, ledger, number, self.path.partition, 0, (), consumer.epoch, stamp, data
        )
        messages = permits_for(count, data)
        consumer.permits -= messages
        outgoing.entries += 1
        outgoing.messages += messages
        outgoing.size += len(data)


def make_live_reading(
    path: ReadPath, kind: Kind, meta: pb.KeySharedMeta, before: Reading | None
) -> LiveReading:
    """Return the strategy for the first consumer of a subscription; the one `before` has nothing to keep."""
    if kind == pb.CommandSubscribe.Shared:
        return LiveReading(path, RoundRobinSharing())
    if kind != pb.CommandSubscribe.Key_Shared:
        failover = kind == pb.CommandSubscribe.Failover
        return LiveReading(path, OneActive(path.partition, failover=failover))
    if meta.entryBucketDispatch:
        raise NotAllowedError("only segments of scalable topics are shared by buckets")
    sticky = meta.keySharedMode == pb.STICKY
    return LiveReading(path, ByKey(sticky=sticky, by_ranges=path.keyed.by_ranges))
