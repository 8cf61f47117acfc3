"""Reads the commits of a journal file, skipping damage. Changes no file, and knows nothing of logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.findings import Finding
from anabranch.ledger.format.commits import (
    COMMIT_HEAD_BYTES,
    Commit,
    CommitHead,
    decode_commit,
    decode_commit_head,
    find_commit,
    find_commit_tail,
)
from anabranch.ledger.format.records import seed
from anabranch.ledger.format.salvage import is_torn

FOLDER = "journal"
_WINDOW_BYTES = 8 * 1024 * 1024


def journal_file(number: int) -> str:
    return f"{FOLDER}/{number:08d}.log"


def journal_numbers(sizes: Mapping[str, int]) -> list[int]:
    names = [file.removeprefix(f"{FOLDER}/") for file in sizes if file.startswith(f"{FOLDER}/")]
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())


class JournalPart(NamedTuple):
    """The first `size` bytes of a journal file. Only the newest file may have a torn tail after them."""

    number: int
    size: int
    newest: bool


class JournalReader:
    """One pass over one journal file."""

    def __init__(self, disk: Disk, salt: int, part: JournalPart) -> None:
        self._disk = disk
        self._part = part
        self._owner = seed(salt, part.number)
        self._file = journal_file(part.number)
        self._window = b""
        self._start = 0
        self.end = 0
        """The end of the last commit that was read."""
        self.next_commit = 0
        self.findings: list[Finding] = []
        self.commits_lost = False
        """Whether commits are missing whose contents are in no other file."""

    async def commits(self, next_commit: int) -> AsyncIterator[Commit]:
        """Yield all readable commits. `next_commit` is the number expected for the first one."""
        self.next_commit = next_commit
        at = 0
        while at < self._part.size:
            head = await self._head_at(at)
            if head is None:
                break
            data = await self._read(head.offset, head.size)
            commit = decode_commit(self._owner, head, data)
            if (commit is None or commit.damage) and await self._is_torn(commit, head, data):
                break
            at = self.end = head.end
            if commit is None:
                self._lose(head, "both copies of the contents are damaged")
                self.next_commit = head.number + 1
                continue
            if head.number > self.next_commit:
                missing = head.number - self.next_commit
                self._lose(head, f"{missing} commits before it are missing")
            self.next_commit = head.number + 1
            yield commit
        if self.end < self._part.size and not self._part.newest:
            self._find(self.end, "the bytes up to the end of the file are damaged")

    def _lose(self, head: CommitHead, why: str) -> None:
        self.commits_lost = True
        self._find(head.offset, f"commit {head.number}: {why}")

    def _find(self, offset: int, what: str) -> None:
        self.findings.append(Finding(self._file, f"at byte {offset}: {what}"))

    async def _head_at(self, at: int) -> CommitHead | None:
        """Return the head of the commit at `at`, or that of the next commit that can be found."""
        head = decode_commit_head(self._owner, await self._read(at, COMMIT_HEAD_BYTES), 0, at)
        if self._fits(head):
            return head
        rest = await self._disk.read(self._file, at, self._part.size - at)
        head = find_commit_tail(self._owner, rest, at)
        if self._fits(head):
            return head
        head = find_commit(self._owner, rest, 1, at)
        while head is not None and not self._fits(head):
            head = find_commit(self._owner, rest, head.offset - at + 1, at)
        return head

    def _fits(self, head: CommitHead | None) -> bool:
        return head is not None and head.number >= self.next_commit and head.end <= self._part.size

    async def _is_torn(self, commit: Commit | None, head: CommitHead, data: bytes) -> bool:
        if not self._part.newest:
            return False
        rest = await self._disk.read(self._file, head.end, self._part.size - head.end)
        if find_commit(self._owner, rest, 0, head.end) is not None:
            return False
        return commit is None or is_torn(commit, data)

    async def _read(self, offset: int, length: int) -> bytes:
        begin = offset - self._start
        if begin + length > len(self._window):
            size = min(max(length, _WINDOW_BYTES), self._part.size - offset)
            self._window = await self._disk.read(self._file, offset, size)
            self._start, begin = offset, 0
        return self._window[begin : begin + length]
