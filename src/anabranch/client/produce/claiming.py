"""Registering with every segment of a topic before the first message, to learn the last stored sequence id.

A producer with a name of the caller's numbers its messages above every id that was stored under this name.
"""

from __future__ import annotations

import asyncio
from functools import partial

from anabranch.client.produce.registering import ask_what_is_stored
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.errors import TopicNotFoundError
from anabranch.model.layout import Segment

NOTHING_STORED = -1


async def register_everywhere(routes: SegmentRoutes) -> int:
    """Register with all active segments; return the highest sequence id that they know of this producer."""
    highest = NOTHING_STORED
    claimed: set[int] = set()
    # A segment that is sealed meanwhile has successors, which an earlier producer of this name may have used.
    while missing := [segment for segment in routes.active if segment.id not in claimed]:
        for segment in [routes.segment(segment) for segment in missing]:
            stored = await asyncio.shield(segment.attached)
            claimed.add(segment.segment.id)
            if stored is not None:
                highest = max(highest, stored)
    return highest


async def ask_sealed_segments(routes: SegmentRoutes) -> int:
    """Return the highest sequence id of this producer in a sealed segment; successors need not know it."""
    highest = NOTHING_STORED
    pool = routes.home.pool
    for sealed in routes.layout.layout.sealed:
        stored = await pool.retry(
            partial(_last_stored, routes, sealed), f"asking segment {sealed.id} for its last sequence id"
        )
        highest = max(highest, stored)
    return highest


async def _last_stored(routes: SegmentRoutes, sealed: Segment) -> int:
    topic = routes.layout.segment_topic(sealed)
    try:
        connection = await routes.home.pool.connection_for(topic, routes.layout.owners.get(sealed.id))
        reply = await ask_what_is_stored(routes.home, connection, topic)
    except TopicNotFoundError:
        # The segment was deleted after the layout was sent; its messages are gone.
        return NOTHING_STORED
    return NOTHING_STORED if reply is None else reply.last_sequence_id
