"""The topic of Apache Pulsar that holds a segment's messages, when a cluster is the engine.

The id of a segment is never used twice, not even after its topic was deleted and created again, so neither is
the name of its Pulsar topic. This module must not know which topics exist.
"""

from __future__ import annotations

from typing import Final

from anabranch.errors import InvalidNameError
from anabranch.model.names import SegmentDescriptor, TopicName

_MARK: Final = ".segment-"


def pulsar_topic(segment: TopicName) -> TopicName:
    """Return the `persistent://` topic for a segment; other names are returned as they are."""
    if segment.segment is None:
        return segment
    # The name of a scalable topic may contain slashes; that of a persistent topic may not.
    local = segment.local.replace("%", "%25").replace("/", "%2F")
    return TopicName("persistent", segment.tenant, segment.namespace, f"{local}{_MARK}{segment.segment}")


def segment_in(topic: TopicName) -> TopicName | None:
    """Undo `pulsar_topic`; None for a topic that holds no segment."""
    local, mark, described = topic.local.rpartition(_MARK)
    if not mark or not local or topic.domain != "persistent":
        return None
    try:
        descriptor = SegmentDescriptor.parse(described)
        whole = local.replace("%2F", "/").replace("%25", "%")
        return TopicName("segment", topic.tenant, topic.namespace, whole, descriptor)
    except InvalidNameError:
        return None
