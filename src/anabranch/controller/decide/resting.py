"""Decides which topics need no leader for now: nothing changes in them until a client or operator comes.

Most topics of a large broker are idle and have one segment. A controller for each would take memory, tasks
and writes of the metadata store.
"""

from __future__ import annotations

from anabranch.metadata.records import TopicRecord
from anabranch.model.policies.retention import Retention
from anabranch.model.scaling.observed import BUCKETS_MIN, SURPLUS_FACTOR
from anabranch.model.scaling.policy import AutoScalePolicy


def may_rest(record: TopicRecord, policy: AutoScalePolicy, limits: Retention) -> bool:
    """Whether a topic without clients has nothing to finish, scale, prune or trim.

    `policy` and `limits` are those of the namespace; a topic with a policy of its own never rests.
    """
    if record.deleted or record.intent is not None or record.garbage or record.auto_scale_policy is not None:
        return False
    if len(record.segments) != 1 or limits.size_bytes is not None:
        return False
    (segment,) = record.segments.values()
    most = SURPLUS_FACTOR * min(BUCKETS_MIN, policy.entry_bucket_max_per_segment)
    scaled = policy.min_segments <= 1 and len(segment.entry_bucket_splits) + 1 < most
    return segment.state == "ACTIVE" and (scaled or not policy.enabled)
