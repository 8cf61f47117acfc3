"""How the segments that wait share the limit of a micro-batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.spark.decide.source.topology import Key, Limit, Sizes

Counts = dict[Key, int]
"""Messages by topic and segment."""


def share(
    waiting: Mapping[Key, int], limit: Limit, sizes: Sizes, turn: Key | None = None, *, one: bool = True
) -> Counts:
    """Return how many messages each segment gives; those that give none are missing.

    Each segment gives one message while the limit lasts, in turn from the one after `turn` on, so that no
    segment waits for ever. The rest is shared in proportion to the messages that wait. With `one`, a message
    is taken in any case, even if it is larger than the limit.
    """
    size_bytes = bytes_of(waiting, sizes)
    if limit.load(sum(waiting.values()), size_bytes) <= 1.0:
        return dict(waiting)
    taken: Counts = {}
    rows, left_bytes = limit.rows, limit.bytes
    for key in in_turn(waiting, turn):
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


def in_turn(waiting: Mapping[Key, int], turn: Key | None) -> list[Key]:
    """Return the segments in their order, from the one after `turn` on, then from the first."""
    keys = sorted(waiting)
    return keys if turn is None else [k for k in keys if k > turn] + [k for k in keys if k <= turn]


def last_in_turn(taken: Mapping[Key, int], turn: Key | None) -> Key | None:
    """Return the segment whose turn was the last one."""
    return in_turn(taken, turn)[-1] if taken else turn


def bytes_of(counts: Mapping[Key, int], sizes: Sizes) -> float:
    return sum(count * sizes.of(*key) for key, count in counts.items())
