"""Records of tenants and namespaces."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.errors import ConflictError, NotFoundError
from anabranch.metadata.layouts import with_layout
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.records import (
    NamespaceRecord,
    TenantRecord,
    TopicRecord,
)
from anabranch.metadata.topics import TopicStore
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

NAME = TopicName.parse("topic://public/default/orders/eu")
PLAIN = with_layout(TopicRecord(epoch=0, next_segment_id=0, segments={}), Layout.initial(1, now_ms=0))


@pytest.fixture
def topics() -> TopicStore:
    return TopicStore(MemoryStore())


async def test_defaults_are_made_once_and_kept(topics: TopicStore) -> None:
    await topics.namespaces.ensure_defaults()
    await topics.namespaces.update_tenant(
        "public", lambda found: msgspec.structs.replace(found, admin_roles=("me",))
    )
    await topics.namespaces.ensure_defaults()
    assert (await topics.namespaces.load_tenant("public")).admin_roles == ("me",)
    assert await topics.namespaces.tenants() == ("public",)
    assert await topics.namespaces.of_tenant("public") == ("public/default",)


async def test_tenants_and_namespaces_refuse_to_vanish_while_used(topics: TopicStore) -> None:
    await topics.namespaces.ensure_defaults()
    await topics.create(NAME, PLAIN)
    with pytest.raises(ConflictError, match="topics"):
        await topics.delete_namespace("public/default")
    with pytest.raises(ConflictError, match="namespaces"):
        await topics.namespaces.delete_tenant("public")
    await topics.delete(NAME, PLAIN.incarnation)
    await topics.delete_namespace("public/default")
    await topics.namespaces.delete_tenant("public")
    with pytest.raises(NotFoundError):
        await topics.namespaces.load_tenant("public")


async def test_a_namespace_needs_its_tenant(topics: TopicStore) -> None:
    with pytest.raises(NotFoundError, match="tenant acme"):
        await topics.namespaces.create_namespace("acme/prod", NamespaceRecord())
    await topics.namespaces.create_tenant("acme", TenantRecord())
    await topics.namespaces.create_namespace("acme/prod", NamespaceRecord())
    with pytest.raises(ConflictError):
        await topics.namespaces.create_namespace("acme/prod", NamespaceRecord())
    await topics.namespaces.update_namespace(
        "acme/prod",
        lambda found: msgspec.structs.replace(found, scalable_topic_auto_scale_policy={"maxSegments": 2}),
    )
    found = await topics.namespaces.load_namespace("acme/prod")
    assert found.scalable_topic_auto_scale_policy == {"maxSegments": 2}
