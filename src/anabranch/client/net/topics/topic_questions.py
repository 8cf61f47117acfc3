"""Questions of a client about topics: their layouts, their schemas and their names.

Each function checks its arguments first, and then asks within the client's operation timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.arguments import check_flag
from anabranch.client.net.client_life import ClientLife
from anabranch.client.net.topics.layout_watch import TopicLayout, look_up_layout
from anabranch.client.net.topics.topic_lists import list_classic_topics, list_scalable_topics
from anabranch.client.options import parse_topic
from anabranch.model.names import parse_namespace

if TYPE_CHECKING:
    from anabranch.client.net.topics.schemas import TopicSchema


async def ask_layout(client: ClientLife, topic: str, *, create: bool, with_pruned: bool) -> TopicLayout:
    """Return the layout that a topic has now."""
    check_flag("create", create)
    check_flag("with_pruned", with_pruned)
    pool, name = client.connections(), parse_topic(topic)
    return await pool.retry(
        lambda: look_up_layout(pool, name, create=create, with_pruned=with_pruned), f"looking up {name}"
    )


async def ask_schema(client: ClientLife, topic: str, version: bytes | int | None) -> TopicSchema | None:
    """Return a version of the topic's registered schema, the newest by default, or None if there is none."""
    # Imported late: few readers ask for schemas, whose modules take long to load.
    from anabranch.client.net.topics.schemas import look_up_schema, version_bytes

    pool, name, wanted = client.connections(), parse_topic(topic), version_bytes(version)
    return await pool.retry(lambda: look_up_schema(pool, name, wanted), f"asking for the schema of {name}")


async def ask_topics(client: ClientLife, namespace: str, *, classic: bool) -> list[str]:
    """Return the full names of the scalable topics, or of the classic ones, of a namespace."""
    check_flag("classic", classic)
    parse_namespace(namespace)
    pool = client.connections()
    listing = list_classic_topics if classic else list_scalable_topics
    return await pool.retry(lambda: listing(pool, namespace), f"listing the topics of {namespace}")
