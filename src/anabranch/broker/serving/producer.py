"""One producer on one log: the append path from a SEND to its receipt.

Everything per entry happens here and in the log, without waiting, without a task and without a log line.
Receipts and errors leave in the order of the SENDs, as clients expect.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from anabranch.broker.serving.client_link import ClientLink
from anabranch.errors import (
    AnabranchError,
    ChecksumError,
    NotAllowedError,
    PersistenceError,
    RemoteProtocolError,
)
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.inheritance import Known
from anabranch.protocol.commands import NO_ID, Send, encode_receipt, read_outer
from anabranch.protocol.frames import CHECKSUM_MAGIC, ENTRY_METADATA_MAGIC, checksum_ok, metadata_span
from anabranch.protocol.outer import read_slot
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

ENTRY_OVERHEAD_BYTES = 256
"""What a waiting entry costs beside its bytes, so that many small ones are bounded too."""

ENTRY_MESSAGES_MAX = 1_000_000
"""Most messages an entry may claim; permits and ack sets grow with them."""

SEQUENCE_MAX = 2**63 - 1
"""Sequence ids above are not remembered; no client counts so far, but some use them as a flag."""

_MIN_TAG = b"\x88\x02"
_MAX_TAG = b"\x90\x02"
_DEFERRED = -1
_INHERITED = -2
_NOTHING = Known((), "")


class ServedProducer:
    """A name on a log, held by one connection. The counters only grow."""

    __slots__ = (
        "_dedup",
        "_inherited",
        "_inherited_max",
        "_log",
        "_waiting",
        "_when_idle",
        "bytes_in",
        "connected_at_ms",
        "epoch",
        "id",
        "leave",
        "link",
        "messages_in",
        "metadata",
        "mode",
        "name",
        "persisted",
        "pushed",
        "splits",
    )

    def __init__(
        self,
        link: ClientLink,
        producer_id: int,
        name: str,
        log: SegmentLog,
        *,
        epoch: int = 0,
        mode: int = pb.Shared,
        deduplicate: bool = True,
        splits: tuple[int, ...] = (),
        metadata: Mapping[str, str] | None = None,
        connected_at_ms: int = 0,
    ) -> None:
        self.link = link
        self.id = producer_id
        self.name = name
        self.epoch = epoch
        self.mode = mode
        self.splits = splits
        """Bucket boundaries of the segment; an entry must lie within one bucket."""
        self.metadata = dict(metadata or {})
        self.connected_at_ms = connected_at_ms
        self.pushed = -1
        """Highest sequence id given to the log."""
        self.persisted = -1
        """Highest sequence id known to be durable."""
        self.messages_in = 0
        self.bytes_in = 0
        self.leave: Callable[[ServedProducer], None] = _nobody_to_leave
        """How to tell the log's home that the producer goes; set by whoever lets it in."""
        self._log = log
        self._dedup = deduplicate
        self._inherited = _NOTHING
        self._inherited_max = _NOTHING.highest
        # SENDs not answered yet, in order: sequence id, highest, size or _DEFERRED, the sequence id that
        # becomes durable or _INHERITED, and the error to answer with.
        self._waiting: deque[tuple[int, int, int, int, AnabranchError | None]] = deque()
        self._when_idle: list[Callable[[], None]] = []

    @property
    def idle(self) -> bool:
        return not self._waiting

    def recognise(self, last_sequence_id: int) -> None:
        """Start from what the log knows of this name; everything up to it is a duplicate."""
        self.pushed = self.persisted = last_sequence_id

    def inherit(self, known: Known) -> None:
        """What other logs have stored under this name before this one was there."""
        self._inherited = known
        self._inherited_max = known.highest

    def when_idle(self, done: Callable[[], None]) -> None:
        """Call `done` once every SEND so far is answered."""
        if self._waiting:
            self._when_idle.append(done)
        else:
            done()

    def publish(self, send: Send, now_ms: int) -> None:
        """Take one entry: store it, or answer why not."""
        _, sequence_id, count, highest, is_chunk, marker, most, least, entry = send
        last = highest if highest > sequence_id else sequence_id
        if is_chunk or marker or most or least or not 0 < count <= ENTRY_MESSAGES_MAX:
            self._publish_special(send, now_ms)
            return
        if not checksum_ok(entry):
            self._break_off(sequence_id, highest)
            return
        if self.splits or entry[:2] != CHECKSUM_MAGIC:
            wrong = self._wrong(entry)
            if wrong is not None:
                self._refuse(sequence_id, highest, wrong)
                return
        if self._dedup and sequence_id <= self.pushed:
            self._defer(sequence_id, highest, last)
            return
        if last <= self._inherited_max and self._is_inherited(entry, count, last):
            self._defer(sequence_id, highest, _INHERITED)
            return
        self._append(entry, count, now_ms, sequence_id, highest, last)

    def _append(
        self, entry: bytes, count: int, now_ms: int, sequence_id: int, highest: int, last: int
    ) -> None:
        try:
            if self._dedup and 0 <= last <= SEQUENCE_MAX:
                self._log.append(entry, count, now_ms, self._stored, self.name, last)
                self.pushed = last
            else:
                self._log.append(entry, count, now_ms, self._stored)
        except AnabranchError as error:
            self._refuse(sequence_id, highest, error)
            return
        size = len(entry)
        self._waiting.append((sequence_id, highest, size, last, None))
        self.link.publish_bytes += size + ENTRY_OVERHEAD_BYTES
        self.messages_in += count
        self.bytes_in += size

    def _stored(self, stored: Entry | None, error: BaseException | None) -> None:
        """The log's answer to the oldest append."""
        waiting = self._waiting
        sequence_id, highest, size, last, _ = waiting.popleft()
        link = self.link
        link.publish_bytes -= size + ENTRY_OVERHEAD_BYTES
        if stored is not None:
            ledger, number = stored[0]
            if last > self.persisted:
                self.persisted = last
            link.write(encode_receipt(self.id, sequence_id, highest, ledger, number))
        else:
            self._send_error(sequence_id, highest, error or PersistenceError("the entry was not stored"))
        if not waiting or waiting[0][2] == _DEFERRED:
            self._answer_deferred()
        if link.throttled:
            link.relieve()

    # What is not the common case.

    def _publish_special(self, send: Send, now_ms: int) -> None:
        """Chunks, and what is refused: markers, transactions and impossible counts."""
        _, sequence_id, count, highest, is_chunk, marker, most, least, entry = send
        if marker or most or least:
            what = "markers" if marker else "transactions"
            self._refuse(sequence_id, highest, NotAllowedError(f"{what} are not supported"))
            return
        if not is_chunk and count <= 0:
            self.publish(send._replace(num_messages=1), now_ms)
            return
        if not is_chunk and count > ENTRY_MESSAGES_MAX:
            wrong_count = NotAllowedError(f"an entry holds 1 to {ENTRY_MESSAGES_MAX} messages, not {count}")
            self._refuse(sequence_id, highest, wrong_count)
            return
        if not checksum_ok(entry):
            self._break_off(sequence_id, highest)
            return
        wrong = self._wrong(entry)
        if wrong is not None:
            self._refuse(sequence_id, highest, wrong)
            return
        # All chunks of a message share its sequence id, so only the last one is judged and remembered.
        last = max(sequence_id, highest)
        if _is_last_chunk(entry):
            if self._dedup and sequence_id <= self.pushed:
                self._defer(sequence_id, highest, last)
                return
            if last <= self._inherited_max and self._is_inherited(entry, 1, last):
                self._defer(sequence_id, highest, _INHERITED)
                return
        else:
            last = -1
        self._append(entry, 1, now_ms, sequence_id, highest, last)

    def _is_inherited(self, entry: bytes, count: int, last: int) -> bool:
        """Whether logs before this one have stored all of an entry, up to sequence id `last`.

        What is sent again to a successor may share an entry with other messages than the first time, so the
        entry's first sequence id says nothing.
        """
        try:
            slot = read_slot(entry) if count == 1 else None
        except RemoteProtocolError:
            slot = None
        return self._inherited.is_duplicate(last, slot)

    def _wrong(self, entry: bytes) -> AnabranchError | None:
        """Why an entry may not be stored here."""
        if entry[:2] == ENTRY_METADATA_MAGIC:
            return NotAllowedError("an entry must not carry a broker's metadata")
        try:
            if self.splits and not _in_one_bucket(entry, self.splits):
                return NotAllowedError("the keys of an entry must lie within one bucket of its segment")
        except RemoteProtocolError as error:
            return ChecksumError(str(error))
        return None

    def _refuse(self, sequence_id: int, highest: int, error: AnabranchError) -> None:
        if self._waiting:
            self._waiting.append((sequence_id, highest, _DEFERRED, -1, error))
        else:
            self._send_error(sequence_id, highest, error)

    def _break_off(self, sequence_id: int, highest: int) -> None:
        """Refuse an entry that was damaged on its way, and send the producer away: it comes back and repeats.

        What is already on its way behind must not be stored, or its higher sequence ids would make the
        repetition of this one look like something that is stored.
        """
        self._refuse(sequence_id, highest, ChecksumError("the checksum does not match the entry"))
        self.link.forget_producer(self.id)
        self.when_idle(self._go)

    def _go(self) -> None:
        self.leave(self)
        self.close()

    def _defer(self, sequence_id: int, highest: int, last: int) -> None:
        """A sequence id seen before: a duplicate if that one was stored, which may not be known yet.

        What was inherited was stored for sure, but is not answered before its turn.
        """
        self._waiting.append((sequence_id, highest, _DEFERRED, last, None))
        if self._waiting[0][2] == _DEFERRED:
            self._answer_deferred()

    def _answer_deferred(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][2] == _DEFERRED:
            sequence_id, highest, _, last, error = waiting.popleft()
            if error is not None:
                self._send_error(sequence_id, highest, error)
            elif last == _INHERITED or sequence_id <= self.persisted:
                self.link.write(encode_receipt(self.id, sequence_id, highest, NO_ID, NO_ID))
            else:
                undecided = PersistenceError("an earlier entry with this sequence id was not stored")
                self._send_error(sequence_id, highest, undecided)
        if not waiting and self._when_idle:
            done, self._when_idle = self._when_idle, []
            for call in done:
                call()

    def _send_error(self, sequence_id: int, highest: int, error: BaseException) -> None:
        self.link.send(
            pb.CommandSendError(
                producer_id=self.id,
                sequence_id=max(sequence_id, highest),
                error=code_for(error),
                message=str(error),
            )
        )

    def close(self) -> None:
        """Take the producer from its client, which is to make a new one."""
        self.link.forget_producer(self.id)
        self.link.send(pb.CommandCloseProducer(producer_id=self.id, request_id=NO_ID))


def _nobody_to_leave(producer: ServedProducer) -> None:
    """A producer that was not let in anywhere."""


def _in_one_bucket(entry: bytes, splits: tuple[int, ...]) -> bool:
    """Whether the hashes stamped on an entry share a bucket; one without a stamp has a single hash.

    Producers write the stamp last, where it is found without reading the rest. What does not look like one
    there is read in full, and so is one that would lead to a refusal.
    """
    start, end = metadata_span(entry)
    at = entry.find(_MIN_TAG, max(end - 10, start), end)
    if at >= 0:
        low, at = _short_varint(entry, at + 2)
        if entry[at : at + 2] == _MAX_TAG:
            high, at = _short_varint(entry, at + 2)
            if at == end and bisect_right(splits, low) == bisect_right(splits, high):
                return True
    outer = read_outer(entry)
    return bisect_right(splits, outer.bucket_hash) == bisect_right(splits, outer.bucket_hash_max)


def _short_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 28:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


def _is_last_chunk(entry: bytes) -> bool:
    try:
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except (RemoteProtocolError, DecodeError):
        return True
    return metadata.chunk_id >= metadata.num_chunks_from_msg - 1
