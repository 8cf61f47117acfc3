"""One producer on one log: the append path from a SEND to its receipt.

Everything per entry happens here and in the log, without waiting, without a task and without a log line.
Receipts and errors leave in the order of the SENDs, as clients expect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from anabranch.broker.serving.context import ClientLink
from anabranch.broker.serving.log.entry_checks import ANY_CLASSIC_ENTRY, EntryRules, fault_of
from anabranch.broker.serving.log.traffic import LOAD_SHIFT, TrafficMeter
from anabranch.broker.serving.rates.publish_credit import CreditTotals, PublishCredit
from anabranch.broker.serving.rates.rate_gates import PublishingLink
from anabranch.broker.serving.rates.rate_meter import RateMeter
from anabranch.broker.serving.rates.throttles import UNLIMITED, TopicThrottle
from anabranch.errors import (
    AnabranchError,
    ChecksumError,
    NotAllowedError,
    PersistenceError,
    RemoteProtocolError,
)
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.inheritance import Known
from anabranch.protocol.claims import ENTRY_MESSAGES_MAX
from anabranch.protocol.commands import NO_ID, Send
from anabranch.protocol.frames import metadata_span
from anabranch.protocol.hot_frames import encode_receipt
from anabranch.protocol.outer import read_slot
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import send_error_code
from anabranch.rights.names import bound_name

ENTRY_OVERHEAD_BYTES = 256
"""Bytes that a waiting entry counts beside its own, so that many small entries are bounded too."""

SEQUENCE_MAX = 2**63 - 1
"""Sequence ids above are not remembered; no client counts so far, but some use them as a flag."""

_DEFERRED = -1
_INHERITED = -2
_NOTHING = Known((), "")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a client opens a producer."""

    epoch: int = 0
    mode: int = pb.Shared
    deduplicate: bool = True
    rules: EntryRules = ANY_CLASSIC_ENTRY
    metadata: Mapping[str, str] = field(default_factory=dict)
    connected_at_ms: int = 0
    principal: str = ""
    """The role that the name belongs to; empty without authentication."""
    throttle: TopicThrottle = UNLIMITED
    credits: CreditTotals | None = None
    """Set for a producer that sends only as far as its credit goes."""


class ServedProducer:
    """A producer of a log, by a name that only its connection uses. The counters only grow."""

    def __init__(
        self,
        link: ClientLink,
        producer_id: int,
        name: str,
        log: SegmentLog,
        options: ProducerOptions | None = None,
    ) -> None:
        self.options = options = options or ProducerOptions()
        self.link = link
        self.id = producer_id
        self.name = name
        self.bound_name = bound_name(name, options.principal)
        """The name for the log and for other producers: that of another role is another name."""
        self.pushed = -1
        """Highest sequence id given to the log."""
        self.persisted = -1
        """Highest sequence id known to be durable."""
        self.messages_in = self.bytes_in = self.chunks_in = 0
        self.meter: RateMeter | None = None
        self.leave: Callable[[], None] = _do_nothing
        """Detaches the producer from its log; set when the log lets it in."""
        self.traffic = TrafficMeter()
        """Learns the load of each key; that of the log, once the log lets the producer in."""
        self.promoted: Callable[[], None] = _do_nothing
        """Called when a producer that waited for all others may send."""
        self._log = log
        self._rules = options.rules
        self._dedup = options.deduplicate
        self._throttle = options.throttle
        self.credit: PublishCredit | None = None
        if options.credits is not None:
            self.credit = PublishCredit(link, producer_id, options.throttle, options.credits)
        self._inherited = _NOTHING
        self._inherited_max = _NOTHING.highest
        # SENDs not answered yet, in order: sequence id, highest, size or _DEFERRED, the sequence id that
        # becomes durable or _INHERITED, and the error to answer with.
        self._waiting: deque[tuple[int, int, int, int, AnabranchError | None]] = deque()
        self._when_idle: list[Callable[[], None]] = []
        self._is_cut_off = False

    @property
    def idle(self) -> bool:
        return not self._waiting

    def recognise(self, last_sequence_id: int) -> None:
        """Treat sequence ids up to this one, the highest that the log stored for the name, as duplicates."""
        self.pushed = self.persisted = last_sequence_id

    def inherit(self, known: Known) -> None:
        """Recognise the messages that earlier segments have stored under this name."""
        self._inherited = known
        self._inherited_max = known.highest

    def detached(self) -> None:
        """Need no credit, and keep no way back to log and client: the last reference frees the producer."""
        if self.credit is not None:
            self.credit.end()
        self.leave = self.promoted = _do_nothing

    def when_idle(self, done: Callable[[], None]) -> None:
        """Call `done` once every SEND so far is answered."""
        if self._waiting:
            self._when_idle.append(done)
        else:
            done()

    def publish(self, send: Send, now_ms: int) -> None:
        """Take one entry: store it, or answer with the reason for refusing it."""
        _, sequence_id, count, highest, is_chunk, marker, most, least, entry = send
        last = highest if highest > sequence_id else sequence_id
        fault: AnabranchError | None = None
        if is_chunk or marker or most or least or not 0 < count <= ENTRY_MESSAGES_MAX:
            fault = _fault_of_send(send)
            count = 1
            # All chunks of a message share its sequence id, so only the last one is judged and remembered.
            if is_chunk:
                last = self._last_of_chunk(entry, last)
        fault = fault_of(send, self._rules) or fault
        if fault is not None:
            if isinstance(fault, ChecksumError):
                self._refuse(sequence_id, highest, fault)
            else:
                self._defer(sequence_id, highest, -1, fault)
            return
        if self._throttle.publish_gates:
            self._throttle.charge(self._payer(len(entry)), count, len(entry))
        if sequence_id <= self.pushed and self._dedup and last >= 0:
            self._defer(sequence_id, highest, last)
            return
        if last <= self._inherited_max and last >= 0 and self._is_inherited(entry, count, last):
            self._defer(sequence_id, highest, _INHERITED)
            return
        try:
            if self._dedup and 0 <= last <= SEQUENCE_MAX:
                self._log.append(entry, count, now_ms, self._stored, self.bound_name, last)
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

    def _last_of_chunk(self, entry: bytes, last: int) -> int:
        """Count a chunk; returns the sequence id to remember, -1 for all chunks but the last."""
        self.chunks_in += 1
        return last if _is_last_chunk(entry) else -1

    def _stored(self, stored: Entry | None, error: BaseException | None) -> None:
        """The log's answer to the oldest append."""
        waiting = self._waiting
        sequence_id, highest, size, last, _ = waiting.popleft()
        link = self.link
        link.publish_bytes -= size + ENTRY_OVERHEAD_BYTES
        if stored is not None:
            (ledger, number), _, _, count, _, entry = stored
            if last > self.persisted:
                self.persisted = last
            link.write(encode_receipt(self.id, sequence_id, highest, ledger, number))
            traffic = self.traffic
            traffic.left = left = traffic.left - count - (size >> LOAD_SHIFT)
            if left <= 0:
                traffic.take(entry)
        else:
            self._send_error(sequence_id, highest, error or PersistenceError("the entry was not stored"))
            self.cut_off()
        if not waiting or waiting[0][2] == _DEFERRED:
            self._answer_deferred()
        if link.throttled:
            link.resume_if_room()

    def _payer(self, size: int) -> PublishingLink:
        return self.link if self.credit is None else self.credit.payer(size)

    def _is_inherited(self, entry: bytes, count: int, last: int) -> bool:
        """Return whether earlier segments have stored all of an entry, up to sequence id `last`."""
        # A repeated message may share its entry with others than before, so the first id proves nothing.
        try:
            slot = read_slot(entry) if count == 1 else None
        except RemoteProtocolError:
            slot = None
        return self._inherited.is_duplicate(last, slot)

    def _refuse(self, sequence_id: int, highest: int, error: AnabranchError) -> None:
        """Answer an entry in its turn with an error, and disconnect the producer if it has to repeat it."""
        self._defer(sequence_id, highest, -1, error)
        if error.retryable or isinstance(error, ChecksumError):
            self.cut_off()

    def cut_off(self) -> None:
        """Take no more entries, and disconnect the producer once the entries so far are answered."""
        # Entries behind one that has to be repeated must not be stored, or it would look like a duplicate.
        if not self._is_cut_off:
            self._is_cut_off = True
            self.link.forget_producer(self.id)
            self.when_idle(self.leave)
            self.when_idle(self.close)

    def _defer(self, sequence_id: int, highest: int, last: int, error: AnabranchError | None = None) -> None:
        """Answer in its turn: with the error, or a repeated sequence id as a duplicate if it was stored.

        An inherited message was stored for sure, and waits only for its turn.
        """
        self._waiting.append((sequence_id, highest, _DEFERRED, last, error))
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
                error=send_error_code(error, self.link.client_version),
                message=str(error),
            )
        )

    def close(self, *, sealed: bool = False) -> None:
        """Close the producer from this side; its client opens a new one, or follows if the log is sealed."""
        self.link.forget_producer(self.id)
        close = pb.CommandCloseProducer(producer_id=self.id, request_id=NO_ID)
        if sealed:
            close.sealed = True
        self.link.send(close)


def _fault_of_send(send: Send) -> NotAllowedError | None:
    """Return the error for a marker, a transaction or an impossible count; None otherwise."""
    if send.marker or send.txn_most or send.txn_least:
        return NotAllowedError(f"{'markers' if send.marker else 'transactions'} are not supported")
    if not send.is_chunk and not 0 < send.num_messages <= ENTRY_MESSAGES_MAX:
        return NotAllowedError(f"an entry holds 1 to {ENTRY_MESSAGES_MAX} messages, not {send.num_messages}")
    return None


def _is_last_chunk(entry: bytes) -> bool:
    """Return whether an entry is the last chunk of its message; an unreadable one counts as the last."""
    try:
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
    except (RemoteProtocolError, DecodeError):
        return True
    return metadata.chunk_id >= metadata.num_chunks_from_msg - 1


def _do_nothing() -> None:
    """A producer that is not attached to a log has none to leave."""
