"""Shares segments among more consumers than segments: how many read each, and which keep theirs.

Example: five consumers read two segments of four buckets each. Segment 0 gets three readers and segment 1
gets two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from anabranch.model.layout import Segment

Readers = Mapping[int, Sequence[str]]
"""Consumers by the segment that they read."""


def readers_per_segment(segments: Sequence[Segment], readers: int) -> dict[int, int]:
    """Return the number of readers of each segment; surplus readers go where a reader has most buckets.

    One more consumer adds a place to one segment and removes none, so a join moves no other consumer.
    """
    places = {segment.id: 1 for segment in segments}
    for _ in range(readers - len(segments)):
        open_ = [segment for segment in segments if places[segment.id] < segment.bucket_count]
        if not open_:
            break
        fullest = min(open_, key=lambda s: (-s.bucket_count / places[s.id], s.range, s.id))
        places[fullest.id] += 1
    return places


def keep_readers(
    segments: Sequence[Segment], places: Mapping[int, int], readers: Readers
) -> dict[int, list[str]]:
    """Return a largest matching of consumers with segments that they read before, by augmenting paths."""
    before: dict[str, list[int]] = {}
    for segment in segments:
        for name in readers.get(segment.id, ()):
            before.setdefault(name, []).append(segment.id)
    owners: dict[int, list[str]] = {segment.id: [] for segment in segments}
    for name in sorted(before, key=lambda n: (len(before[n]), n)):
        _find_place(name, before, places, owners)
    return owners


def _find_place(
    name: str, before: Mapping[str, Sequence[int]], places: Mapping[int, int], owners: dict[int, list[str]]
) -> None:
    """Find a place for one more consumer; others may move to another segment that they read before."""
    came: dict[int, tuple[str, int | None]] = dict.fromkeys(before[name], (name, None))
    queue = deque(came)
    while queue:
        id_ = queue.popleft()
        if len(owners[id_]) < places[id_]:
            _move_along(id_, came, owners)
            return
        for other in owners[id_]:
            for next_id in before[other]:
                if next_id not in came:
                    came[next_id] = (other, id_)
                    queue.append(next_id)


def _move_along(free: int, came: Mapping[int, tuple[str, int | None]], owners: dict[int, list[str]]) -> None:
    """Move each consumer on the path to the free place by one place."""
    place: int | None = free
    while place is not None:
        mover, left = came[place]
        owners[place].append(mover)
        if left is not None:
            owners[left].remove(mover)
        place = left
