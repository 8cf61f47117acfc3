"""Decides which topics need no leader for now, because nothing changes in them until they are used. Pure.

Most topics of a large broker are idle and have one segment. A controller for each of them would cost memory,
tasks and writes to the metadata store.

Example: a topic with one active segment of one bucket and no size limit may rest. With two segments it may
not, because auto-scaling may merge them (PIP-483); nor with an intent, which a leader has to finish.
"""

from __future__ import annotations

from anabranch.metadata.records import TopicRecord
from anabranch.model.policies.retention import Retention
from anabranch.model.scaling.observed import BUCKETS_MIN, SURPLUS_FACTOR
from anabranch.model.scaling.policy import AutoScalePolicy


def may_rest(record: TopicRecord, policy: AutoScalePolicy, limits: Retention) -> bool:
    """Return whether a topic without clients has nothing to finish, scale, prune or trim.

    `policy` and `limits` are those of the namespace. A topic with its own policy never rests.
    """
    if record.deleted or record.intent is not None or record.garbage or record.auto_scale_policy is not None:
        return False
    if len(record.segments) != 1 or limits.size_bytes is not None:
        return False
    (segment,) = record.segments.values()
    most = SURPLUS_FACTOR * min(BUCKETS_MIN, policy.entry_bucket_max_per_segment)
    scaled = policy.min_segments <= 1 and len(segment.entry_bucket_splits) + 1 < most
    return segment.state == "ACTIVE" and (scaled or not policy.enabled)
