"""Topics kept in a directory: the port of the Spark source without a broker, for tests through real Spark.

Every process of a job sees the same files. A segment is one file of entries; the layout is a pickle beside
them, replaced as a whole.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anabranch.client.net.topics.schemas import TopicSchema
from anabranch.errors import TopicNotFoundError
from anabranch.model.hashing import key_hash
from anabranch.model.layout import Layout
from anabranch.model.routing import Router
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.entries import checked_metadata
from anabranch.protocol.frames import build_entry
from anabranch.protocol.outer import read_outer
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.topic_names import TopicPattern
from anabranch.spark.decide.source.topology import SegmentSpan, Slice, Topology
from anabranch.spark.options.given import Settings
from anabranch.spark.source.data_source import AnabranchSource
from anabranch.spark.topics import OutgoingRows, Service, Sink, StoredEntry

_RECORD = struct.Struct(">QIQI")
PUBLISHED_MS = 1_700_000_000_123


@dataclass(frozen=True)
class FileTopic:
    """One topic; all changes happen under a lock on its directory."""

    root: Path
    name: str

    @property
    def directory(self) -> Path:
        return self.root / self.name

    def create(self, segments: int = 1) -> FileTopic:
        self.directory.mkdir(parents=True)
        (self.directory / "log").write_text("1")
        self._store(Layout.initial(segments, now_ms=0))
        return self

    def create_again(self, segments: int = 1) -> None:
        """Delete the topic, and create another one of its name with the same segment ids."""
        with self._locked():
            log = self.log_id + 1
            for id_ in self.layout.segments:
                self._log(id_).unlink(missing_ok=True)
            (self.directory / "log").write_text(str(log))
            self._store(Layout.initial(segments, now_ms=0))

    @property
    def log_id(self) -> int:
        return int((self.directory / "log").read_text())

    @property
    def layout(self) -> Layout:
        try:
            layout: Layout = pickle.loads((self.directory / "layout").read_bytes())
        except FileNotFoundError:
            raise TopicNotFoundError(f"there is no topic {self.name}") from None
        return layout

    def split(self, segment: int, points: Sequence[int] | None = None) -> None:
        with self._locked():
            self._store(self.layout.split(segment, points, now_ms=0))

    def merge(self, *segments: int) -> None:
        with self._locked():
            self._store(self.layout.merge(segments, now_ms=0))

    def forget(self, *segments: int, remember: bool = True) -> None:
        """Prune segments; the topic may remember their ends."""
        with self._locked():
            ends = {id_: self.tail(id_).next for id_ in segments if remember}
            self._store(self.layout.prune(segments, ends))
            for id_ in segments:
                self._log(id_).unlink(missing_ok=True)

    def trim(self, segment: int, entries: int) -> None:
        """Drop the oldest entries of a segment."""
        with self._locked():
            kept = list(self._records(segment))[entries:]
            self._log(segment).write_bytes(b"".join(_packed(entry, time_ms) for entry, time_ms in kept))

    def lose(self, segment: int, numbers: Sequence[int]) -> None:
        """Remove entries from anywhere in a segment, as no broker does."""
        kept = [record for number, record in enumerate(self._records(segment)) if number not in numbers]
        self._log(segment).write_bytes(b"".join(_packed(entry, time_ms) for entry, time_ms in kept))

    def send(
        self,
        rows: Sequence[tuple[str | bytes | None, bytes | None]],
        batch: int = 7,
        at_ms: int = PUBLISHED_MS,
    ) -> None:
        """Append messages in entries of up to `batch`, published and stored at a time."""
        with self._locked():
            router = Router(self.layout)
            by_segment: dict[int, list[tuple[str | bytes | None, bytes | None]]] = {}
            for key, value in rows:
                hash_ = 0 if key is None else key_hash(key)
                by_segment.setdefault(router.segment_for(hash_).id, []).append((key, value))
            for segment, messages in by_segment.items():
                for at in range(0, len(messages), batch):
                    self._append(segment, messages[at : at + batch], at_ms)

    def register(self, schema: TopicSchema) -> bytes:
        """Add a version of the topic's schema and return its number, as messages carry it."""
        known = self.schemas
        version = len(known).to_bytes(8, "big")
        (self.directory / "schemas").write_bytes(pickle.dumps([*known, replace(schema, version=version)]))
        return version

    @property
    def schemas(self) -> list[TopicSchema]:
        file = self.directory / "schemas"
        found: list[TopicSchema] = pickle.loads(file.read_bytes()) if file.exists() else []
        return found

    def send_versioned(self, values: Sequence[bytes | None], version: bytes, segment: int = 0) -> None:
        """Append one entry whose messages were written with a version of the schema."""
        built = MessageBatch()
        for number, value in enumerate(values):
            built.add(value or b"", f"key-{number}", number, null_value=value is None)
        entry = built.build("test", PUBLISHED_MS)
        metadata, end = checked_metadata(entry)
        metadata.schema_version = version
        with self._locked():
            self.append_entry(segment, build_entry(metadata.SerializeToString(), entry[end:]), built.count)

    def _append(
        self, segment: int, messages: Sequence[tuple[str | bytes | None, bytes | None]], at_ms: int
    ) -> None:
        built = MessageBatch()
        for number, (key, value) in enumerate(messages):
            built.add(value or b"", key, number, null_value=value is None)
        self.append_entry(segment, built.build("test", at_ms), built.count, at_ms)

    def append_entry(self, segment: int, data: bytes, count: int, at_ms: int = PUBLISHED_MS) -> None:
        first = self.tail(segment).next
        with self._log(segment).open("ab") as log:
            log.write(_packed(StoredEntry(first, count, data), at_ms))

    def entries(self, segment: int) -> list[StoredEntry]:
        return [entry for entry, _ in self._records(segment)]

    def times(self, segment: int) -> list[tuple[int, int]]:
        """Return the position behind each entry, and when it was stored."""
        return [(entry.first + entry.positions, time_ms) for entry, time_ms in self._records(segment)]

    def _records(self, segment: int) -> Iterator[tuple[StoredEntry, int]]:
        log = self._log(segment)
        data = log.read_bytes() if log.exists() else b""
        at = 0
        while at < len(data):
            first, count, time_ms, size = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            yield StoredEntry(first, count, data[at : at + size]), time_ms
            at += size

    def at_time(self, segment: int, time_ms: int) -> int:
        """The first position that was published at a time or later, or the end."""
        for entry in self.entries(segment):
            if read_outer(entry.data).publish_time >= time_ms:
                return entry.first
        return self.tail(segment).next

    def tail(self, segment: int) -> SegmentSpan:
        sealed = not self.layout.segment(segment).active
        entries = self.entries(segment)
        if not entries:
            return SegmentSpan(0, 0, sealed, log=self.log_id)
        end = entries[-1].first + entries[-1].positions
        return SegmentSpan(entries[0].first, end, sealed, log=self.log_id)

    def _log(self, segment: int) -> Path:
        return self.directory / f"segment-{segment}"

    def _store(self, layout: Layout) -> None:
        new = self.directory / f"layout.{os.getpid()}"
        new.write_bytes(pickle.dumps(layout))
        new.rename(self.directory / "layout")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _packed(entry: StoredEntry, time_ms: int) -> bytes:
    return _RECORD.pack(entry.first, entry.positions, time_ms, len(entry.data)) + entry.data


class FileReader:
    """The reading port over files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def topology(self, topic: str, *, fresh: bool = False) -> Topology:
        found = FileTopic(self._root, topic)
        layout = found.layout
        return Topology.of(layout, {id_: found.tail(id_) for id_ in layout.segments})

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        found = {}
        for id_, position in positions.items():
            times = [time_ms for end, time_ms in FileTopic(self._root, topic).times(id_) if end > position]
            if times:
                found[id_] = times[0]
        return found

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        found = {}
        for id_ in segments:
            times = FileTopic(self._root, topic).times(id_)
            found[id_] = max((end for end, stored_ms in times if stored_ms <= time_ms), default=0)
        return found

    def topics(self, pattern: TopicPattern) -> Sequence[str]:
        return sorted(path.name for path in self._root.iterdir() if pattern.matches(path.name))

    def positions_at(self, topic: str, topology: Topology, time_ms: int) -> Mapping[int, int]:
        found = FileTopic(self._root, topic)
        return {id_: found.at_time(id_, time_ms) for id_ in found.layout.segments}

    def cursor_positions(self, topic: str, topology: Topology, subscription: str) -> Mapping[int, int] | None:
        kept = self._root / topic / f"subscription-{subscription}"
        if not kept.exists():
            return None
        cut: TopicCut = pickle.loads(kept.read_bytes())
        after = {other for id_ in cut.positions for other in topology.layout.descendants(id_)}
        return {
            id_: cut.positions.get(id_, 0 if id_ in after else tail.next)
            for id_, tail in topology.tails.items()
        }

    def mirror(self, topic: str, subscription: str, cut: TopicCut, topology: Topology) -> None:
        (self._root / topic / f"subscription-{subscription}").write_bytes(pickle.dumps(cut))

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        known = FileTopic(self._root, topic).schemas
        if version is None:
            return known[-1] if known else None
        return next((schema for schema in known if schema.version == version), None)

    def schema_topic(self, topic: str, segment: int) -> str:
        own = FileTopic(self._root, f"{topic}.segment-{segment}")
        return own.name if own.schemas else topic

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        for number, part in enumerate(slices):
            entries = FileTopic(self._root, part.topic).entries(part.segment)
            wanted = [e for e in entries if e.first < part.hi and e.first + e.positions > part.lo]
            for at in range(0, len(wanted), 3):
                yield number, wanted[at : at + 3]

    def settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        return positions


class FileWriter:
    """The writing port over files."""

    def __init__(self, topic: FileTopic) -> None:
        self._topic = topic

    def write(self, rows: OutgoingRows) -> None:
        keys = [None] * len(rows.values) if rows.keys is None else rows.keys.to_pylist()
        values = rows.values.to_pylist()
        if rows.hashes is not None:
            for key, found in zip(keys, rows.hashes.tolist(), strict=True):
                assert key is None or key_hash(key) == found
        as_bytes = [v.encode() if isinstance(v, str) else v for v in values]
        self._topic.send(list(zip(keys, as_bytes, strict=True)))

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class FileService(Service):
    """The way to topics in a directory."""

    root: str

    def reader(self) -> FileReader:
        return FileReader(Path(self.root))

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> FileWriter:
        return FileWriter(FileTopic(Path(self.root), topic))

    def sink(self, namespace: str, sink_id: str) -> Sink:
        raise NotImplementedError("topics in files have no exactly-once sink")


class FilesSource(AnabranchSource):
    """The real source over files: `.format("anabranch_files")`, with the directory as service URL."""

    @classmethod
    def name(cls) -> str:
        return "anabranch_files"

    def service(self, url: str, settings: Settings) -> Any:
        return FileService(url)
