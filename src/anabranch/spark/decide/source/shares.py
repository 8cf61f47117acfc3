"""Divides the limit of a micro-batch among the segments with unread messages. Pure.

Example: segments 0, 1 and 2 have 90, 9 and 1 messages, and the limit is 10 rows. Each gives one message,
which leaves 7 rows for the other 97 messages that wait. Segment 0 gives 89 * 7 / 97 = 6 more, segment 1 gives
8 * 7 / 97 = 0 more. The micro-batch takes 7, 1 and 1. With a limit of 2 rows, and segment 1 served last, it
takes one message of segment 2 and one of segment 0; segment 1 is next.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.spark.decide.source.topology import Key, Limit, Sizes

Counts = dict[Key, int]
"""Messages by topic and segment."""


def share(
    waiting: Mapping[Key, int],
    limit: Limit,
    sizes: Sizes,
    last_served: Key | None = None,
    *,
    one: bool = True,
) -> Counts:
    """Return how many messages each segment gives; segments that give none are absent.

    Each segment first gives one message while the limit lasts, beginning after `last_served`, so that no
    segment starves. The rest is shared in proportion to the waiting messages. With `one`, at least one
    message is taken even if it is larger than the limit.
    """
    size_bytes = bytes_of(waiting, sizes)
    if limit.load(sum(waiting.values()), size_bytes) <= 1.0:
        return dict(waiting)
    taken: Counts = {}
    rows, left_bytes = limit.rows, limit.bytes
    for key in rotated(waiting, last_served):
        size = sizes.of(*key)
        if (taken or not one) and (
            (rows is not None and rows < 1) or (left_bytes is not None and left_bytes < size)
        ):
            break
        taken[key] = 1
        rows = None if rows is None else rows - 1
        left_bytes = None if left_bytes is None else int(left_bytes - size)
    rest = {key: count - 1 for key, count in waiting.items() if count > 1}
    if len(taken) < len(waiting) or not rest:
        return taken
    part = 1.0
    if rows is not None:
        part = min(part, rows / sum(rest.values()))
    if left_bytes is not None:
        part = min(part, max(0, left_bytes) / bytes_of(rest, sizes))
    return {key: count + int(rest.get(key, 0) * part) for key, count in taken.items()}


def rotated(waiting: Mapping[Key, int], last_served: Key | None) -> list[Key]:
    """Return the segments in order, beginning with the one after `last_served`."""
    keys = sorted(waiting)
    return (
        keys
        if last_served is None
        else [k for k in keys if k > last_served] + [k for k in keys if k <= last_served]
    )


def last_served_of(taken: Mapping[Key, int], last_served: Key | None) -> Key | None:
    """Return the segment that was served last in this step."""
    return rotated(taken, last_served)[-1] if taken else last_served


def bytes_of(counts: Mapping[Key, int], sizes: Sizes) -> float:
    return sum(count * sizes.of(*key) for key, count in counts.items())
