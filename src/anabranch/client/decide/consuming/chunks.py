"""The chunks of one segment that wait for the rest of their messages. Pure.

A producer stores the chunks of a message in order and begins the next message behind them. So a message whose
producer begins another one, or begins it again, will never be complete.

Example: a message has three chunks, and entries 4 and 6 brought chunks 0 and 1; entry 5 came from another
producer. If entry 7 brings chunk 2, the message is complete and lies at the places 4, 6 and 7. If it brings
chunk 0 of another message of the same producer, the places 4 and 6 are orphans, and entry 7 waits for its
rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.client.decide.consuming.acknowledgements import LedgerEntry
from anabranch.errors import AnabranchError
from anabranch.protocol.chunks import chunk_in, join_chunks
from anabranch.protocol.encryption import encryption_of

LOOK_S = 1.0
"""How often a consumer with an incomplete message looks whether the rest of it can still come."""

EXPIRY_S = 60.0
"""An incomplete message is given up when no chunk of it has come for so long."""

PENDING_BYTES_MAX = 2**30
"""Bytes of incomplete messages after which the oldest of them is given up."""


class WholeMessage(NamedTuple):
    """A message of which all chunks are here: an entry as if it had been stored whole."""

    entry: bytes
    places: tuple[LedgerEntry, ...]
    parts: tuple[bytes, ...] = ()
    """Encrypted chunks, which can be joined only after they are decrypted; `entry` is the last one then."""


@dataclass(slots=True)
class _Incomplete:
    uuid: str
    at: float
    """When its last chunk came."""
    places: list[LedgerEntry] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0


class ChunkAssembly:
    """Joins the chunks of messages; `orphans` are the places of chunks that belong to no message."""

    def __init__(self) -> None:
        self.orphans: list[LedgerEntry] = []
        self._pending: dict[str, _Incomplete] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    def clear(self) -> None:
        """Forget all chunks, because the broker delivers them again."""
        self._pending.clear()
        self._bytes = 0

    def begun_before(self, place: LedgerEntry) -> bool:
        """Return whether an incomplete message begins before a place."""
        return any(pending.places[0] < place for pending in self._pending.values())

    def add(self, place: LedgerEntry, entry: bytes, now: float) -> WholeMessage | None:
        """Take a chunk; return its message if it was the last one."""
        try:
            chunk = chunk_in(entry)
        except AnabranchError:
            self.orphans.append(place)
            return None
        pending = self._pending.get(chunk.producer_name)
        if pending is not None and (pending.uuid != chunk.uuid or chunk.number != len(pending.chunks)):
            self._give_up(chunk.producer_name)
            pending = None
        if pending is None:
            if chunk.number:
                # The chunks before it belong to another consumer, or are acknowledged.
                self.orphans.append(place)
                return None
            pending = self._pending[chunk.producer_name] = _Incomplete(chunk.uuid, now)
        pending.at = now
        pending.places.append(place)
        pending.chunks.append(entry)
        pending.size += len(entry)
        self._bytes += len(entry)
        if len(pending.chunks) < chunk.total:
            self._keep_bound()
            return None
        return self._complete(chunk.producer_name)

    def expire(self, now: float) -> None:
        """Give up messages of which no chunk has come for long."""
        for producer, pending in list(self._pending.items()):
            if pending.at <= now - EXPIRY_S:
                self._give_up(producer)

    def give_up_all(self) -> None:
        """Give up all incomplete messages, because no chunk will follow."""
        for producer in list(self._pending):
            self._give_up(producer)

    def _complete(self, producer: str) -> WholeMessage | None:
        pending = self._pending.pop(producer)
        self._bytes -= pending.size
        try:
            if encryption_of(pending.chunks[-1]) is not None:
                return WholeMessage(pending.chunks[-1], tuple(pending.places), tuple(pending.chunks))
            return WholeMessage(join_chunks(pending.chunks), tuple(pending.places))
        except AnabranchError:
            self.orphans += pending.places
            return None

    def _give_up(self, producer: str) -> None:
        pending = self._pending.pop(producer)
        self._bytes -= pending.size
        self.orphans += pending.places

    def _keep_bound(self) -> None:
        while self._bytes > PENDING_BYTES_MAX:
            self._give_up(min(self._pending, key=lambda producer: self._pending[producer].places[0]))
