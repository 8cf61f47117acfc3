"""The bytes of the record log, the second copy of all records beside SQLite. Pure.

A file of the log has a head, the state at its begin in several frames, and one frame for each transaction
since then. The checksum of a frame covers its file and its offset besides its content, so a frame in the
wrong place fails the check like a damaged one. Ephemeral values are not in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import google_crc32c
import msgspec

from anabranch.metadata.store import ABSENT

FORMAT = 1
MAGIC = b"ANBRMETA"
FRAME_BYTES = 256 * 1024
"""Frames of the state at the begin of a file end after this many bytes of values."""

_HEAD = struct.Struct("<8sIQI")
_FRAME = struct.Struct("<II")
_PLACE = struct.Struct("<QQI")
HEAD_BYTES = _HEAD.size

PART, BASE, COMMIT = range(3)
"""Kinds of frames: some of the state at the begin, the last part of it, and one transaction."""


class LoggedChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The new value of a record, its deletion (`ABSENT`), or the next number of a sequence."""

    path: str
    commit: int
    version: int
    value: bytes = b""
    sequence: bool = False


class LogFrame(msgspec.Struct, frozen=True, array_like=True):
    kind: int
    commit: int
    changes: list[LoggedChange]


class RecordState:
    """All records and sequences after a commit, by path; a sequence has its next number as its version."""

    def __init__(self, commit: int = 0) -> None:
        self.commit = commit
        self.records: dict[str, LoggedChange] = {}
        self.sequences: dict[str, LoggedChange] = {}
        self.deleted: dict[str, int] = {}
        """The commits that deleted records, as far as they are known."""

    def apply(self, change: LoggedChange) -> None:
        if change.sequence:
            self.sequences[change.path] = change
        elif change.version == ABSENT:
            self.records.pop(change.path, None)
            self.deleted[change.path] = change.commit
        else:
            self.records[change.path] = change

    def changes(self) -> Iterator[LoggedChange]:
        yield from self.records.values()
        yield from self.sequences.values()

    def changes_from(self, other: RecordState) -> list[LoggedChange]:
        """The changes that turn the state `other` into this one."""
        found = [change for change in self.changes() if not other.has(change)]
        return found + [
            LoggedChange(path, self.commit, ABSENT) for path in other.records if path not in self.records
        ]

    def has(self, change: LoggedChange) -> bool:
        known = self.sequences if change.sequence else self.records
        return known.get(change.path) == change

    def knows(self, path: str) -> bool:
        return path in self.records or path in self.sequences

    def add_newer(self, other: RecordState) -> None:
        """Take over all that `other` wrote later, or that this state lacks."""
        for change in other.changes():
            known = self.sequences if change.sequence else self.records
            mine = known.get(change.path)
            newest = self.deleted.get(change.path, -1) if mine is None else mine.commit
            if change.commit > newest:
                self.apply(change)
        for path, commit in other.deleted.items():
            if path in self.records and commit > self.records[path].commit:
                self.apply(LoggedChange(path, commit, ABSENT))
        self.commit = max(self.commit, other.commit)


class LogScan(NamedTuple):
    """The content of one file of the log."""

    number: int
    state: RecordState
    end: int
    """Offset after the last whole frame."""
    based: bool
    """Whether the state at the begin of the file is there."""
    damage: str | None


def encode_head(number: int) -> bytes:
    fields = _HEAD.pack(MAGIC, FORMAT, number, 0)[:-4]
    return fields + struct.pack("<I", google_crc32c.value(fields))


def encode_frame(number: int, at: int, frame: LogFrame) -> bytes:
    """The bytes of a frame at offset `at` of the file `number`."""
    body = msgspec.msgpack.encode(frame)
    return _FRAME.pack(len(body), _checksum(number, at, body)) + body


def decode_frame(number: int, at: int, data: memoryview, start: int) -> tuple[LogFrame, int] | None:
    """The frame at offset `at` and its length, None if damaged; `data` has its bytes from `start` on."""
    if len(data) - start < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack_from(data, start)
    body = data[start + _FRAME.size : start + _FRAME.size + length]
    if len(body) < length or _checksum(number, at, body) != checksum:
        return None
    try:
        return msgspec.msgpack.decode(body, type=LogFrame), _FRAME.size + length
    except msgspec.MsgspecError:
        return None


def base_frames(commit: int, changes: Iterable[LoggedChange]) -> Iterator[LogFrame]:
    """The frames of the state at the begin of a file."""
    some: list[LoggedChange] = []
    size = 0
    for change in changes:
        some.append(change)
        size += len(change.value) + len(change.path)
        if size >= FRAME_BYTES:
            yield LogFrame(PART, commit, some)
            some, size = [], 0
    yield LogFrame(BASE, commit, some)


def follow(number: int, data: bytes, at: int, commit: int) -> Iterator[tuple[LogFrame, int]]:
    """The transactions after `commit` in the bytes from offset `at` on, each with the offset of its end."""
    view, start = memoryview(data), 0
    while (found := decode_frame(number, at + start, view, start)) is not None:
        frame, length = found
        if frame.kind != COMMIT or frame.commit != commit + 1:
            return
        start, commit = start + length, frame.commit
        yield frame, at + start


def scan(number: int, data: bytes) -> LogScan:
    """Read a whole file; a damaged frame is passed over if the frame behind it can be found."""
    view = memoryview(data)
    damage = None if data[:HEAD_BYTES] == encode_head(number) else "its head is damaged"
    state, based, at = RecordState(), False, HEAD_BYTES
    while at < len(data):
        found = decode_frame(number, at, view, at)
        if found is None:
            after = _after(number, view, at)
            if after is None:
                break
            damage, at = damage or f"the frame at byte {at} is damaged", after
            continue
        frame, length = found
        if frame.kind == COMMIT and based and not damage and frame.commit != state.commit + 1:
            damage = f"the frame at byte {at} is of commit {frame.commit}, after {state.commit}"
        for change in frame.changes:
            state.apply(change)
        state.commit = max(state.commit, frame.commit)
        based = based or frame.kind == BASE
        at += length
    return LogScan(number, state, at, based, damage if based else damage or "its begin is missing")


def _after(number: int, view: memoryview, at: int) -> int | None:
    """The offset of the frame after a damaged one, if the length of the damaged one is right."""
    if len(view) - at < _FRAME.size:
        return None
    after = at + _FRAME.size + int(_FRAME.unpack_from(view, at)[0])
    return after if decode_frame(number, after, view, after) is not None else None


def _checksum(number: int, at: int, body: bytes | memoryview) -> int:
    place = google_crc32c.value(_PLACE.pack(number, at, len(body)))
    return int(google_crc32c.extend(place, bytes(body)))
