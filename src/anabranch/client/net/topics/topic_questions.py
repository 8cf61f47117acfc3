"""The part of a client that answers questions about topics."""

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


class TopicQuestions(ClientLife):
    """Asks the brokers for layouts, schemas and names of topics."""

    async def layout(self, topic: str, *, create: bool = False, with_pruned: bool = False) -> TopicLayout:
        """The layout of a topic now, for tools and bulk readers; with what is known of pruned segments."""
        check_flag("create", create)
        check_flag("with_pruned", with_pruned)
        pool, name = self._connections(), parse_topic(topic)
        return await pool.retry(
            lambda: look_up_layout(pool, name, create=create, with_pruned=with_pruned), f"looking up {name}"
        )

    async def topic_schema(self, topic: str, *, version: bytes | int | None = None) -> TopicSchema | None:
        """A version of the topic's registered schema, the newest by default; None without such a schema.

        The version is the number that `anabranch schema list` shows, or the bytes that messages carry.
        """
        # Imported late: few readers ask for schemas, whose modules take long to load.
        from anabranch.client.net.topics.schemas import look_up_schema, version_bytes

        pool, name, wanted = self._connections(), parse_topic(topic), version_bytes(version)
        return await pool.retry(
            lambda: look_up_schema(pool, name, wanted), f"asking for the schema of {name}"
        )

    async def topics(self, namespace: str, *, classic: bool = False) -> list[str]:
        """The full names of the scalable topics, or of the classic ones, of a namespace `tenant/name`."""
        check_flag("classic", classic)
        parse_namespace(namespace)
        pool = self._connections()
        listing = list_classic_topics if classic else list_scalable_topics
        return await pool.retry(lambda: listing(pool, namespace), f"listing the topics of {namespace}")
