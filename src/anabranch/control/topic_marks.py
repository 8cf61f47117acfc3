"""The marks of a segment's topic at Pulsar, by which a control plane knows the topics that it made.

Several control planes may use one Pulsar, each with a path of its own in ZooKeeper. Their topics may have the
same names, so a topic of a segment carries the id of the control plane that made it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from anabranch.model.names import TopicName

TOPIC_PROPERTY: Final = "anabranch.topic"
"""Names the scalable topic in the properties of its segments' topics."""

INSTALLATION_PROPERTY: Final = "anabranch.installation"
READY_PROPERTY: Final = "anabranch.ready"
"""Set when the policies of the topic are set, which takes several calls."""


class NewTopics(NamedTuple):
    """How a control plane creates the topics of segments."""

    installation: str = ""
    """The id of the control plane."""
    retention_minutes: int = -1
    """How long acknowledged messages stay; -1 keeps them forever."""


def marks_of(segment: TopicName, installation: str) -> dict[str, str]:
    """The properties that a segment's topic has from its creation on."""
    return {TOPIC_PROPERTY: str(segment.topic), INSTALLATION_PROPERTY: installation}
