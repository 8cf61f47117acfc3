"""The place of a segment: its name and its store."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.model.names import TopicName


class Place(NamedTuple):
    """A segment and the store that holds it; the owner of the store serves the segment."""

    name: TopicName
    store: int
