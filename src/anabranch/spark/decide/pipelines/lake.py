"""The log of a lake: which files hold its rows, and which cut of the topic each commit reaches. Pure.

A lake is a directory of Parquet files and a numbered log of commits. A commit adds and removes files at once;
a file counts only if the log says so.

Example: a partition has files of 30, 70, 30, 30, 30 and 30 MiB, from commits 0 to 5. With a wanted size of
100 MiB and at least 3 small files, the file of 70 MiB stays as it is. The files of commits 0, 2 and 3 become
one of about 90 MiB, and those of commits 4 and 5 another one. A replay of commits 2 to 4 then reads both, and
takes the rows of these commits by their positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from anabranch.errors import CorruptDataError, UnsupportedFormatError

VERSION = 1

Ranges = Mapping[int, tuple[int, int]]
"""By segment: the first position of some rows, and the position after the last one."""


class LakeFile(NamedTuple):
    """A data file of a lake."""

    path: str
    """Relative to the lake, such as `date=2026-01-31/bucket=3/c00000007-0.parquet`."""
    rows: int
    size_bytes: int
    first_commit: int
    """The first and last commit whose rows the file holds; they differ after files were joined."""
    last_commit: int

    @property
    def partition(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def bucket(self) -> int:
        return int(self.partition.rpartition("bucket=")[2])


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """One step of a lake."""

    number: int
    cut: Mapping[str, Any] | None
    """The cut of the topic that the lake reaches with this commit, as JSON."""
    added: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()
    ranges: Ranges = field(default_factory=dict)
    """The positions that this commit adds."""
    staged: str = ""
    """The directory that holds the added files until they are moved to their final paths."""
    sources: tuple[str, ...] = ()
    """The path of each added file in that directory."""
    kind: str = "append"
    counted: int | None = None
    """The rows that this commit adds; None in records of older versions, which have a row per position."""

    @property
    def rows(self) -> int:
        return sum(hi - lo for lo, hi in self.ranges.values()) if self.counted is None else self.counted


@dataclass(frozen=True, slots=True)
class Lake:
    """The present state of a lake."""

    commits: tuple[LakeCommit, ...] = ()
    """All commits, without their files."""
    files: Mapping[str, LakeFile] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        return self.commits[-1].number + 1 if self.commits else 0

    @property
    def cut(self) -> Mapping[str, Any] | None:
        return self.commits[-1].cut if self.commits else None

    def apply(self, commit: LakeCommit) -> Lake:
        """Return the state after the next commit; raises CorruptDataError if it is not the next one."""
        if commit.number != self.next_number:
            raise CorruptDataError(
                f"a commit of the lake is missing: {commit.number} follows {self.next_number - 1}"
            )
        files = dict(self.files)
        for path in commit.removed:
            if path not in files:
                raise CorruptDataError(f"commit {commit.number} removes {path}, which the lake does not have")
            del files[path]
        files |= {one.path: one for one in commit.added}
        slim = replace(commit, added=(), removed=(), staged="", sources=())
        return Lake((*self.commits, slim), files)

    def ranges_between(self, after: int, last: int) -> dict[int, tuple[int, int]]:
        """Return the positions of the commits after `after`, up to and including `last`."""
        found: dict[int, tuple[int, int]] = {}
        for commit in self.commits[after + 1 : last + 1]:
            for id_, (lo, hi) in commit.ranges.items():
                before = found.get(id_, (lo, hi))
                found[id_] = (min(lo, before[0]), max(hi, before[1]))
        return found

    def files_between(self, after: int, last: int) -> list[LakeFile]:
        """Return the files with rows of the commits after `after`, up to and including `last`, in order."""
        found = [one for one in self.files.values() if one.first_commit <= last and one.last_commit > after]
        return sorted(found, key=lambda one: (one.first_commit, one.path))


def encode_commit(commit: LakeCommit) -> dict[str, Any]:
    return {
        "v": VERSION,
        "number": commit.number,
        "kind": commit.kind,
        "cut": commit.cut,
        "added": [one._asdict() for one in commit.added],
        "removed": list(commit.removed),
        "ranges": {str(id_): list(pair) for id_, pair in sorted(commit.ranges.items())},
        "staged": commit.staged,
        "sources": list(commit.sources),
        **({} if commit.counted is None else {"rows": commit.counted}),
    }


def decode_commit(value: Mapping[str, Any]) -> LakeCommit:
    """Return the commit of a JSON record; raises UnsupportedFormatError for a newer version."""
    if value.get("v") != VERSION:
        raise UnsupportedFormatError(
            f"the lake has a commit of format version {value.get('v')}; this program reads version {VERSION}"
        )
    return LakeCommit(
        int(value["number"]),
        value["cut"],
        tuple(LakeFile(**one) for one in value["added"]),
        tuple(value["removed"]),
        {int(id_): (int(lo), int(hi)) for id_, (lo, hi) in value["ranges"].items()},
        value["staged"],
        tuple(value["sources"]),
        value["kind"],
        value.get("rows"),
    )


def encode_lake(lake: Lake) -> dict[str, Any]:
    """Return the JSON of a whole state, so that readers need no commits before it."""
    return {
        "v": VERSION,
        "commits": [encode_commit(commit) for commit in lake.commits],
        "files": [one._asdict() for one in lake.files.values()],
    }


def decode_lake(value: Mapping[str, Any]) -> Lake:
    if value.get("v") != VERSION:
        raise UnsupportedFormatError(
            f"the lake has a state of format version {value.get('v')}; this program reads version {VERSION}"
        )
    files = [LakeFile(**one) for one in value["files"]]
    return Lake(tuple(map(decode_commit, value["commits"])), {one.path: one for one in files})


def plan_joins(files: Iterable[LakeFile], size_bytes: int, few: int) -> list[tuple[LakeFile, ...]]:
    """Return groups of small files of one partition, each of which becomes one file, oldest rows first.

    A file of at least half of `size_bytes` stays as it is. A partition with fewer than `few` small files is
    left alone, so that a row is rewritten only a few times.
    """
    small: dict[str, list[LakeFile]] = defaultdict(list)
    for one in files:
        if one.size_bytes * 2 < size_bytes:
            small[one.partition].append(one)
    groups: list[tuple[LakeFile, ...]] = []
    for partition in sorted(small):
        if len(small[partition]) >= few:
            groups += _filled(
                sorted(small[partition], key=lambda one: (one.first_commit, one.path)), size_bytes
            )
    return groups


def _filled(files: Sequence[LakeFile], size_bytes: int) -> list[tuple[LakeFile, ...]]:
    groups: list[list[LakeFile]] = [[]]
    filled = 0
    for one in files:
        if groups[-1] and filled + one.size_bytes > size_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(one)
        filled += one.size_bytes
    return [tuple(group) for group in groups if len(group) > 1]
