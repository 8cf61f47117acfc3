"""Options of the methods of admin clients that change the layout of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from anabranch.arguments import check_flag, listed, refuse_unknown, whole
from anabranch.errors import InvalidConfigurationError


class SplitOptions(TypedDict, total=False):
    """Options of a split; without any, the segment is cut in the middle."""

    points: Sequence[int]
    """The first hash of each part but the first."""
    parts: int | None
    by_traffic: bool
    """Whether parts have equal loads instead of equal widths."""
    timeout: float | None


class RebucketOptions(TypedDict, total=False):
    """Options of a change of buckets: their number, or their boundaries."""

    bucket_count: int | None
    boundaries: Sequence[int]
    by_traffic: bool
    """Whether buckets have equal loads instead of equal widths."""
    timeout: float | None


def segment_id(segment: int) -> str:
    """Return the id of a segment in a path."""
    return str(whole("segment", segment))


def segment_ids(segments: Iterable[int]) -> list[str]:
    """Return the ids of segments in the path of a merge; InvalidConfigurationError without any."""
    ids = [str(segment) for segment in listed("segments", segments, int, "a list of segment ids")]
    if not ids:
        raise InvalidConfigurationError("name the segments to merge")
    return ids


def split_query(how: SplitOptions) -> dict[str, object]:
    """Return the parameters of a split; TypeError for an option that a split does not have."""
    refuse_unknown(how, SplitOptions)
    return {
        "points": _hashes("points", how.get("points", ())),
        "parts": _count("parts", how.get("parts")),
        "byTraffic": _by_traffic(how.get("by_traffic", False)),
    }


def rebucket_query(how: RebucketOptions) -> dict[str, object]:
    """As `split_query`, for a change of buckets."""
    refuse_unknown(how, RebucketOptions)
    return {
        "bucketCount": _count("bucket_count", how.get("bucket_count")),
        "boundaries": _hashes("boundaries", how.get("boundaries", ())),
        "byTraffic": _by_traffic(how.get("by_traffic", False)),
    }


def _hashes(name: str, values: Iterable[int]) -> str | None:
    return ",".join(map(str, listed(name, values, int, "a list of hashes"))) or None


def _count(name: str, value: int | None) -> int | None:
    return None if value is None else whole(name, value)


def _by_traffic(value: bool) -> bool | None:
    check_flag("by_traffic", value)
    return value or None
