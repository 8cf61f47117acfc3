"""The outermost layer of the wire: length prefixes, magic numbers and checksums.

A frame is a command and, for SEND and MESSAGE, an entry behind it. This module cuts a byte stream into
frames and an entry into metadata and payload. It does not know what a command means.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from google_crc32c import extend as _extend_crc32c
from google_crc32c import value as _crc32c

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.checksums import crc32c_behind

MESSAGE_BYTES_MAX: Final = 5 * 2**20
"""Largest message, unless CONNECTED gives another limit."""

MESSAGE_BYTES_LIMIT: Final = 2**30
"""Largest limit that a broker may have."""

FRAME_EXTRA_BYTES: Final = 10 * 2**10
"""Room in a frame in addition to the largest message: command, metadata and the size fields."""

DELIVERY_EXTRA_BYTES: Final = 128
"""Most bytes of a MESSAGE without its entry and ack set: sizes, ids, counts and the broker's metadata."""

ACK_WORD_BYTES: Final = 11
"""Most bytes of a word of an ack set, which stands for 64 messages of an entry."""

CHECKSUM_MAGIC: Final = b"\x0e\x01"
ENTRY_METADATA_MAGIC: Final = b"\x0e\x02"
CHECKED_METADATA_START: Final = 10
"""Offset of the metadata in an entry that begins with a checksum."""

_HTTP_NUMBER: Final = int.from_bytes(b"HTTP", "big")
_TLS_NUMBERS: Final = (0x1503, 0x1603)
"""The first two bytes of an alert and of a handshake of TLS."""
_CHECKSUM_NUMBER: Final = int.from_bytes(CHECKSUM_MAGIC, "big")

_two_sizes = Struct(">II").unpack_from
_one_size = Struct(">I").unpack_from
_checked_head = Struct(">H4xI").unpack_from
_pack_size = Struct(">I").pack
_pack_checksum = Struct(">2sI").pack


Frame = tuple[bytes, bytes | None]
"""A frame without its sizes: the command, and the bytes behind it or None."""


class FrameCutter:
    """Cuts a stream into frames, however the stream is chunked.

    Each byte is copied a fixed number of times, and memory grows with the received bytes, never with a length
    that a peer claims.
    """

    def __init__(self, frame_bytes_max: int = MESSAGE_BYTES_MAX + FRAME_EXTRA_BYTES) -> None:
        self.frame_bytes_max = frame_bytes_max
        """Limit for a whole frame, its size field included; may be changed between frames."""
        self.command_bytes_max = 2**32
        """Limit for the command in a frame; may be changed between frames."""
        self._rest = bytearray()
        self._wanted = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the frame that is not complete yet."""
        return len(self._rest)

    def clear(self) -> None:
        """Drop the frame that is not complete; no further bytes may follow."""
        self._rest = bytearray()

    def feed(self, data: bytes, position: int = 0) -> list[Frame]:
        """Return the frames completed by `data`; raises RemoteProtocolError when the stream cannot be cut."""
        frames: list[Frame] = []
        if self._rest:
            whole, position = self._complete(data)
            if not whole:
                return frames
            split = 8 + _one_size(whole, 4)[0]
            frames.append((whole[8:split], whole[split:] if split < len(whole) else None))
        end = len(data)
        limit = self.frame_bytes_max
        while end - position >= 8:
            total, command = _two_sizes(data, position)
            if total + 4 > limit or command + 4 > total or command > self.command_bytes_max:
                raise self.refusal(total, command)
            after = position + 4 + total
            if after > end:
                break
            split = position + 8 + command
            frames.append((data[position + 8 : split], data[split:after] if split < after else None))
            position = after
        if position < end:
            self._keep(data, position)
        return frames

    def _keep(self, data: bytes, position: int) -> None:
        self._rest += memoryview(data)[position:]
        self._wanted = self._frame_bytes()

    def _complete(self, data: bytes) -> tuple[bytes, int]:
        """Complete the frame begun earlier from `data`; returns it and how many bytes of `data` it used.

        The frame is empty if bytes are still missing; then all of `data` is kept.
        """
        rest = self._rest
        used = 0
        while True:
            missing = self._wanted - len(rest)
            if missing > len(data) - used:
                rest += memoryview(data)[used:]
                return b"", len(data)
            end = used + missing
            if len(rest) >= 8:
                whole = b"".join((rest, memoryview(data)[used:end]))
                rest.clear()
                return whole, end
            rest += memoryview(data)[used:end]
            used = end
            self._wanted = self._frame_bytes()

    def _frame_bytes(self) -> int:
        """Return the size of the frame begun, or of its two size fields while those are not complete."""
        rest = self._rest
        if len(rest) < 8:
            return 8
        total, command = _two_sizes(rest)
        if total + 4 > self.frame_bytes_max or command + 4 > total or command > self.command_bytes_max:
            raise self.refusal(total, command)
        return int(total) + 4

    def refusal(self, total: int, command: int) -> RemoteProtocolError:
        """Return the error for the two sizes of a frame."""
        if total == _HTTP_NUMBER:
            return RemoteProtocolError("the peer speaks HTTP; its binary protocol has another port")
        if total >> 16 in _TLS_NUMBERS and total + 4 > self.frame_bytes_max:
            return RemoteProtocolError("the peer speaks TLS; use pulsar+ssl:// on TLS ports only")
        if total + 4 > self.frame_bytes_max:
            return RemoteProtocolError(
                f"the peer announced a frame of {total + 4} bytes; the limit is {self.frame_bytes_max}"
            )
        if command + 4 <= total:
            return RemoteProtocolError(
                f"the peer announced a command of {command} bytes; the limit is {self.command_bytes_max}"
            )
        return RemoteProtocolError(
            f"the peer sent a frame of {total} bytes that claims a command of {command} bytes"
        )


def deliverable_bytes(max_message_bytes: int) -> int:
    """Return the most bytes that a consumer can receive: an entry plus a quarter byte for each message.

    A consumer closes the connection at a larger frame, so a broker must not store a larger entry. The quarter
    byte covers the ack set with which the broker delivers the entry once a part of it is acknowledged.
    """
    return max_message_bytes + FRAME_EXTRA_BYTES - DELIVERY_EXTRA_BYTES - ACK_WORD_BYTES


def checksum_ok(entry: bytes) -> bool:
    """Return whether the entry matches its checksum; True when it has none."""
    if entry[:2] == CHECKSUM_MAGIC and len(entry) >= 6:
        return bool(crc32c_behind(6, entry) == _one_size(entry, 2)[0])
    start = _skip_entry_metadata(entry)
    return checksum_ok(entry[start:]) if start else entry[:2] != CHECKSUM_MAGIC


def metadata_span(entry: bytes) -> tuple[int, int]:
    """Return the start and end of the metadata of an entry, behind any prefix; the payload is the rest."""
    if len(entry) >= 10:
        magic, size = _checked_head(entry)
        if magic == _CHECKSUM_NUMBER and size + 10 <= len(entry):
            return 10, size + 10
    start = _skip_entry_metadata(entry)
    if entry[start : start + 2] == CHECKSUM_MAGIC:
        start += 6
    if len(entry) < start + 4:
        raise RemoteProtocolError(f"an entry of {len(entry)} bytes ends before its metadata")
    end = start + 4 + _one_size(entry, start)[0]
    if end > len(entry):
        raise RemoteProtocolError(f"an entry of {len(entry)} bytes claims metadata up to byte {end}")
    return start + 4, end


def build_entry(metadata: bytes, payload: bytes) -> bytes:
    """Return an entry as it is sent and stored: magic, checksum, metadata and payload."""
    size = _pack_size(len(metadata))
    checksum = _extend_crc32c(_crc32c(size + metadata), payload)
    return b"".join((_pack_checksum(CHECKSUM_MAGIC, checksum), size, metadata, payload))


def _skip_entry_metadata(entry: bytes) -> int:
    """Return the offset of the entry behind the broker's metadata, 0 without broker metadata."""
    if entry[:2] != ENTRY_METADATA_MAGIC:
        return 0
    if len(entry) < 6:
        raise RemoteProtocolError("an entry ends inside the broker's metadata")
    start = 6 + _one_size(entry, 2)[0]
    if start > len(entry):
        raise RemoteProtocolError(f"an entry of {len(entry)} bytes claims broker metadata up to byte {start}")
    return int(start)
